"""Several metrics as one additive statistic, computed in one pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.errors import UserError, require
from fedfm.core.trees import Tree
from fedfm.methods.base import Batch
from fedfm.metrics.accuracy import Accuracy
from fedfm.metrics.base import Metric

NAME_RULE = "its name must be letters, digits and '_', e.g. name = \"top2\""
DIMENSIONS = {"number": 1, "classes": 2, "matrix": 3}
"""Of what `value` returns, by form."""


@dataclass(frozen=True)
class Measures:
    """The metrics of a run; accuracy is always the first."""

    metrics: tuple[Metric, ...] = (Accuracy(),)

    @cached_property
    def numbers(self) -> tuple[Metric, ...]:
        """The metrics that are one number."""
        return tuple(metric for metric in self.metrics if metric.form == "number")

    @cached_property
    def groups(self) -> dict[str, list[Metric]]:
        """The metrics that share a statistic, by the name of the first."""
        groups: dict[Any, list[Metric]] = {}
        for metric in self.metrics:
            key = type(metric).statistic, tuple(vars(metric).items())
            groups.setdefault(key, []).append(metric)
        return {group[0].name: group for group in groups.values()}

    @cached_property
    def exact(self) -> tuple[Metric, ...]:
        """The metrics whose exact value needs all predictions of a data set."""
        return tuple(m for m in self.metrics if type(m).exact is not Metric.exact)

    def statistic(self, batch: Batch) -> Tree:
        """Return the statistics of a batch: a tree [S, ...] for each group."""
        return {name: group[0].statistic(batch) for name, group in self.groups.items()}

    def values(self, totals: Tree, which: Sequence[Metric] | None = None) -> dict[str, Tensor]:
        """Return the values [S, ...] of all metrics, or of some, given summed statistics."""
        chosen = self.metrics if which is None else which
        return {metric.name: metric.value(self._total_of(metric, totals)) for metric in chosen}

    def _total_of(self, metric: Metric, totals: Tree) -> Tree:
        """Return the statistics that a metric shares."""
        total: Tree = next(totals[name] for name, group in self.groups.items() if metric in group)
        return total

    def check(self, totals: Tree) -> None:
        """Refuse summed statistics [S, ...] that no samples give."""
        samples: Tensor = self._total_of(self.metrics[0], totals)["samples"]
        for metric in self.metrics:
            given = self._total_of(metric, totals), samples
            possible = _call(metric, "is_possible", metric.is_possible, *given)
            require(bool(possible.all()), f"its statistics of {metric.name} are impossible")

    def try_out(self, classes: int, features: int) -> Tree:
        """Return statistics [...] of one sample; refuse metrics that do not keep the contract."""
        labels, mask = torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.bool)
        batch = Batch(torch.zeros(2, 3, features), torch.zeros(2, 3, classes), labels, mask)
        sample: Tree = {}
        for name, (metric, *_) in self.groups.items():
            sample[name] = _call(metric, "statistic", metric.statistic, batch)
            leaves = [*trees.leaves(sample[name])] if isinstance(sample[name], dict) else []
            fine = all(isinstance(leaf, Tensor) and leaf.shape[:1] == (2,) for leaf in leaves)
            message = f"metric {name}: statistic must return a dict of tensors [S, ...]"
            require(bool(leaves) and fine, message)
        for metric in self.metrics:
            value = _call(metric, "value", metric.value, self._total_of(metric, sample))
            wanted = (2, *[classes] * (DIMENSIONS[metric.form] - 1))
            require(
                isinstance(value, Tensor) and value.shape == wanted,
                f"metric {metric.name}: value must return a tensor of shape {wanted} for two "
                f"clients and {classes} classes (form = {metric.form!r})",
            )
        return trees.tree_map(lambda leaf: leaf[0], sample)


def _call(metric: Metric, hook: str, function: Any, *arguments: Any) -> Any:
    """Call a hook of a metric; say in one line what it raises."""
    try:
        return function(*arguments)
    except Exception as problem:
        reason = f"{type(problem).__name__}: {problem}"
        raise UserError(f"metric {metric.name}: {hook} fails with {reason}") from problem


def check_metric(kind: Any) -> None:
    """Refuse what is not a metric, or has no usable name."""
    is_metric = isinstance(kind, type) and issubclass(kind, Metric)
    require(is_metric, f"{kind!r} is not a metric: subclass fedfm.metrics.Metric")
    name = getattr(kind, "name", None)
    fine = isinstance(name, str) and name.isidentifier()
    require(fine, f"metric {kind.__name__}: {NAME_RULE}")
    require(
        kind.form in DIMENSIONS and kind.better in ("higher", "lower"),
        f"metric {name}: form must be one of {', '.join(DIMENSIONS)}, better 'higher' or 'lower'",
    )


def to_plain(value: Tensor) -> Any:
    """Return a value as plain numbers or nested lists; None stands for NaN."""
    return _without_nan(value.tolist())


def _without_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    return None if value != value else value  # NaN is not equal to itself


def to_plain_values(values: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return values by metric as plain numbers or nested lists."""
    return {name: to_plain(value) for name, value in values.items()}
