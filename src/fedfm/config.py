"""Configs: a TOML file or a built-in name, plus overrides, checked before anything runs."""

import difflib
import json
import tomllib
from collections.abc import Iterable
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedfm.algorithms import PIECES, Method, Piece, compose, piece_class
from fedfm.algorithms.own import CODE
from fedfm.core.errors import UserError, require, unknown
from fedfm.data.partition import Partition
from fedfm.deployment import Deployment
from fedfm.experiment import Experiment, settings
from fedfm.privacy import Privacy
from fedfm.privacy.guard import Guard, Sources
from fedfm.protocol import Protocol


class DataConfig(BaseModel):
    """Which data: a source's name and its options (`fedfm data` lists them)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "digits"
    dir: str | None = None
    """Where downloaded files are kept; by default the user's cache folder."""
    path: str | None = None
    size: int | None = Field(default=None, ge=1)
    label: str | None = None


class ModelConfig(BaseModel):
    """Which model: its name and whatever options that model has."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "cnn"

    @property
    def options(self) -> dict[str, Any]:
        """The model's own options."""
        return dict(self.model_extra or {})


class Config(BaseModel):
    """One run, completely."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    seed: int = Field(default=0, ge=0)
    executor: Literal["auto", "loop", "stacked", "lanes", "graph"] = "auto"
    """How clients are packed onto the machine; "auto" finds out what is fastest."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """"auto": the GPU if there is one."""
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    """Of the network's products; "auto": bf16 on a GPU that has it, else fp32."""
    client_states: Literal["auto", "memory", "disk"] = "auto"
    """Where what clients keep between rounds is held; "auto": on disk beyond a gigabyte."""
    threads: int = Field(default=0, ge=0)
    """CPU threads; 0: one for a network of under 50,000 parameters, else PyTorch's default."""
    checkpoint_every: int = Field(default=1, ge=1)
    """Rounds between two checkpoints: what a crash costs at most."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    method: dict[str, dict[str, Any]] = {"fedfm": {}}
    partition: Partition = Partition()
    protocol: Protocol = Protocol()
    deployment: Deployment = Deployment()
    privacy: Privacy | None = None
    """Differential privacy; none by default."""
    code: dict[str, str] = {}
    """Digests of the files that methods of your own are in: found out, never set."""

    @field_validator("method")
    @classmethod
    def _known_pieces(cls, method: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {name: settings(_piece(name, options)) for name, options in method.items()}

    @field_validator("code")
    @classmethod
    def _of_own_methods(cls, given: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        return {name: CODE[name] for name in info.data.get("method", {}) if name in CODE}

    @model_validator(mode="after")
    def _hides_what_it_should(self) -> Self:
        """Refuse a secure sum of anchors that would show how many clients hold each class."""
        uniform = [name for name, own in self.method.items() if own.get("anchors") == "uniform"]
        require(
            not (uniform and self.deployment.secure),
            f"{', '.join(uniform)}: uniform anchors need to know how many clients hold each class, "
            "which a secure sum is to hide; use anchors = 'weighted', whose counts are summed too",
        )
        return self

    @property
    def composed(self) -> Method:
        """The method, composed of its pieces."""
        return compose(piece_class(name)(**options) for name, options in self.method.items())

    @property
    def experiment(self) -> Experiment:
        """What `fedfm.running` runs."""
        return Experiment(
            self.composed,
            self.partition,
            self.protocol,
            self.seed,
            self.executor,
            self.client_states,
            self.precision,
            self.privacy,
            self.deployment.minimum,
            self.checkpoint_every,
        )

    def guard(self, sources: Sources) -> Guard | None:
        """Privacy in a deployment, with noise from `sources`."""
        return Guard(self.privacy, self.deployment.minimum, sources) if self.privacy else None

    def with_seed(self, seed: int) -> "Config":
        """The same with another seed."""
        return self.model_copy(update={"seed": seed})

    def as_toml(self) -> dict[str, Any]:
        """Everything resolved, as plain values."""
        left_out = None if self.code else {"code"}
        return self.model_dump(mode="json", exclude_none=True, exclude=left_out)


SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "model": ModelConfig,
    "partition": Partition,
    "protocol": Protocol,
    "deployment": Deployment,
    "privacy": Privacy,
}


def _piece(name: str, options: dict[str, Any]) -> Piece:
    chosen = piece_class(name)
    for option in options:
        if option not in _field_names(chosen):
            raise unknown(f"key in method.{name}:", option, _field_names(chosen))
    try:
        return TypeAdapter(chosen).validate_python(options)
    except ValidationError as problem:
        raise UserError(_explain(problem, "method", name)) from problem


def builtin_names() -> list[str]:
    """The configs that ship with the package."""
    folder = resources.files("fedfm") / "configs"
    return sorted(
        Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".toml")
    )


def load_config(source: str, overrides: Iterable[str] = ()) -> Config:
    """The config of a TOML file or of a built-in name, after 'key=value' overrides.

    A method that an override chooses keeps the settings it has by then.
    """
    table = normalised(_read(source))
    chosen = _pieces(table) or [*Config.model_fields["method"].default]
    for path, value in map(_override, overrides):
        table = normalised(_merge(table, path, value), table.get("method"))
        if path == ["method"]:
            chosen = _pieces(table)
    _check_chosen(table, chosen)
    return parse(table)


def _pieces(table: dict[str, Any]) -> list[str]:
    method = table.get("method")
    return [*method] if isinstance(method, dict) else []


def _check_chosen(table: dict[str, Any], chosen: list[str]) -> None:
    """Refuse settings of a method that is not run: they would add it to the others."""
    for name in _pieces(table):
        both = json.dumps([*chosen, name])
        require(
            name in chosen,
            f"settings of '{name}', but the method is {' + '.join(chosen)}: choose it as well, "
            f"with --set method={name}, or with --set 'method={both}' for both",
        )


def parse(table: dict[str, Any]) -> Config:
    """A config from nested plain values; says what is wrong with them in a line or two."""
    try:
        return Config.model_validate(normalised(table))
    except ValidationError as problem:
        raise UserError(_explain(problem)) from problem


def full_key(key: str) -> str:
    """'rounds' means protocol.rounds, 'beta' partition.beta, 'fedfm.strength' method.fedfm...."""
    first = key.split(".")[0]
    if first in PIECES:
        return f"method.{key}"
    if "." not in key and key not in Config.model_fields:
        for section, kind in (("protocol", Protocol), ("partition", Partition)):
            if key in _field_names(kind):
                return f"{section}.{key}"
    return key


def normalised(table: dict[str, Any], settings: Any = None) -> dict[str, Any]:
    """Methods as a table: 'fedfm' and ['fedprox', 'fedfm'] mean pieces with these settings."""
    method, settings = table.get("method"), settings if isinstance(settings, dict) else {}
    if isinstance(method, str):
        method = [method]
    if isinstance(method, list):
        return table | {"method": {str(name): settings.get(name, {}) for name in method}}
    return table


def _read(source: str) -> dict[str, Any]:
    path = Path(source)
    if path.suffix != ".toml" and not path.is_file():
        if source not in builtin_names():
            raise unknown("config", source, builtin_names())
        return tomllib.loads((resources.files("fedfm") / "configs" / f"{source}.toml").read_text())
    require(path.is_file(), f"there is no config file {source}")
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UserError(f"{source} is not valid TOML: {problem}") from problem


def _override(text: str) -> tuple[list[str], Any]:
    key, equals, value = text.partition("=")
    require(bool(equals), f"--set takes key=value, not '{text}'")
    return full_key(key.strip()).split("."), plain_value(value.strip())


def plain_value(text: str) -> Any:
    """A value as TOML would read it; what is no TOML is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _merge(table: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    key, *rest = path
    if not rest:
        return table | {key: value}
    inner = table.get(key, {})
    require(isinstance(inner, dict), f"--set: '{key}' is a value, not a section")
    return table | {key: _merge(inner, rest, value)}


def _field_names(kind: Any) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return list(kind.model_fields)
    return [field.name for field in fields(kind)]


def _explain(problem: ValidationError, *inside: str) -> str:
    """The first thing that is wrong, with its key, in words."""
    error = problem.errors()[0]
    *sections, key = [*inside, *map(str, error["loc"])] or [""]
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return _unknown_key(sections, key)
    said = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return said
    return f"{'.'.join([*sections, key])}: {said}"


def _unknown_key(sections: list[str], key: str) -> str:
    """Where a key belongs, or the nearest right one."""
    if full_key(key) != key:
        return f"unknown key '{key}': it is called {full_key(key)}"
    if sections:
        known = _field_names(SECTIONS[sections[0]])
        return str(unknown(f"key in [{sections[0]}]:", key, known))
    shortened = [*PIECES, *_field_names(Protocol), *_field_names(Partition)]
    own = [name for name, kind in PIECES.items() if key in _field_names(kind)]
    if own:
        return f"unknown key '{key}': a setting of {', '.join(own)}, so e.g. {own[-1]}.{key}"
    known = [name for name in Config.model_fields if name != "code"]
    near = difflib.get_close_matches(key, [*known, *shortened], n=1)
    if near:
        return f"unknown key '{key}': did you mean '{full_key(near[0])}'?"
    return str(unknown("key", key, known))
