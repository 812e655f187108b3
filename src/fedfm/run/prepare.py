"""What a config names, put together: its data, its model, where it runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch

from fedfm import data, models
from fedfm.config import Config
from fedfm.core.errors import require
from fedfm.core.rng import torch_seed
from fedfm.data.dataset import Dataset

SMALL = 50_000
"""Parameters of a network below which a second thread gains little, and on a busy machine loses."""


def load_data(config: Config, download: bool = True) -> Dataset:
    """The data set that a config names."""
    options = config.data.model_dump(exclude={"name"}, exclude_none=True)
    for key in ("dir", "path"):
        if key in options:
            options[key] = Path(options[key]).expanduser()
    return data.load(config.data.name, download=download, **options)


class Described(Protocol):
    """Anything that says what its inputs and classes are."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        ...

    @property
    def classes(self) -> Sequence[str]:
        """Their names."""
        ...


def build_model(config: Config, dataset: Described) -> torch.nn.Module:
    """The model that a config names, initialised from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(config.seed, "model"))
        return models.build(
            config.model.name,
            shape=dataset.shape,
            classes=len(dataset.classes),
            **config.model.options,
        )


@contextmanager
def use_threads(wanted: int, model: torch.nn.Module) -> Iterator[None]:
    """Set the number of CPU threads; small networks want one, above all on a busy machine."""
    before = torch.get_num_threads()
    if not wanted and models.count_parameters(model) < SMALL:
        wanted = 1
    torch.set_num_threads(wanted or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_of(config: Config) -> torch.device:
    """Where a config runs."""
    there = torch.cuda.is_available()
    require(
        config.device != "cuda" or there,
        "device = cuda, but PyTorch finds no NVIDIA GPU here; use device=auto or device=cpu",
    )
    return torch.device("cuda" if there and config.device != "cpu" else "cpu")
