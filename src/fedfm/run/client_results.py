"""The results of the clients: what each of them gets from the model, and how they differ."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from torch import Tensor

from fedfm.core.errors import UserError
from fedfm.core.trees import Tree

HIDDEN = (
    "each client's result is needed for the worst client and the 10th percentile, and a secure sum "
    "hides it: use the mean and the deviation, or deployment.secure = false"
)
Moments = tuple[int, float, float]
"""How many clients have a value, its mean and its mean square."""
Values = tuple[float | None, ...]
"""A value for each client; None where it has none, as AUC on samples of one class."""


@dataclass(frozen=True)
class ClientResults:
    """A value of each metric for each client, and mean and deviation over clients.

    Examples:
        >>> results = ClientResults.from_values("test", {"accuracy": (0.5, 0.9, None)})
        >>> results.mean("accuracy"), results.worst("accuracy"), results.count("accuracy")
        (0.7, 0.5, 2)
    """

    split: Literal["test", "validation"]
    """The samples of the clients that were measured."""
    values: dict[str, Values] = field(default_factory=dict)
    """By metric, the value of each client; empty if only sums over clients are known."""
    sums: dict[str, Moments] = field(default_factory=dict)
    """By metric what sums over clients give, where each client's value is not known."""
    lower: tuple[str, ...] = ()
    """The metrics of which lower values are better."""

    @staticmethod
    def from_values(
        split: Literal["test", "validation"],
        values: Mapping[str, Sequence[float | None]],
        lower: Sequence[str] = (),
    ) -> "ClientResults":
        """Return the results of clients whose values are known."""
        kept = {name: tuple(each) for name, each in values.items()}
        return ClientResults(split, kept, lower=tuple(lower))

    @staticmethod
    def from_sums(
        split: Literal["test", "validation"], sums: Mapping[str, Mapping[str, Any]]
    ) -> "ClientResults":
        """Return the results of clients of which only sums are known (see `to_sums`)."""
        moments: dict[str, Moments] = {}
        for name, each in sums.items():
            count = int(each["clients"])
            mean, square = (float(each[key]) / max(1, count) for key in ("sum", "squares"))
            moments[name] = (count, mean, square)
        return ClientResults(split, sums=moments)

    @staticmethod
    def parse(facts: Mapping[str, Any]) -> "ClientResults":
        """Undo `dataclasses.asdict` after JSON, which has lists for tuples."""
        tuples = {
            name: {metric: tuple(each) for metric, each in facts[name].items()}
            for name in ("values", "sums")
        }
        return ClientResults(facts["split"], **tuples, lower=tuple(facts["lower"]))

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics."""
        return [*(self.values or self.sums)]

    def _moments(self, metric: str) -> Moments:
        """Return how many clients have a value, its mean and its mean square."""
        return _compute_moments(self.values[metric]) if self.values else self.sums[metric]

    def count(self, metric: str) -> int:
        """Return how many clients have a value."""
        return self._moments(metric)[0]

    def mean(self, metric: str) -> float | None:
        """Return the unweighted mean over the clients that have a value."""
        count, mean, _ = self._moments(metric)
        return mean if count else None

    def deviation(self, metric: str) -> float | None:
        """Return the standard deviation over these clients."""
        count, mean, square = self._moments(metric)
        return math.sqrt(max(0.0, square - mean**2)) if count else None

    def worst(self, metric: str) -> float | None:
        """Return the value of the worst client; refuse it if only sums are known."""
        return self.percentile(metric, 0)

    def percentile(self, metric: str, share: float = 10) -> float | None:
        """Return the value that `share` percent of the clients do not reach."""
        if metric not in self.values:
            raise UserError(f"{metric}: {HIDDEN}")
        known = [value for value in self.values[metric] if value is not None]
        place = 100 - share if metric in self.lower else share
        return float(np.percentile(known, place)) if known else None

    def describe(self) -> dict[str, Any]:
        """Return the statistics over clients and the clients' values, as summary.json has them."""
        table: dict[str, Any] = {"split": self.split}
        for name in self.metrics:
            row = {
                "clients": self.count(name),
                "mean": self.mean(name),
                "deviation": self.deviation(name),
            }
            if self.values:
                row |= {"worst": self.worst(name), "p10": self.percentile(name)}
            table[name] = row
        return table | ({"values": self.values} if self.values else {"left_out": HIDDEN})


def to_sums(values: Mapping[str, Tensor]) -> Tree:
    """Return what clients with these values [S] add to sums over clients, by metric: leaves []."""
    return {
        name: {
            "clients": (~value.isnan()).sum(),
            "sum": value.nan_to_num(0.0).double().sum(),
            "squares": value.nan_to_num(0.0).double().square().sum(),
        }
        for name, value in values.items()
    }


def _compute_moments(values: Sequence[float | None]) -> Moments:
    known = np.array([value for value in values if value is not None], float)
    if not len(known):
        return 0, 0.0, 0.0
    return len(known), float(known.mean()), float((known**2).mean())
