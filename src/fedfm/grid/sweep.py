"""Sweeps: one config with several values of some settings, as a recipe that the runner knows."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from fedfm.config import Config, full_key, load_config, plain_value
from fedfm.core.errors import require
from fedfm.grid.jobs import Job, plan_jobs
from fedfm.grid.recipe import Cell, Recipe
from fedfm.grid.store import Summary
from fedfm.metrics import Accuracy

PREFIX = "sweep "
"""How the names of sweeps begin among the recipes of results."""
LOG_RATIO = 10
"""A range of positive numbers is searched on a logarithmic scale if its ends are so far apart."""


@dataclass(frozen=True)
class Span:
    """A range of numbers to search in, both ends included."""

    low: float
    high: float

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are meant."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def log(self) -> bool:
        """Whether the scale is logarithmic."""
        return self.low > 0 and self.high / self.low >= LOG_RATIO


@dataclass(frozen=True)
class Axis:
    """A setting, and its values as the user wrote them, or the range to search in."""

    key: str
    values: tuple[str, ...]
    span: Span | None = None

    @staticmethod
    def parse(text: str) -> "Axis":
        """Parse 'key=1,10,50' or 'key=0.001..0.1'."""
        key, equals, values = (part.strip() for part in text.partition("="))
        require(bool(equals), f"a setting is key=value or key=value,value, not '{text}'")
        require(full_key(key) != "seed" or "," not in values, "say with --seeds how many seeds")
        span = _parse_span(values)
        several = split_values(values)
        require(all(several), f"a value is missing in '{text}'")
        return Axis(full_key(key), () if span else tuple(dict.fromkeys(several)), span)

    @property
    def swept(self) -> bool:
        """Whether there is more than one value."""
        return self.span is not None or len(self.values) > 1


def split_values(text: str) -> list[str]:
    """Split at commas outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        depth += 0 if quote else (char in "[{") - (char in "]}")
        if char == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def _parse_span(text: str) -> Span | None:
    """Return the range that 'low..high' means; None if it is no range of numbers."""
    ends = re.fullmatch(r"(.+?)\.\.(.+)", text)
    numbers = [plain_value(end) for end in ends.groups()] if ends else []
    if not numbers or not all(type(number) in (int, float) for number in numbers):
        return None
    low, high = numbers
    require(low < high, f"a range is low..high, not {text}")
    return Span(low, high)


@dataclass(frozen=True)
class Sweep:
    """A config, its settings with one value or several, and how many seeds each cell has."""

    name: str
    source: str
    axes: tuple[Axis, ...]
    seeds: int = 1

    def __post_init__(self) -> None:
        """Refuse a sweep with nothing to compare."""
        require(
            any(axis.swept for axis in self.axes),
            "nothing to sweep: give a setting several values, as in training.lr=0.01,0.1",
        )
        keys = [axis.key for axis in self.axes]
        twice = [key for key in dict.fromkeys(keys) if keys.count(key) > 1]
        require(not twice, f"{', '.join(twice)} is given twice: write all its values at once")

    @property
    def swept(self) -> list[Axis]:
        """The settings that have more than one value."""
        return [axis for axis in self.axes if axis.swept]

    def make_grid(self) -> list[Cell]:
        """Return a cell for every combination of values."""
        ranges = [axis.key for axis in self.axes if axis.span]
        require(not ranges, f"{', '.join(ranges)}: a range can only be searched, with --search N")
        return [
            self.make_cell(dict(zip((axis.key for axis in self.swept), values, strict=True)))
            for values in product(*(axis.values for axis in self.swept))
        ]

    def make_cell(self, chosen: Mapping[str, str]) -> Cell:
        """Return the cell with the chosen values of the swept settings."""
        changes = (f"{axis.key}={chosen.get(axis.key) or axis.values[0]}" for axis in self.axes)
        config = load_config(self.source, changes)
        require(
            config.training.validates,
            "settings are compared on validation samples, but validation = 0: hold out some "
            "samples",
        )
        require(
            "training.select_by" not in chosen,
            "all settings are compared by one metric: give select_by one value",
        )
        labels = {key: f"{self._shorten(key)} = {value}" for key, value in chosen.items()}
        return Cell(labels, config.as_toml())

    def _shorten(self, key: str) -> str:
        """Return the last part of a key if it tells the swept keys apart."""
        last = [axis.key.rsplit(".", 1)[-1] for axis in self.swept]
        short = key.rsplit(".", 1)[-1]
        return short if last.count(short) == 1 else key

    def make_recipe(self, cells: Sequence[Cell]) -> Recipe:
        """Return the recipe of some cells: the last setting across, the others down."""
        keys = [axis.key for axis in self.swept]
        down = len(keys) if any(axis.span for axis in self.swept) else max(1, len(keys) - 1)
        return Recipe(
            f"{PREFIX}{self.name}: {', '.join(keys)}",
            f"Sweep of {self.source}",
            axes={key: {cell.labels[key]: {} for cell in cells} for key in keys},
            rows=tuple(keys[:down]),
            columns=tuple(keys[down:]),
            measures=(f"val_{select_metric(cells[0].resolved)}",),
            seeds=self.seeds,
            cells=tuple(cells),
        )

    def plan(self, cells: Sequence[Cell]) -> list[Job]:
        """Return the jobs of some cells; the seeds of each begin with the config's."""
        first = cells[0].resolved.seed
        return plan_jobs(self.make_recipe(cells), False, range(first, first + self.seeds), (), ())


def select_metric(config: Config) -> str:
    """Return the metric by which settings are compared: the one that chooses the best round."""
    return config.training.select_by or Accuracy.name


def is_lower_better(config: Config) -> bool:
    """Return whether lower values of that metric are better."""
    metric = select_metric(config)
    return any(m.better == "lower" for m in config.measures.metrics if m.name == metric)


def mean_of(job: Job, summaries: Iterable[Summary]) -> float | None:
    """Return a job's mean validation value; None unless all of its seeds have one."""
    name = f"val_{select_metric(job.config)}"
    values: dict[tuple[str, int], float | None] = {
        each.key: {"val_accuracy": each.val_accuracy, **each.metrics}.get(name)
        for each in summaries
        if each.key in job.keys
    }
    known = [value for value in values.values() if value is not None]
    return fmean(known) if len(known) == len(job.seeds) else None


def find_best(jobs: Collection[Job], summaries: Sequence[Summary]) -> Job | None:
    """Return the job with the best mean validation value; of equals the first."""
    means = [(job, mean) for job in jobs if (mean := mean_of(job, summaries)) is not None]
    if not means:
        return None
    choose = min if is_lower_better(means[0][0].config) else max
    return choose(means, key=lambda pair: pair[1])[0]
