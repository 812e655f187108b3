"""Simulations from Python: what `import fedfm` offers."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import nn

from fedfm.config import Config, make_config, parse
from fedfm.config.deployment import Deployment
from fedfm.config.training import Training
from fedfm.core.errors import require
from fedfm.data.concatenate import Clients, are_clients, join
from fedfm.data.dataset import Dataset
from fedfm.data.partition import Partition, assign
from fedfm.losses import LossFunction
from fedfm.methods import Piece
from fedfm.metrics import Metric
from fedfm.privacy import Privacy
from fedfm.run.bookkeeper import Watcher
from fedfm.run.prepare import device_of, load_data
from fedfm.run.records import Result
from fedfm.run.runner import run_configs

Table = Mapping[str, Any]
"""A section of a config, as a TOML file has it."""


def simulate(
    model: nn.Module | str | Table,
    data: Dataset | Clients | str | Table,
    method: Piece | Iterable[Piece] | str | Sequence[str] | Table,
    *,
    partition: Partition | Table | str | Sequence[Any] | ArrayLike | None = None,
    training: Training | Table | None = None,
    loss: LossFunction | None = None,
    deployment: Deployment | Table | None = None,
    privacy: Privacy | Table | None = None,
    metrics: Sequence[Metric | str] | None = None,
    seed: int = 0,
    executor: str = "auto",
    device: str = "auto",
    precision: str = "auto",
    client_states: str = "auto",
    threads: int = 0,
    checkpoint_every: int = 1,
    out: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    extend: Path | str | None = None,
    watch: Watcher | None = None,
) -> Result:
    """Run a federation of simulated clients and return its rounds and its best model.

    The arguments are the keys of a config, as objects or in the words of a TOML file:
    `FedFM(strength=10)` or `{"fedfm": {"strength": 10}}`, a `Dataset` or `"digits"`.

    Args:
        model: A network with forward(x [B, ...]) -> (features [B, d], logits [B, C]), which is not
            changed; or a model's name, or a table with its name and options.
        data: A data set, one for each client (by name or in order, see `fedfm.data.join`), a
            source's name, or a table with its name and options.
        method: A piece, several pieces to compose, their names, or a table of names and settings.
        partition: How the training samples are divided among the clients: a kind, or settings;
            index lists, one for each client; or the client of each training sample (see
            `fedfm.data.assign`). Data sets for each client are not divided further by default.
        training: Clients, rounds, local epochs, learning rate and so on.
        loss: A function of logits [S, B, C] and labels [S, B] that returns a loss for each sample
            [S, B] or client [S], in place of cross-entropy; it is recorded by name and digest.
        deployment: Only its `minimum` matters in a simulation, and only with `privacy`.
        privacy: Clipping and noise; without it clients send exact answers.
        metrics: Metrics or their names: what is measured besides accuracy.
        seed: Draws everything except the first weights of a network that you pass.
        executor: How clients are packed onto the machine; "auto" measures what is fastest.
        device: "cpu", "cuda" or "auto"; with "auto" your network is trained where it lies.
        precision: "fp32", "tf32", "bf16" or "auto".
        client_states: Where the clients' states are held: "memory", "disk" or "auto".
        threads: CPU threads; 0 chooses by the size of the network.
        checkpoint_every: Rounds between two checkpoints.
        out: A folder for the run's files; without it nothing is written.
        resume: Whether to continue from the last checkpoint in `out`.
        overwrite: Whether to delete a run in `out` and start again, as after one that diverged.
        extend: The folder of a finished run with fewer rounds and otherwise the same settings; the
            new run in `out` goes on from it, as if it had had all rounds from the start.
        watch: Called with the `RoundRecord` of every round; of several processes that torchrun
            started, only in the first one.

    Returns:
        The rounds, and the reported model: by default that of the round with the best mean
        validation accuracy.

    Raises:
        UserError: If a setting is wrong; the message says what to do.

    Examples:
        >>> from fedfm import FedAvg, Partition, Training, simulate
        >>> result = simulate(
        ...     "mlp",
        ...     "digits",
        ...     FedAvg(),
        ...     partition=Partition("iid"),
        ...     training=Training(clients=3, rounds=2, epochs=1),
        ...     executor="loop",
        ... )
        >>> [record.round for record in result.rounds]
        [1, 2]
        >>> result.totals.floats_up  # 2 rounds, 3 clients, 17,226 parameters
        103356
    """
    data, dataset, partition = _bring_data(data, partition)
    settings = {
        **{"partition": partition, "training": training, "deployment": deployment},
        **{"privacy": privacy, "seed": _check_seed(seed), "executor": executor, "device": device},
        **{"precision": precision, "client_states": client_states, "threads": threads},
        **{"metrics": metrics, "checkpoint_every": checkpoint_every},
    }
    require(not isinstance(model, type), "the model must be a torch.nn.Module, not its class")
    config = make_config(method, model=model, data=data, loss=loss, **settings)
    networks = [_place(model, config)] if isinstance(model, nn.Module) else []
    require(not extend or (bool(out) and not resume), "extend makes a new run: give its folder out")
    return run_configs(
        [config],
        outs=[Path(out) if out else None],
        watchers=[watch],
        data=dataset,
        networks=networks,
        resume=resume,
        overwrite=overwrite,
        parents=[Path(extend) if extend else None],
    )[0]


def simulate_seeds(
    build: Callable[[int], nn.Module] | str | Table,
    data: Dataset | Clients | str | Table,
    method: Piece | Iterable[Piece] | str | Sequence[str] | Table,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    out: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    **settings: Any,
) -> list[Result]:
    """Run several seeds of one config as one job: faster than one by one, equal up to rounding.

    Args:
        build: A function that returns the network of a seed, or a model's name or table.
        data: As in `simulate`.
        method: As in `simulate`.
        seeds: One run for each.
        out: A folder that gets a folder seed-N for each seed.
        resume: Whether to continue from the last checkpoints in `out`.
        overwrite: Whether to delete runs of these seeds in `out` and start again.
        settings: Further arguments of `simulate`.

    Returns:
        One result for each seed, in the order of `seeds`.

    Examples:
        >>> from fedfm import FedAvg, Training, simulate_seeds
        >>> few = Training(clients=3, rounds=1, epochs=1)
        >>> results = simulate_seeds(
        ...     "mlp", "digits", FedAvg(), seeds=[0, 1], training=few, executor="loop"
        ... )
        >>> [result.seed for result in results]
        [0, 1]
    """
    require(len(seeds) > 0, "simulate_seeds needs at least one seed")
    require(
        not isinstance(build, nn.Module),
        "simulate_seeds builds a model for each seed: give a function of the seed, not a model",
    )
    data, dataset, partition = _bring_data(data, settings.pop("partition", None))
    settings["partition"] = partition
    networks = [build(_check_seed(seed)) for seed in seeds] if callable(build) else []
    named: Sequence[Any] = networks or [build] * len(seeds)
    configs = [
        make_config(method, model=model, data=data, seed=_check_seed(seed), **settings)
        for seed, model in zip(seeds, named, strict=True)
    ]
    return run_configs(
        configs,
        outs=[Path(out) / f"seed-{seed}" if out else None for seed in seeds],
        data=dataset,
        networks=networks,
        resume=resume,
        overwrite=overwrite,
    )


def _bring_data(data: Any, partition: Any) -> tuple[Any, Dataset | None, Any]:
    """Return the data and the partition as a config takes them, and between them the data set.

    The data set is None if the config's is to be loaded as it is.
    """
    partition = {"kind": partition} if isinstance(partition, str) else partition
    if are_clients(data):
        data, partition = join(data), Partition("natural") if partition is None else partition
    if _is_given(partition):
        loaded = data if isinstance(data, Dataset) else _load(data)
        dataset = assign(loaded, partition)
        return data, dataset, Partition("own", digest=dataset.digest)
    return data, data if isinstance(data, Dataset) else None, partition


def _load(data: str | Table) -> Dataset:
    """Load the data set of a source's name, or of a table with its name and options."""
    return load_data(parse({"data": {"name": data} if isinstance(data, str) else data}))


def _is_given(partition: Any) -> bool:
    """Return whether a partition is index lists or clients of samples, and not settings."""
    if isinstance(partition, Mapping):
        return any(np.ndim(value) > 0 for value in partition.values())
    return partition is not None and not isinstance(partition, Partition)


def _place(model: nn.Module, config: Config) -> nn.Module:
    """Return the model where a config wants it."""
    return model if config.device == "auto" else copy.deepcopy(model).to(device_of(config))


def _check_seed(seed: int) -> int:
    fine = isinstance(seed, Integral) and not isinstance(seed, bool) and seed >= 0
    require(fine, f"a seed is a whole number from 0 on, not {seed!r}")
    return int(seed)
