"""The spec of a run: every key of a config, and what is checked before anything runs."""

from dataclasses import replace
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedfm.config.deployment import Deployment
from fedfm.config.sections import DataConfig, ModelConfig
from fedfm.config.training import Training
from fedfm.config.validation import (
    check_piece_settings,
    piece_settings,
    refuse_flags,
)
from fedfm.core.errors import require, unknown_name_error
from fedfm.core.ledger import count_bytes
from fedfm.data.partition import Partition
from fedfm.data.partition.deal import GIVEN
from fedfm.losses import LOSSES, TaskLoss, cross_entropy
from fedfm.methods import Method, Task, compose, piece_class
from fedfm.metrics import Accuracy, metric_class
from fedfm.metrics.measures import Measures
from fedfm.plugins import CODE_DIGESTS, digest_sources
from fedfm.privacy import Privacy
from fedfm.privacy.privacy_mechanism import PrivacyMechanism, Sources, keyed_sources

GIGABYTE = 2**30


class Config(BaseModel):
    """Everything that decides the outcome of a run.

    Examples:
        >>> from fedfm.config import load_config
        >>> config = load_config("digits", ["rounds=5", "method=fedavg"])
        >>> config.training.rounds, config.composed.name
        (5, 'fedavg')
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    seed: int = Field(default=0, ge=0)
    """Draws the partition, the validation split, the cohorts, the batches and the first weights."""
    executor: Literal["auto", "loop", "stacked", "threads", "graph"] = "auto"
    """How clients are packed onto the machine; "auto" finds out what is fastest."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """"auto": the GPU if there is one; a model given from Python stays where it is."""
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    """Of the network's products; "auto": bf16 on a GPU that has it, else fp32."""
    client_states: Literal["auto", "memory", "disk"] = "auto"
    """Where what clients keep between rounds is held; "auto": on disk beyond a gigabyte."""
    threads: int = Field(default=0, ge=0)
    """CPU threads; 0: one for a network of under 50,000 parameters, else PyTorch's default."""
    checkpoint_every: int = Field(default=1, ge=0)
    """Rounds between two checkpoints: what a crash costs at most; 0: none, for short runs."""
    data: DataConfig = DataConfig()
    """Which data."""
    model: ModelConfig = ModelConfig.model_validate({})
    """Which model."""
    method: dict[str, dict[str, Any]] = {"fedfm": {}}
    """The pieces of the method: a name, a list of names, or a table of settings by name."""
    metrics: tuple[str, ...] = (Accuracy.name,)
    """What is measured besides accuracy: a metric's name, or a list of names."""
    partition: Partition = Partition()
    """How the training samples are divided among the clients."""
    training: Training = Training()
    """Who trains how long, and how the result is measured."""
    deployment: Deployment = Deployment()
    """What a federation of real machines needs beside its experiment."""
    privacy: Privacy | None = None
    """Differential privacy; none by default."""
    code: dict[str, str] = {}
    """Digests of the files that methods and a model of your own are in: found out, never set."""
    _given: dict[str, Any] = PrivateAttr(default_factory=dict)
    """Given from Python: pieces by name, metrics and a loss by `metric.` or `loss.` and name."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_flags(cls, given: Any) -> Any:
        refuse_flags(cls, given)
        for section, kind in SECTIONS.items() if isinstance(given, dict) else ():
            refuse_flags(kind, given.get(section), section)
        return given

    @field_validator("method")
    @classmethod
    def _check_pieces(cls, method: Any, info: ValidationInfo) -> dict[str, dict[str, Any]]:
        given = info.context or {}
        return {
            name: piece_settings(given.get(name) or check_piece_settings(name, options))
            for name, options in method.items()
        }

    @field_validator("metrics", mode="before")
    @classmethod
    def _list_metrics(cls, given: Any) -> Any:
        return [given] if isinstance(given, str) else given

    @field_validator("code")
    @classmethod
    def _find_code(cls, given: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        model = [f"model.{info.data['model'].name}"] if "model" in info.data else []
        training = info.data.get("training")
        loss = [f"loss.{training.loss}"] if training else []
        chosen = [training.select_by] if training and training.select_by else []
        metrics = [f"metric.{name}" for name in (*info.data.get("metrics", ()), *chosen)]
        named = {
            name: CODE_DIGESTS[name]
            for name in (*info.data.get("method", {}), *model, *loss, *metrics)
            if name in CODE_DIGESTS
        }
        return named | digest_sources(info.context or {})

    @model_validator(mode="after")
    def _check_together(self, info: ValidationInfo) -> Self:
        """Refuse settings that are right by themselves and wrong together."""
        self._given.update(info.context or {})
        method = self.composed
        self._check_rounds(method)
        self._check_secrecy(method)
        self._check_optimizer(method)
        self._check_loss(method)
        self._check_metrics(method)
        self._check_server_validation(method)
        return self

    def _check_server_validation(self, method: Method) -> None:
        """Refuse validation samples of the server where it has none, or they measure nothing."""
        kept = self.training.server_validation
        require(not (kept and self.partition.given), f"server_validation = {kept}: {GIVEN}")
        require(
            not (kept and method.keeps_models),
            f"{method.name}: clients have models of their own, which samples of the server do not "
            "measure: set server_validation = 0",
        )

    def _check_metrics(self, method: Method) -> None:
        """Refuse unknown metrics, and to choose a round by one that is not a number."""
        chosen = self.training.select_by
        twice = [name for name in self.metrics if self.metrics.count(name) > 1]
        require(not twice, f"metrics names {', '.join(dict.fromkeys(twice))} twice")
        require(
            not method.keeps_models or (self.training.report != "best" and chosen is None),
            f"{method.name}: clients keep only their last own models, so the last round is "
            "reported: leave out report = 'best' and select_by",
        )
        for metric in self.measures.metrics:
            require(
                metric.name != chosen or metric.form == "number",
                f"select_by = {chosen!r} is not one number: choose a round by another metric, such "
                f"as {', '.join(each.name for each in self.measures.numbers[:3])}",
            )

    def _check_rounds(self, method: Method) -> None:
        every, rounds = method.share_every, self.training.rounds
        require(
            rounds % every == 0,
            f"rounds must be a multiple of models_every = {every}, not {rounds}: "
            "what is trained after the last sharing would be lost",
        )

        ends = [piece.name for piece in method.pieces if piece.measures == "end"]
        require(
            not ends or rounds > 1,
            f"{', '.join(ends)} trains nothing in the last round: rounds must be at least 2",
        )
        require(
            not ends or self.privacy is None,
            f"{', '.join(ends)} sends statistics that [privacy] does not account for: leave out "
            "one of the two",
        )

    def _check_secrecy(self, method: Method) -> None:
        """Refuse sums that would show more than they are meant to."""
        telling = [piece.name for piece in method.pieces if piece.needs_class_holders]
        require(
            not (telling and self.deployment.secure),
            f"{', '.join(telling)}: uniform anchors need to know how many clients hold each class, "
            "which a secure sum must hide; use anchors = 'weighted', whose counts are summed too",
        )
        require(
            self.privacy is None or self.training.sampling == "fixed",
            "[privacy] needs the same number of clients in every sum, which sampling = 'coin' "
            "does not give: use sampling = 'fixed'",
        )
        fewest, cohort = self.deployment.minimum, self.training.cohort
        require(
            self.privacy is None or fewest <= cohort,
            f"[privacy] needs deployment.minimum = {fewest} clients in every sum, but rounds "
            f"have {cohort}: lower deployment.minimum",
        )

    def _check_optimizer(self, method: Method) -> None:
        name = self.training.optimizer
        wrong = [piece.name for piece in method.pieces if piece.needs_sgd]
        require(
            name == "sgd" or not wrong,
            f"{', '.join(wrong)}: the maths holds for SGD only, not for {name}: set "
            "training.optimizer = 'sgd', or choose another method",
        )

    def _check_loss(self, method: Method) -> None:
        training, name = self.training, self.training.loss
        if f"loss.{name}" not in self._given and name not in LOSSES:
            raise unknown_name_error("loss", name, LOSSES)
        settings = training.class_weights or training.label_smoothing
        require(
            not settings or self.task_loss.function is cross_entropy,
            f"class_weights and label_smoothing are settings of cross_entropy, not of {name}: "
            "leave them out",
        )
        plain = self.task_loss.function is cross_entropy and not training.label_smoothing
        dropping = [piece.name for piece in method.pieces if piece.drops_classes]
        require(
            plain or not dropping,
            f"{', '.join(dropping)} leaves out the classes that a client lacks, which only "
            "cross_entropy without label_smoothing allows: leave the setting out",
        )

    @property
    def task_loss(self) -> TaskLoss:
        """The loss of the task, before the pieces add their terms."""
        name = self.training.loss
        function = self._given.get(f"loss.{name}") or LOSSES[name]
        return TaskLoss(function, self.training.label_smoothing)

    @property
    def composed(self) -> Method:
        """The method, composed of its pieces."""
        return compose(
            self._given.get(name) or piece_class(name)(**options)
            for name, options in self.method.items()
        )

    @property
    def measures(self) -> Measures:
        """The metrics of the run: accuracy, those that are asked for, the one that chooses."""
        asked = (*self.metrics, self.training.select_by)
        names = dict.fromkeys([Accuracy.name, *(name for name in asked if name)])
        return Measures(
            tuple(self._given.get(f"metric.{name}") or metric_class(name)() for name in names)
        )

    def make_privacy(self, sources: Sources | None = None) -> PrivacyMechanism | None:
        """Return privacy at work, with noise from `sources`; by default a simulation's."""
        if self.privacy is None:
            return None
        return PrivacyMechanism(
            self.privacy, self.deployment.minimum, sources or keyed_sources(self.seed)
        )

    def keeps_states_on_disk(self, task: Task) -> bool:
        """Return whether what the clients keep is held on disk, given the shapes of a model."""
        method = self.composed
        each = count_bytes({piece.name: piece.client_state(task) for piece in method.pieces})
        each += count_bytes(task.model.split(method.personal(task))[0]._asdict())
        if method.share_every > 1 or any(stage.second for stage in method.stages):
            each += count_bytes(task.model._asdict())
        if self.client_states == "auto":
            return each * self.training.clients > GIGABYTE
        return self.client_states == "disk"

    def with_seed(self, seed: int) -> "Config":
        """Return the same with another seed."""
        return self.model_copy(update={"seed": seed})

    def with_clients(self, clients: int) -> "Config":
        """Return the same with as many clients as the data have."""
        config = self.model_copy(update={"training": replace(self.training, clients=clients)})
        config._check_secrecy(config.composed)
        return config

    def as_toml(self) -> dict[str, Any]:
        """Return everything resolved, as plain values."""
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
