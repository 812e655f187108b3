"""The order of names with numbers in them."""

import re
from decimal import Decimal

WHOLE, DECIMAL = r"\d+", r"\d+(?:\.\d+)?"
"""What counts as a number in a name."""


def natural_key(name: str, number: str = WHOLE) -> list[tuple[Decimal, str]]:
    """Return a key that sorts numbers in names by value: c2 before c10, then 1 after 01."""
    parts = re.split(f"({number})", name)
    return [(Decimal(part if i % 2 else -1), part) for i, part in enumerate(parts)]
