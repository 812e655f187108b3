"""Check the settings of sections and methods, and describe mistakes in one line."""

from dataclasses import fields
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError

from fedfm.core.errors import UserError, require, unknown
from fedfm.methods import Piece, piece_class


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
    kind = piece_class(name)
    for option in options:
        if option not in field_names(kind):
            raise unknown(f"key in method.{name}:", option, field_names(kind))
    refuse_flags(kind, options, "method", name)
    try:
        return TypeAdapter(kind).validate_python(options)
    except ValidationError as problem:
        raise UserError(describe_error(problem.errors()[0], "method", name)) from problem


def refuse_flags(kind: type, given: Any, *inside: str) -> None:
    """Refuse true and false where a number is expected: pydantic takes them for 1 and 0."""
    hints = get_type_hints(kind)
    for name, value in given.items() if isinstance(given, dict) else ():
        wanted = (hints.get(name), *get_args(hints.get(name)))
        number = bool not in wanted and (int in wanted or float in wanted)
        key, wrong = ".".join([*inside, name]), isinstance(value, bool) and number
        require(not wrong, f"{key} must be a number, not {str(value).lower()}")


def describe_error(error: Any, *inside: str) -> str:
    """Return what pydantic says of a value, with its key."""
    message: str = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return message
    return f"{'.'.join([*inside, *map(str, error['loc'])])}: {message}"
