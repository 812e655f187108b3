"""How long experiments take: an estimate from configs and from what has been run, and a budget."""

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
from fedfm.experiments.store import Summary

MODELS = {"mlp": 0.001, "cnn": 0.01, "resnet18": 1.0, "resnet50": 35.0}
"""Multiplications per sample in units of ResNet18 on 32x32 images, in orders of magnitude."""
METHODS = {"moon": 5 / 3}
"""Passes through the network per step in units of plain training; unnamed methods: 1."""
SAMPLES = 50_000
"""Training samples of data whose size is known only once they are read."""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def cost(config: Config) -> float:
    """The work of a run, in samples that a ResNet18 is trained on."""
    protocol, source = config.protocol, SOURCES.get(config.data.name)
    samples = (source and source.train) or SAMPLES
    passes = max(METHODS.get(piece, 1.0) for piece in config.method)
    trained = samples * (1 - protocol.validation) * protocol.participation * protocol.epochs
    return trained * protocol.rounds * passes * MODELS.get(config.model.name, 1.0)


@cache
def _kind_and_cost(config: str) -> tuple[tuple[str, str], float]:
    """(network, data set) and cost of a config in JSON, which a grid asks for again and again."""
    known = parse(json.loads(config))
    return (known.model.name, known.data.name), cost(known)


@dataclass(frozen=True)
class Speed:
    """Seconds per unit of cost, by network and data set, as finished runs took."""

    rates: dict[tuple[str, str], float]

    @staticmethod
    def of(summaries: Iterable[Summary], device: str) -> "Speed":
        """What runs on such a device took."""
        found: dict[tuple[str, str], list[float]] = {}
        for each in summaries:
            if each.device == device and "seconds" in each.totals:
                kind, work = _kind_and_cost(json.dumps(each.config | {"seed": 0}))
                found.setdefault(kind, []).append(each.totals["seconds"] / work)
        return Speed({kind: median(rates) for kind, rates in found.items()})

    def seconds(self, config: Config) -> float | None:
        """How long a run should take; None if nothing like it has been run."""
        rate = self.rates.get((config.model.name, config.data.name))
        return None if rate is None else rate * cost(config)


@dataclass(frozen=True)
class Budget:
    """The time that may be spent, from now on."""

    end: float = inf
    """By the clock of all machines (seconds since 1970)."""

    @staticmethod
    def parse(text: str | None) -> "Budget":
        """'25m', '90s', '1h30m'; no text is no limit."""
        if text is None:
            return Budget()
        parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise UserError(f"--budget is like 90s, 25m or 1h30m, not '{text}'")
        seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
        require(seconds > 0, "--budget must be above 0")
        return Budget(time.time() + seconds)

    @property
    def limited(self) -> bool:
        """Whether there is an end."""
        return self.end < inf

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.end - time.time()


def in_words(seconds: float) -> str:
    """A duration for people: '45 s', '12 min', '3 h 20 min'."""
    if seconds < 90:
        return f"{max(0, seconds):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
