"""Load the data and build the model that a config names, and find its device."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from fedfm import data, models
from fedfm.config import Config
from fedfm.config.training import Training
from fedfm.core.errors import require
from fedfm.core.rng import torch_seed
from fedfm.core.torchrun import is_launched, local_rank
from fedfm.data.dataset import Dataset
from fedfm.data.partition import assign, read_clients
from fedfm.engine.processes import connect
from fedfm.models.weights import digest_file, freeze_layers, load_weights

SMALL = 50_000
"""A network with fewer parameters trains on one thread: a second one hardly helps."""
LARGEST_BLOCK = 31 * 2**20
"""Bytes; the allocator of Linux does not learn from a block of more than 32 MiB."""


def load_data(config: Config, download: bool = True) -> Dataset:
    """Load the data set that a config names."""
    options = config.data.model_dump(exclude={"name"}, exclude_none=True)
    for key in ("dir", "path", "test_path", "words"):
        if key in options:
            options[key] = Path(options[key]).expanduser()
    if config.data.augment is not None:
        options["augment"] = config.data.augment  # dumped as a table
    with connect().take_turns():  # the first one may download
        return data.load(config.data.name, download=download, **options)


def follow_all(
    configs: Sequence[Config], dataset: Dataset | None = None
) -> tuple[list[Config], Dataset | None]:
    """Do `follow_data` for configs that differ only in their seeds; load the data if need be."""
    if not configs[0].partition.given:
        return [*configs], dataset
    first, assigned = follow_data(configs[0], dataset or load_data(configs[0]))
    return [first.with_seed(config.seed) for config in configs], assigned


def follow_data(config: Config, dataset: Dataset) -> tuple[Config, Dataset]:
    """Return the config with the number of clients that the data have, if these decide it.

    A number that is not the default is kept; the partition refuses it if it is wrong. If the
    config names a file with the clients of the samples, return the data with these clients.
    """
    partition = config.partition
    if partition.kind == "own" and partition.file and partition.digest != dataset.digest:
        dataset = assign(dataset, read_clients(Path(partition.file).expanduser()))
        known = replace(partition, digest=partition.digest or dataset.digest)
        config = config.model_copy(update={"partition": known})
    decided = partition.given and len(dataset.clients) > 0
    if decided and config.training.clients == Training.clients:
        config = config.with_clients(len(dataset.clients))
    return config, dataset


def build_model(
    config: Config, dataset: models.Described, pretrained: bool = True
) -> torch.nn.Module:
    """Build the model that a config names; its weights are pretrained or depend on the seed."""
    chosen = config.model
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch_seed(config.seed, "model"))
        model = models.build_for(dataset, chosen.name, **chosen.options)
    if chosen.weights and pretrained:
        path = Path(chosen.weights).expanduser()
        require(
            digest_file(path) == chosen.weights_digest,
            f"model.weights: {path} has changed since the config was recorded: restore it, or "
            "start another run",
        )
        load_weights(model, path)
    freeze_layers(model, chosen.freeze or ())
    return model


def keep_freed_memory() -> None:
    """Let the process keep the memory that a step frees, because the next step needs it again.

    The allocator of Linux returns memory to the system as soon as about twice the largest block
    that was ever freed is unused, up to twice 32 MiB. So this frees one large block, which nobody
    has written to: it costs nothing. Without it, small networks spend up to half of a step on
    getting the same memory again.
    """
    torch.empty(LARGEST_BLOCK, dtype=torch.uint8)


@contextmanager
def use_threads(wanted: int, model: torch.nn.Module) -> Iterator[None]:
    """Set the number of CPU threads inside the block; 0 is one for a small network."""
    keep_freed_memory()
    before = torch.get_num_threads()
    if not wanted and models.count_parameters(model) < SMALL:
        wanted = 1
    torch.set_num_threads(wanted or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_of(config: Config) -> torch.device:
    """Return the device that a config runs on: of several GPUs the one of this process."""
    has_gpu = torch.cuda.is_available()
    require(
        config.device != "cuda" or has_gpu,
        "device = cuda, but PyTorch finds no NVIDIA GPU here; use device=auto or device=cpu",
    )
    if not has_gpu or config.device == "cpu":
        return torch.device("cpu")
    gpu = f":{local_rank() % torch.cuda.device_count()}" if is_launched() else ""
    return torch.device(f"cuda{gpu}")
