"""Estimate how long runs take, from configs and from finished runs; keep to a time budget."""

import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import inf
from statistics import median

from fedfm.config import Config, parse
from fedfm.core.errors import UserError, require
from fedfm.data import SOURCES
from fedfm.grid.store import Summary

MODELS = {"mlp": 0.001, "cnn": 0.01, "resnet18": 1.0, "resnet50": 35.0}
"""Multiplications per sample in units of ResNet18 on 32x32 images, in orders of magnitude."""
MARGIN = 1.1
"""Factor by which a job may take longer than similar jobs took."""
UNCOUNTED = 1.2
"""Seconds by the clock per second of rounds, for runs that recorded only their rounds."""
SAMPLES = 50_000
"""Assumed training samples of data sets whose size is unknown before they are read."""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def estimate_cost(config: Config) -> float:
    """Return the work of a run, in samples that a ResNet18 is trained on."""
    training, source = config.training, SOURCES.get(config.data.name)
    samples = (source and source.train) or SAMPLES
    passes = max(piece.step_cost for piece in config.composed.pieces)
    of_clients = (samples - training.server_validation) * (1 - training.validation)
    trained = of_clients * training.participation * training.epochs
    return trained * training.rounds * passes * MODELS.get(config.model.name, 1.0)


@cache
def _parse_kind_and_cost(config: str) -> tuple[tuple[str, str], float]:
    """Return (network, data set) and cost of a config in JSON; cached, since a grid asks often."""
    known = parse(json.loads(config))
    return (known.model.name, known.data.name), estimate_cost(known)


Kind = tuple[tuple[str, str], int]
"""(network, data set), and how many runs are trained together; 0: unknown."""


@dataclass(frozen=True)
class Speed:
    """Wall-clock seconds per run and unit of cost, measured on finished jobs."""

    rates: dict[Kind, float]

    @staticmethod
    def of(summaries: Iterable[Summary], device: str) -> "Speed":
        """Measure runs on such a device, with set-up, checkpoints and measures."""
        rates: dict[Kind, list[float]] = {}
        for each in summaries:
            if each.device == device and "seconds" in each.totals:
                try:
                    kind, work = _parse_kind_and_cost(json.dumps(each.config | {"seed": 0}))
                except UserError:  # an unknown method, or a config of another version
                    continue
                taken = each.clock or UNCOUNTED * each.totals["seconds"]
                rates.setdefault((kind, each.together), []).append(taken / work)
        return Speed({kind: median(several) for kind, several in rates.items()})

    def seconds(self, config: Config, runs: int = 1) -> float | None:
        """Estimate how long `runs` runs take together; None if nothing similar has been run.

        If only jobs with another number of runs are known, the slowest of them counts.
        """
        kind = config.model.name, config.data.name
        like = [rate for (other, _), rate in self.rates.items() if other == kind]
        rate = self.rates.get((kind, runs)) or max(like, default=None)
        return None if rate is None else MARGIN * rate * estimate_cost(config) * runs


@dataclass(frozen=True)
class Budget:
    """The time that may be spent, from now on."""

    end: float = inf
    """By the clock of all machines (seconds since 1970)."""
    whole: bool = False
    """Whether an unfinished job is lost, since nobody resumes it after the end."""

    @staticmethod
    def parse(text: str | None, whole: bool = False) -> "Budget":
        """Parse '25m', '90s' or '1h30m'; None means no limit."""
        if text is None:
            return Budget(whole=whole)
        parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise UserError(f"--budget is like 90s, 25m or 1h30m, not '{text}'")
        seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
        require(seconds > 0, "--budget must be above 0")
        return Budget(time.time() + seconds, whole)

    @property
    def limited(self) -> bool:
        """Return whether there is an end."""
        return self.end < inf

    @property
    def left(self) -> float:
        """Return the seconds until the end."""
        return self.end - time.time()


def format_duration(seconds: float) -> str:
    """Format a duration for people: '45 s', '12 min', '3 h 20 min'."""
    if seconds < 90:
        return f"{max(0, seconds):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
