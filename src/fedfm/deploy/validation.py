"""Plain values that come from other machines: what they may be, and that they are."""

import math
import re
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fedfm.core.errors import UserError, require

MAX_VALUES = 10**8
"""Of one input."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def checked_name(name: str) -> str:
    """The name of a client, if it may have it: it becomes a file name and stands in logs."""
    require(
        _NAME.fullmatch(name) is not None,
        "a client's name has 1 to 64 letters (a to z), digits, '-', '_' and '.', "
        f"and starts with a letter or digit; not {_shown(name)}",
    )
    return name


def _checked_label(label: str) -> str:
    wanted = "is no name: it is empty, longer than 200 characters or cannot be printed; rename it"
    require(1 <= len(label) <= 200 and label.isprintable(), f"{_shown(label)} {wanted}")
    return label


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    require(len(set(names)) == len(names), "a name is there twice; rename one of them")
    return names


def _of_reasonable_size(shape: tuple[int, ...]) -> tuple[int, ...]:
    require(math.prod(shape) <= MAX_VALUES, f"an input has more than {MAX_VALUES:,} values")
    return shape


def _shown(text: str) -> str:
    """A text that may be anything, short and harmless, for a message."""
    return ascii(text if len(text) <= 70 else text[:70] + "...")


ClientName = Annotated[str, Field(strict=True), AfterValidator(checked_name)]
Label = Annotated[str, Field(strict=True), AfterValidator(_checked_label)]
"""The name of a class or of a column."""
Labels = Annotated[tuple[Label, ...], Field(max_length=100_000), AfterValidator(_distinct)]
Shape = Annotated[
    tuple[Annotated[int, Field(strict=True, ge=1, le=1_000_000)], ...],
    Field(min_length=1, max_length=4),
    AfterValidator(_of_reasonable_size),
]
"""Of one input; channels, or the columns of a table, come first."""
Floats = Annotated[
    tuple[Annotated[float, Field(strict=True, allow_inf_nan=False)], ...],
    Field(min_length=1, max_length=1_000_000),
]
Version = Annotated[str, Field(strict=True, pattern=r"^[0-9A-Za-z.+!-]{1,64}$")]


class Told(BaseModel):
    """Something one machine tells another, which believes no word of it unchecked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def values(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return self.model_dump(mode="json")

    @classmethod
    def of(cls, values: object) -> Self:
        """What gave these `values`; a `UserError` if they are anything else."""
        try:
            return cls.model_validate(values)
        except ValidationError as problem:
            raise UserError(cls._explain(problem)) from problem

    @classmethod
    def _explain(cls, problem: ValidationError) -> str:
        """The first thing that is wrong; unknown keys are not repeated."""
        error = problem.errors(include_input=False)[0]
        key = str(error["loc"][0]) if error["loc"] else ""
        where = f", {key}" if key in cls.model_fields else ""
        said = error["msg"].removeprefix("Value error, ")
        return f"no valid {cls.__name__.lower()}{where}: {said}"


def in_a_line(said: object) -> str:
    """What another machine said, short and printable, so that it cannot forge lines of the log."""
    text = " ".join(str(said)[:500].split())
    return "".join(letter if letter.isprintable() else "?" for letter in text)
