"""Simulations from Python: what `import fedfm` offers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

from torch import nn

from fedfm.config.experiment import Experiment
from fedfm.config.training import Training
from fedfm.core.errors import require
from fedfm.data.dataset import Dataset
from fedfm.data.partition import Partition
from fedfm.methods import Piece, compose
from fedfm.run.records import Result
from fedfm.run.runner import Run, Watcher, run_together


def simulate(
    model: nn.Module,
    data: Dataset,
    method: Piece | Iterable[Piece],
    *,
    partition: Partition | None = None,
    training: Training | None = None,
    seed: int = 0,
    executor: str = "auto",
    precision: str = "auto",
    client_states: Literal["auto", "memory", "disk"] = "auto",
    out: Path | str | None = None,
    resume: bool = False,
    config: dict[str, Any] | None = None,
    watch: Watcher | None = None,
) -> Result:
    """Run a federation of simulated clients; the result is the best model by validation.

    `model` returns (features, logits) (see `fedfm.models`), is left as it is, and is trained where
    it lies: move it to a GPU first to train there. With `out` the run keeps its files there, a
    checkpoint after every round included; `resume` goes on from the last one. `watch` is called
    after every round. `config` is what the folder records about the run: by default the
    arguments. What clients keep between rounds is held in memory or on disk; "auto" takes the disk
    where it may come to more than a gigabyte. For `executor` and `precision` see docs/engine.md.
    """
    require(isinstance(model, nn.Module), "the model must be a torch.nn.Module, not its class")
    chosen = {"executor": executor, "precision": precision, "client_states": client_states}
    experiment = _experiment(data, method, partition, training, seed=_checked(seed), **chosen)
    run = Run(model, experiment, Path(out) if out else None, config, watch)
    return run_together([run], data, resume)[0]


def simulate_seeds(
    build: Callable[[int], nn.Module],
    data: Dataset,
    method: Piece | Iterable[Piece],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    partition: Partition | None = None,
    training: Training | None = None,
    executor: str = "auto",
    precision: str = "auto",
    out: Path | str | None = None,
    resume: bool = False,
) -> list[Result]:
    """Several seeds of one experiment as one job: faster than one by one, with the same results.

    `build` gives the model of a seed. With `out` each seed has a folder seed-N of its own there.
    """
    require(len(seeds) > 0, "simulate_seeds needs at least one seed")
    require(
        not isinstance(build, nn.Module),
        "simulate_seeds builds a model for each seed: give a function of the seed, not a model",
    )
    chosen = {"executor": executor, "precision": precision}
    experiment = _experiment(data, method, partition, training, **chosen)
    runs = [
        Run(
            build(seed),
            replace(experiment, seed=_checked(seed)),
            Path(out) / f"seed-{seed}" if out else None,
        )
        for seed in seeds
    ]
    return run_together(runs, data, resume)


def _checked(seed: int) -> int:
    fine = isinstance(seed, Integral) and seed >= 0
    require(fine, f"a seed is a whole number from 0 on, not {seed!r}")
    return int(seed)


def _experiment(
    data: Dataset,
    method: Piece | Iterable[Piece],
    partition: Partition | None,
    training: Training | None,
    **settings: Any,
) -> Experiment:
    """Refuse what a config would name: here the things themselves are wanted."""
    require(
        isinstance(data, Dataset), "data must be a fedfm.data.Dataset, e.g. fedfm.data.load(NAME)"
    )
    pieces = [*method] if isinstance(method, Iterable) else [method]
    require(
        all(isinstance(piece, Piece) for piece in pieces),
        "the method must be made of pieces, e.g. FedFM() or [FedProx(mu=0.1), FedFM()]",
    )
    for name, given, kind in (
        ("partition", partition, Partition),
        ("training", training, Training),
    ):
        known = given is None or isinstance(given, kind)
        require(known, f"{name} must be a fedfm.{kind.__name__}(...), not {given!r}")
    return Experiment(compose(pieces), partition or Partition(), training or Training(), **settings)
