"""Whether MOON gains from frozen models in training mode, in which code may happen to leave them.

    python bench/moon.py digits [--set rounds=10 ...]

Their batch norms then use the statistics of the batch, as those of the model that is trained do,
and not the running ones. Everything else is equal: seed, partition, initial model, batches.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from fedfm import simulate
from fedfm.config import load_config
from fedfm.core.trees import Tree, leaves, tree_map
from fedfm.engine.networks import BoundNetwork
from fedfm.methods import Model, Moon
from fedfm.run.prepare import build_model, device_of, load_data
from fedfm.run.records import Result

EVERY = 5
"""Rounds between two columns."""


@dataclass(frozen=True)
class InTraining(Moon):
    """MOON whose received model is one for each client, each with a batch of its own."""

    name = "moon-in-training"

    def views(self, held: Tree) -> dict[str, Model]:
        """Both frozen models [S, ...]."""
        clients = len(next(leaves(held["previous"])))
        received = tree_map(
            lambda leaf: leaf.expand(clients, *leaf.shape[1:]).clone(), held["received"]
        )
        return {"received": Model(**received), "previous": Model(**held["previous"])}


@contextmanager
def frozen_in_training() -> Iterator[None]:
    """Frozen networks are not set to evaluation mode."""

    def frozen(net: BoundNetwork, name: str, model: Model) -> BoundNetwork:
        companion = net.companion(name, model.shared)
        companion.bind(model)
        companion.module.train()
        return companion

    with patch.object(BoundNetwork, "frozen", frozen):
        yield


def played(source: str, overrides: list[str], kind: type[Moon]) -> Result:
    """MOON of one kind, with the config's settings of MOON."""
    config = load_config(source, [*overrides, "method=moon"])
    data = load_data(config)
    settings: dict[str, Any] = config.method["moon"]
    return simulate(
        build_model(config, data).to(device_of(config)),
        data,
        kind(**settings),
        partition=config.partition,
        training=config.training,
        seed=config.seed,
        executor=config.executor,
        precision=config.precision,
    )


def shown(results: dict[str, Result]) -> Table:
    """Test accuracy in percent, now and then and of the best round by validation."""
    rounds = len(next(iter(results.values())).rounds)
    columns = range(EVERY, rounds + 1, EVERY)
    table = Table("frozen models", *(f"round {n}" for n in columns), "best")
    for mode, result in results.items():
        found = [100 * result.rounds[n - 1].test_accuracy for n in columns]
        cells = [*found, 100 * result.test_accuracy]
        table.add_row(mode, *(f"{cell:.2f}" for cell in cells))
    return table


def main() -> None:
    """Both modes, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="?", default="digits")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    results = {"in evaluation mode": played(given.config, given.set, Moon)}
    with frozen_in_training():
        results["in training mode"] = played(given.config, given.set, InTraining)
    Console(width=110).print(shown(results))


if __name__ == "__main__":
    main()
