"""A client's site file: its name in the federation, and its own data, which never leave it."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo

from fedfm.config import Config
from fedfm.core.errors import UserError, require, unknown
from fedfm.core.trees import Tree
from fedfm.data.dataset import Dataset
from fedfm.deploy.client.sources import CsvSource, FolderSource, PythonSource, ShareSource, SitePath
from fedfm.deploy.normalisation import declared_moments, moments
from fedfm.deploy.validation import ClientName

SOURCES: dict[str, type[BaseModel]] = {
    "folder": FolderSource,
    "csv": CsvSource,
    "python": PythonSource,
    "share": ShareSource,
}


def _config_beside_the_site_file(source: str, info: ValidationInfo) -> str:
    path = Path((info.context or {}).get("folder", "")) / Path(source).expanduser()
    return str(path) if path.suffix == ".toml" or path.is_file() else source


class Site(BaseModel):
    """A client, as its own machine knows it."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    name: ClientName
    """Unique in the federation."""
    out: SitePath = Field(default_factory=lambda known: Path("runs") / known.get("name", ""))
    """Where the client keeps its state, the model it received and the final one."""
    config: Annotated[str, AfterValidator(_config_beside_the_site_file)] | None = None
    """The config it expects: a file or a built-in name; None: whatever the server has."""
    threads: int = Field(default=0, ge=0)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    message_limit: int = Field(default=1024, ge=1)
    """Megabytes of the largest message it accepts."""
    memory_limit: int = Field(default=0, ge=0)
    """Megabytes of memory that its work may take; 0: as much as there is."""
    data: Annotated[
        FolderSource | CsvSource | PythonSource | ShareSource, Field(discriminator="source")
    ]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of its table; empty for other data."""
        return self.data.columns

    @property
    def has_share(self) -> bool:
        """Whether its data are a share of the config's data set."""
        return isinstance(self.data, ShareSource)


def load_site(path: Path) -> Site:
    """The site file at `path`; the paths in it are relative to its folder."""
    require(path.is_file(), f"there is no site file {path}")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UserError(f"{path} is not valid TOML: {problem}") from problem
    return parse_site(table, path.parent.resolve(), str(path))


def parse_site(table: dict[str, Any], folder: Path, title: str = "site") -> Site:
    """A site from plain values, whose paths are relative to `folder`; `title` is for mistakes."""
    try:
        return Site.model_validate(table, context={"folder": folder})
    except ValidationError as problem:
        raise UserError(f"{title}: {_explain(problem)}") from problem


def own_data(site: Site, config: Config) -> Dataset:
    """The data of a site; the `config` matters only to a site with a share of its data set."""
    return site.data.load(config)


def own_moments(site: Site, data: Dataset) -> Tree:
    """What a site adds to the federation's normalisation (flower/moments.py).

    Shares of one data set declare what that has, so that the federation has the simulation's.
    """
    return declared_moments(data) if site.has_share else moments(data)


def _explain(problem: ValidationError) -> str:
    """The first thing that is wrong, with its key, in words."""
    error = problem.errors()[0]
    section, *rest = map(str, error["loc"])
    if error["type"].startswith("union_tag"):
        return _explain_source(error["input"])
    source, key = rest if len(rest) == 2 else ("", section)
    kind, where = (SOURCES[source], f"in [data] with source = '{source}'") if source else (Site, "")
    if error["type"] == "extra_forbidden":
        return str(unknown(f"key {where}:" if where else "key", key, kind.model_fields))
    if error["type"] == "missing":
        return f"'{key}' is missing {where}".strip()
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    return f"{'data.' if source else ''}{key}: {error['msg']}"


def _explain_source(data: Any) -> str:
    """What is wrong with the source that a [data] section names."""
    if isinstance(data, dict) and "source" in data:
        return str(unknown("data source", str(data["source"]), SOURCES))
    return f"'source' is missing in [data]: one of {', '.join(SOURCES)}"
