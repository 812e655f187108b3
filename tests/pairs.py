"""Few tests for many parameters: any two values meet, not all combinations."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

Row = tuple[int, ...]
"""The place of a value in each choice."""


def pairwise(*choices: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Combinations in which any two values of two choices meet: those with most new pairs first."""
    rows = list(product(*(range(len(values)) for values in choices)))
    missing, chosen = {pair for row in rows for pair in _pairs(row)}, list[Row]()
    while missing:
        chosen.append(max(rows, key=lambda row: len(missing & _pairs(row))))
        missing -= _pairs(chosen[-1])
    return [tuple(c[i] for c, i in zip(choices, row, strict=True)) for row in chosen]


def _pairs(row: Row) -> set[tuple[Any, ...]]:
    return set(combinations(enumerate(row), 2))
