"""What a config consists of, and what is checked before anything runs."""

from dataclasses import fields
from typing import Any, Literal, Self, get_args, get_type_hints

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

from fedfm.config.deployment import Deployment
from fedfm.config.experiment import Experiment, settings
from fedfm.config.training import Training
from fedfm.core.errors import UserError, require, unknown
from fedfm.data.partition import Partition
from fedfm.methods import Method, Piece, compose, piece_class
from fedfm.plugins import CODE_DIGESTS
from fedfm.privacy import Privacy
from fedfm.privacy.guard import Guard, Sources


class DataConfig(BaseModel):
    """Which data: a source's name and its options (`fedfm data` lists them)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "digits"
    dir: str | None = None
    """Where downloaded files are kept; by default the user's cache folder."""
    path: str | None = None
    size: int | None = Field(default=None, ge=1)
    label: str | None = None
    mean: tuple[float, ...] | None = None
    """Of each channel or column, in units of the stored values; by default the source's own."""
    std: tuple[float, ...] | None = None


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
    training: Training = Training()
    deployment: Deployment = Deployment()
    privacy: Privacy | None = None
    """Differential privacy; none by default."""
    code: dict[str, str] = {}
    """Digests of the files that methods and a model of your own are in: found out, never set."""

    @model_validator(mode="before")
    @classmethod
    def _numbers_are_numbers(cls, given: Any) -> Any:
        _refuse_flags(cls, given)
        for section, kind in SECTIONS.items() if isinstance(given, dict) else ():
            _refuse_flags(kind, given.get(section), section)
        return given

    @field_validator("method")
    @classmethod
    def _known_pieces(cls, method: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {name: settings(_piece(name, options)) for name, options in method.items()}

    @field_validator("code")
    @classmethod
    def _of_ones_own(cls, given: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        model = [f"model.{info.data['model'].name}"] if "model" in info.data else []
        return {
            name: CODE_DIGESTS[name]
            for name in (*info.data.get("method", {}), *model)
            if name in CODE_DIGESTS
        }

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
        """What `fedfm.run.runner` runs."""
        return Experiment(
            self.composed,
            self.partition,
            self.training,
            seed=self.seed,
            executor=self.executor,
            client_states=self.client_states,
            precision=self.precision,
            privacy=self.privacy,
            fewest=self.deployment.minimum,
            checkpoint_every=self.checkpoint_every,
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
    "training": Training,
    "deployment": Deployment,
    "privacy": Privacy,
}


def field_names(kind: Any) -> list[str]:
    """The names of a section's or a method's settings."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return list(kind.model_fields)
    return [field.name for field in fields(kind)]


def in_words(error: Any, *inside: str) -> str:
    """What pydantic says of a value, with its key."""
    said: str = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return said
    return f"{'.'.join([*inside, *map(str, error['loc'])])}: {said}"


def _refuse_flags(kind: type, given: Any, *inside: str) -> None:
    """Refuse true and false where a number belongs: pydantic takes them for 1 and 0."""
    hints = get_type_hints(kind)
    for name, value in given.items() if isinstance(given, dict) else ():
        wanted = (hints.get(name), *get_args(hints.get(name)))
        number = bool not in wanted and (int in wanted or float in wanted)
        key, wrong = ".".join([*inside, name]), isinstance(value, bool) and number
        require(not wrong, f"{key} must be a number, not {str(value).lower()}")


def _piece(name: str, options: dict[str, Any]) -> Piece:
    chosen = piece_class(name)
    for option in options:
        if option not in field_names(chosen):
            raise unknown(f"key in method.{name}:", option, field_names(chosen))
    _refuse_flags(chosen, options, "method", name)
    try:
        return TypeAdapter(chosen).validate_python(options)
    except ValidationError as problem:
        raise UserError(in_words(problem.errors()[0], "method", name)) from problem
