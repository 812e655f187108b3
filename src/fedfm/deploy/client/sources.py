"""The sources of a client's data: the [data] section of its site file."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedfm import data
from fedfm.config import Config
from fedfm.core.errors import UserError, require
from fedfm.data import partition as partitions
from fedfm.data.dataset import Dataset
from fedfm.data.text import LENGTH, read_text


def _resolve_path(path: Path, info: ValidationInfo) -> Path:
    return Path((info.context or {}).get("folder", "")) / path.expanduser()


SitePath = Annotated[Path, AfterValidator(_resolve_path)]
"""A path in a site file, relative to the folder that the validation context names."""


class _Source(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    def load(self, config: Config) -> Dataset:
        """Return the client's data."""
        raise NotImplementedError

    def paths(self, config: Config) -> list[Path]:
        """Return the files and folders that the data are read from."""
        return [value for value in vars(self).values() if isinstance(value, Path)]


class FolderSource(_Source):
    """Images in one folder per class, scaled to `size` x `size` if `size` is given."""

    source: Literal["folder"] = "folder"
    path: SitePath
    size: int | None = Field(default=None, ge=1)

    def load(self, config: Config) -> Dataset:
        """Return the images."""
        return data.load("folder", path=self.path, size=self.size)


class _TableSource(_Source):
    """A table with a column of class names; the keys are those of a config.

    All clients need the same categories and should fill gaps alike, so both come from [data] of the
    federation's config, unless the site file gives them.
    """

    path: SitePath
    label: str | None = None
    drop: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    fill: Literal["mean"] | dict[str, float] | None = None
    categories: dict[str, tuple[str, ...]] | None = None
    merge: dict[str, tuple[str, ...]] | None = None

    def load(self, config: Config) -> Dataset:
        """Return the table; fill = "mean" takes the means of the client's own rows."""
        options: dict[str, Any] = self.model_dump(exclude={"source"}, exclude_none=True)
        agreed = {
            key: value
            for key in ("fill", "categories")
            if isinstance(value := getattr(config.data, key), dict)
        }
        source = type(self).model_fields["source"].default
        return data.load(source, **{"categories": ()} | agreed | options)


class CsvSource(_TableSource):
    """A CSV or TSV file."""

    source: Literal["csv"] = "csv"
    header: bool = True


class ParquetSource(_TableSource):
    """A Parquet file."""

    source: Literal["parquet"] = "parquet"


class NpzSource(_Source):
    """Arrays in MedMNIST's layout."""

    source: Literal["npz"] = "npz"
    path: SitePath

    def load(self, config: Config) -> Dataset:
        """Return the arrays."""
        return data.load("npz", path=self.path)


class TextSource(_Source):
    """A table with a column of texts and a column of class names.

    The federation's config gives the words that have an id, and the length of a text.
    """

    source: Literal["text"] = "text"
    path: SitePath
    text: str | None = None
    label: str | None = None
    header: bool = True
    test_path: SitePath | None = None

    def load(self, config: Config) -> Dataset:
        """Return the texts with ids of all their words; `apply_agreement` translates these."""
        options: dict[str, Any] = self.model_dump(exclude={"source"}, exclude_none=True)
        length = config.data.length or LENGTH
        return read_text(Path(), **options, vocabulary=None, length=length)


class PythonSource(_Source):
    """The data set that a function of yours returns; its module may be in the folder `path`."""

    source: Literal["python"] = "python"
    entry: str
    path: SitePath = Path()

    @field_validator("entry")
    @classmethod
    def _check_entry(cls, entry: str) -> str:
        module, _, function = entry.partition(":")
        named = all(part.isidentifier() for part in [*module.split("."), function])
        require(named, f"data.entry must be 'package.module:function', not '{entry}'")
        return entry

    def paths(self, config: Config) -> list[Path]:
        """Return nothing: only the function knows what it reads."""
        return []

    def load(self, config: Config) -> Dataset:
        """Return the function's data set."""
        with _importable(self.path):
            function = self._function()
            try:
                dataset = function()
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise UserError(f"data.entry '{self.entry}' failed: {reason}") from error
        require(
            isinstance(dataset, Dataset),
            f"data.entry '{self.entry}' returned a {type(dataset).__name__}; "
            "it must return a fedfm.data.Dataset",
        )
        return dataset  # type: ignore[no-any-return]  # required above

    def _function(self) -> Callable[[], Any]:
        module, _, name = self.entry.partition(":")
        try:
            function = getattr(importlib.import_module(module), name, None)
        except Exception as error:
            raise UserError(
                f"data.entry: '{module}' cannot be imported ({type(error).__name__}: {error}); "
                f"put {module.split('.')[0]}.py into {self.path} or install the package"
            ) from error
        require(function is not None, f"data.entry: '{module}' has no function '{name}'")
        require(callable(function), f"data.entry: '{self.entry}' is not a function")
        return function  # type: ignore[return-value]  # required above


class ShareSource(_Source):
    """One part of the config's data set, for trying a federation on one machine.

    Training samples are partitioned as in the simulation. Each client gets the test samples that
    belong to it or, if these belong to nobody, every `of`-th one, so that all clients together have
    the whole test set.
    """

    source: Literal["share"] = "share"
    share: int = Field(ge=0)
    of: int = Field(ge=1)

    @model_validator(mode="after")
    def _check_share(self) -> Self:
        last = self.of - 1
        require(self.share <= last, f"data.share runs from 0 to {last} (of - 1), not {self.share}")
        return self

    def load(self, config: Config) -> Dataset:
        """Return part `share`, normalised as the whole data set."""
        from fedfm.run.prepare import follow_data, load_data

        config, whole = follow_data(config, load_data(config))
        clients = config.training.clients
        require(
            self.of == clients,
            f"a share of {self.of}, but the config divides its data among {clients} clients "
            f"(training.clients): share:K/{clients}, or of = {clients} in the site file",
        )
        whole, shards = partitions.divide(whole, clients, config.partition, config.seed)
        train = replace(whole.train.subset(torch.from_numpy(shards[self.share])), clients=None)
        test = replace(whole.test.subset(self._find_tests(whole)), clients=None)
        return replace(whole, train=train, test=test, clients=())

    def paths(self, config: Config) -> list[Path]:
        """Return the files that the config names."""
        named = (config.data.path, config.data.test_path)
        return [Path(path).expanduser() for path in named if path]

    def _find_tests(self, whole: Dataset) -> torch.Tensor:
        """Return the test samples that belong to the client, or else every `of`-th one."""
        if whole.test.clients is not None:
            return (whole.test.clients == self.share).nonzero().flatten()
        return torch.arange(self.share, len(whole.test), self.of)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Make the modules in `folder` importable inside the block."""
    place = str(folder.resolve())
    sys.path.insert(0, place)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(place)
