"""Validate plain values that come from other machines."""

import math
import re
from collections import Counter
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from fedfm.core.errors import UserError, require

MAX_VALUES = 10**8
"""The most values that one input may have."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str) -> str:
    """Return a client's name if it is valid; it is used as a file name and in logs."""
    require(
        _NAME.fullmatch(name) is not None,
        "a client's name must have 1 to 64 letters (a to z), digits, '-', '_' or '.', "
        f"and start with a letter or digit; not {_quote(name)}",
    )
    return name


def _check_label(label: str) -> str:
    rule = "a name must have 1 to 200 printable characters; rename it"
    require(1 <= len(label) <= 200 and label.isprintable(), f"{_quote(label)}: {rule}")
    return label


def _check_distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    require(twice is None, f"a name occurs twice: {twice!r}; rename one of them")
    return names


def _check_size(shape: tuple[int, ...]) -> tuple[int, ...]:
    require(math.prod(shape) <= MAX_VALUES, f"an input has more than {MAX_VALUES:,} values")
    return shape


def _quote(text: str) -> str:
    """Return any text in a short and printable form."""
    return ascii(text if len(text) <= 70 else text[:70] + "...")


ClientName = Annotated[str, Field(strict=True), AfterValidator(check_name)]
Label = Annotated[str, Field(strict=True), AfterValidator(_check_label)]
"""The name of a class or of a column."""
Labels = Annotated[tuple[Label, ...], Field(max_length=100_000), AfterValidator(_check_distinct)]
Shape = Annotated[
    tuple[Annotated[int, Field(strict=True, ge=1, le=1_000_000)], ...],
    Field(min_length=1, max_length=4),
    AfterValidator(_check_size),
]
"""The shape of one input; channels, or the columns of a table, come first."""
Floats = Annotated[
    tuple[Annotated[float, Field(strict=True, allow_inf_nan=False)], ...],
    Field(min_length=1, max_length=1_000_000),
]
Version = Annotated[str, Field(strict=True, pattern=r"^[0-9A-Za-z.+!-]{1,64}$")]


class Declaration(BaseModel):
    """What one machine declares to another, which validates it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def dump(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return self.model_dump(mode="json")

    @classmethod
    def parse(cls, values: object) -> Self:
        """Undo `dump`; raise a `UserError` if the values are invalid."""
        from fedfm.config.validation import validate  # with PyTorch, which a node does not load

        try:
            return validate(cls, values)
        except UserError as problem:
            reason = f"invalid {cls.__name__.lower()}: {to_one_line(problem)}"
            raise UserError(reason) from problem


def to_one_line(text: object) -> str:
    """Return another machine's text short and printable, so that it cannot forge log lines."""
    text = " ".join(str(text)[:500].split())
    return "".join(letter if letter.isprintable() else "?" for letter in text)
