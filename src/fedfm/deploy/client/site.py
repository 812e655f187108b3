"""A client's site file: its name in the federation, and where its data are."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from fedfm.config import Config
from fedfm.config.validation import validate
from fedfm.core.errors import UserError, require, unknown_name_error
from fedfm.core.trees import Tree
from fedfm.data.columns import name_inputs
from fedfm.data.dataset import Dataset
from fedfm.deploy.agreement import Introduction, introduce
from fedfm.deploy.client.sources import (
    CsvSource,
    FolderSource,
    NpzSource,
    ParquetSource,
    PythonSource,
    ShareSource,
    SitePath,
    TextSource,
)
from fedfm.deploy.normalisation import compute_declared_moments, compute_moments
from fedfm.deploy.validation import ClientName

SOURCES: dict[str, type[BaseModel]] = {
    "folder": FolderSource,
    "csv": CsvSource,
    "parquet": ParquetSource,
    "npz": NpzSource,
    "text": TextSource,
    "python": PythonSource,
    "share": ShareSource,
}


def _resolve_config(source: str, info: ValidationInfo) -> str:
    path = Path((info.context or {}).get("folder", "")) / Path(source).expanduser()
    return str(path) if path.suffix == ".toml" or path.is_file() else source


class Site(BaseModel):
    """The settings of one client."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    name: ClientName
    """The client's name, unique in the federation."""
    out: SitePath = Field(default_factory=lambda known: Path("runs") / known.get("name", ""))
    """The folder for the client's state, the model it received and the final model."""
    config: Annotated[str, AfterValidator(_resolve_config)] | None = None
    """The config that the client expects: a file or a built-in name; None: any config."""
    threads: int = Field(default=0, ge=0)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    message_limit: int = Field(default=1024, ge=1)
    """The largest message that the client accepts, in megabytes."""
    memory_limit: int = Field(default=0, ge=0)
    """The memory that the client may use, in megabytes; 0: no limit."""
    data: (
        FolderSource
        | CsvSource
        | ParquetSource
        | NpzSource
        | TextSource
        | PythonSource
        | ShareSource
    )

    @field_validator("data", mode="before")
    @classmethod
    def _read_source(cls, data: Any, info: ValidationInfo) -> Any:
        require(isinstance(data, dict), "data: it must be a section, [data]")
        require("source" in data, f"'source' is missing in [data]: one of {', '.join(SOURCES)}")
        source = str(data["source"])
        if source not in SOURCES:
            raise unknown_name_error("data source", source, SOURCES)
        return validate(SOURCES[source], data, "data", context=info.context)

    @property
    def has_share(self) -> bool:
        """Whether the data are a share of the config's data set."""
        return isinstance(self.data, ShareSource)

    def load_data(self, config: Config) -> Dataset:
        """Return the client's data; `config` matters only for a share of its data set."""
        return self.data.load(config)

    def introduce(self, data: Dataset) -> Introduction:
        """Return what the client tells the server about its data first."""
        return introduce(self.name, data, name_inputs(data.columns), self.has_share)

    def compute_moments(self, data: Dataset) -> Tree:
        """Return what the client adds to the federation's normalisation.

        Shares of one data set declare the moments of the whole, so that the federation normalises
        as the simulation does.
        """
        return compute_declared_moments(data) if self.has_share else compute_moments(data)


def load_site(path: Path) -> Site:
    """Return the site file at `path`; the paths in it are relative to its folder."""
    require(path.is_file(), f"there is no site file {path}")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UserError(f"{path} is not valid TOML: {problem}") from problem
    return parse_site(table, path.parent.resolve(), str(path))


def parse_site(table: dict[str, Any], folder: Path, title: str = "site") -> Site:
    """Return a site from plain values with paths relative to `folder`; `title` is for errors."""
    try:
        return validate(Site, table, context={"folder": folder})
    except UserError as problem:
        raise UserError(f"{title}: {problem}") from problem
