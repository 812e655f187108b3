"""Validate tables of settings; say in a line what is wrong and what would be right."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError

from fedfm.core.errors import UserError, require, unknown_name_error
from fedfm.methods import Piece, piece_class

T = TypeVar("T")
Place = Callable[[str, str], str | None]
"""Returns where an unknown key belongs, given the section that it is in and the key."""


def validate(
    kind: type[T],
    values: Any,
    section: str = "",
    *,
    sections: Mapping[str, type] | None = None,
    place: Place = lambda section, key: None,
    context: Any = None,
) -> T:
    """Return the values as a `kind`; raise a `UserError` that explains the first mistake.

    `section` is where the values are; `sections` has the types of the sections among them.
    """
    try:
        adapter: TypeAdapter[T] = _adapter(cast(Any, kind))
        return adapter.validate_python(values, context=context)
    except ValidationError as problem:
        error = problem.errors(include_input=False)[0]
        path = [*([section] if section else []), *map(str, error["loc"])]
        reason = _explain(error, path, {section: kind, **(sections or {})}, place)
        raise UserError(reason) from problem


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    """Return what validates a `kind`; it takes a while to make."""
    return TypeAdapter(kind)


def _explain(error: Any, path: list[str], sections: Mapping[str, type], place: Place) -> str:
    """Return what is wrong at a `path` of keys."""
    message: str = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error" or not path:
        return message
    section, key = ".".join(path[:-1]), path[-1]
    where = f" in [{section}]" if section else ""
    if error["type"] == "missing":
        return f"'{key}' is missing{where}"
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        if hint := place(section, key):
            return f"unknown key '{key}': {hint}"
        return str(
            unknown_name_error(
                f"key{where}:" if where else "key", key, field_names(sections[section])
            )
        )
    return f"{'.'.join(path)}: {message}"


def field_names(kind: Any) -> list[str]:
    """Return the names of a section's or a method's settings."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return list(kind.model_fields)
    return [field.name for field in fields(kind)]


def piece_settings(piece: Piece) -> dict[str, Any]:
    """Return a piece's settings by name, as TOML has them: lists, and no None."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(piece).items()
        if value is not None
    }


def check_piece_settings(name: str, options: dict[str, Any]) -> Piece:
    """Return the registered piece with these settings; refuse wrong ones."""
    return check_settings(piece_class(name), options, "method", name)


def check_settings(kind: type[T], options: dict[str, Any], *inside: str) -> T:
    """Return the settings as a `kind`, whose section is `inside`; refuse wrong ones."""
    section = ".".join(inside)
    for option in options:
        if option not in field_names(kind):
            raise unknown_name_error(f"key in {section}:", option, field_names(kind))
    refuse_flags(kind, options, *inside)
    return validate(kind, options, section)


def refuse_flags(kind: type, given: Any, *inside: str) -> None:
    """Refuse true and false where a number is expected: pydantic takes them for 1 and 0."""
    hints = _type_hints(kind)
    for name, value in given.items() if isinstance(given, dict) else ():
        wanted = (hints.get(name), *get_args(hints.get(name)))
        number = bool not in wanted and (int in wanted or float in wanted)
        key, wrong = ".".join([*inside, name]), isinstance(value, bool) and number
        require(not wrong, f"{key} must be a number, not {str(value).lower()}")


@cache
def _type_hints(kind: type) -> dict[str, Any]:
    """Return the types of a section's or a method's settings by name."""
    return get_type_hints(kind)
