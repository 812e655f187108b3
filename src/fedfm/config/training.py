"""How clients train and how the result is measured: by default exactly as in the paper."""

import math
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import SkipValidation

from fedfm.core.errors import UserError, require, require_numbers, unknown_name_error
from fedfm.optim import OPTIMIZERS, Clipping, Optimizer, Schedule
from fedfm.optim.schedules import KINDS


def cohort_size(participation: float, clients: int) -> int:
    """Return how many of `clients` clients take part in a round."""
    return max(1, int(participation * clients + 0.5))


@dataclass(frozen=True)
class Training:
    """Who trains how long, and how the result is measured (Sec. VII-A of the paper).

    A share of every client's samples is held out; the model reported is the one of the round with
    the best mean local validation accuracy, and its accuracy on the test set is the result. Other
    metrics, and another choice of the round, are possible.

    Examples:
        >>> Training(clients=20, participation=0.25).cohort
        5
    """

    clients: int = 10
    """K, the number of clients."""
    rounds: int = 100
    """T, the number of communication rounds."""
    participation: float = 1.0
    """The fraction of clients that takes part in a round."""
    sampling: Literal["fixed", "coin"] = "fixed"
    """How a round's clients are drawn: always equally many, or by a coin for each client.

    With "coin", every client takes part with probability `participation` (Poisson sampling), so the
    number varies. If nobody would take part, one client drawn at random does. Simulations only.
    """
    validation: float = 0.2
    """The share of each client's samples held out for validation; 0: train on all of them."""
    server_validation: int = 0
    """Training samples that the server keeps for validation before the clients get the rest.

    The seed draws them, the same share of every class. They replace the clients' validation
    samples, so `validation` must be 0. Simulations only.
    """
    epochs: int = 10
    """Local epochs in a round."""
    batch_size: int = 64
    """Samples in a local step."""
    optimizer: str = "sgd"
    """The local optimizer: "sgd", "adam" or "adamw"; its moments start at zero in every round."""
    lr: float = 0.01
    """The learning rate of the local optimizer."""
    momentum: float = 0.9
    """With "sgd": the momentum."""
    nesterov: bool = False
    """With "sgd": Nesterov's momentum instead of heavy-ball momentum."""
    betas: Annotated[tuple[float, ...], SkipValidation] = (0.9, 0.999)
    """With "adam" and "adamw": how slowly the means of the gradient and its square move."""
    eps: float = 1e-8
    """With "adam" and "adamw": what is added to the denominator."""
    weight_decay: float = 1e-5
    """The weight decay; "adamw" applies it apart from the gradient."""
    clip_norm: float = 0.0
    """The largest norm of a client's gradient, after all corrections; 0: gradients stay whole."""
    clip_first: bool = False
    """Clip before the method corrects the gradient, as some public code does."""
    lr_schedule: str = "constant"
    """How lr changes: "constant", "step", "exponential", "cosine" or "linear"."""
    lr_unit: Literal["round", "step"] = "round"
    """What the schedule counts: rounds, or local steps, from 0 in every round."""
    lr_warmup: int = 0
    """Over so many units lr rises to its value, linearly."""
    lr_period: int = 0
    """step: units between two decays; cosine, linear: units of the decay, 0: all rounds."""
    lr_gamma: float = 0.1
    """step, exponential: the factor of a decay."""
    lr_final: float = 0.0
    """cosine, linear: where the decay ends, as a fraction of lr."""
    loss: str = "cross_entropy"
    """The loss of the task: a name in `LOSSES`, to which your file can add its own."""
    class_weights: Annotated[tuple[float, ...] | Literal["balanced"], SkipValidation] = ()
    """Weights of the classes in cross-entropy; "balanced": by each client's own class counts."""
    label_smoothing: float = 0.0
    """Of cross-entropy: the share of a label that is spread over all classes."""
    keep_last: bool = False
    """Train on the last, incomplete batch of an epoch too."""
    evaluate_every: int = 1
    """Evaluate the model every so many rounds, and after the last; for many clients."""
    select_by: str | None = None
    """The metric whose mean over the clients' validation samples chooses the best round.

    By default it is accuracy.
    """
    report: Literal["best", "last"] | None = None
    """Which round is reported: the best by validation, or the last.

    By default it is the best. Without validation samples, and where clients have models of their
    own, it is the last.
    """
    last_rounds: int = 1
    """With report = "last": report the mean score of so many last rounds."""
    fine_tune: int = 0
    """Epochs in which every client trains the reported model on its own samples, to be tested."""

    @property
    def cohort(self) -> int:
        """The number of clients in a round; with coins, on average."""
        return cohort_size(self.participation, self.clients)

    @property
    def schedule(self) -> Schedule:
        """The learning-rate schedule."""
        shape = self.lr_warmup, self.lr_period, self.lr_gamma, self.lr_final
        return Schedule(self.lr_schedule, self.lr_unit, *shape, rounds=self.rounds)

    @property
    def clipping(self) -> Clipping | None:
        """The clipping of gradients, if they are clipped."""
        return Clipping(self.clip_norm, self.clip_first) if self.clip_norm else None

    def make_optimizer(self) -> Optimizer:
        """Return the local optimizer."""
        kind = OPTIMIZERS[self.optimizer]
        return kind(**{field.name: getattr(self, field.name) for field in fields(kind)})

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        require_numbers(self)
        self._check_rounds()
        self._check_optimizer()
        self._check_schedule()
        self._check_loss()
        self._check_report()

    def _check_rounds(self) -> None:
        for name in ("clients", "rounds", "epochs", "batch_size", "evaluate_every", "last_rounds"):
            value = getattr(self, name)
            require(value >= 1, f"{name} must be at least 1, not {value}")
        require(
            0 < self.participation <= 1,
            f"participation must be in (0, 1], not {self.participation}",
        )
        require(
            self.sampling in ("fixed", "coin"),
            f"sampling must be 'fixed' or 'coin', not {self.sampling!r}",
        )
        require(0 <= self.validation < 1, f"validation must be in [0, 1), not {self.validation}")
        kept = self.server_validation
        require(kept >= 0, f"server_validation must be >= 0, not {kept}")
        require(
            kept == 0 or self.validation == 0,
            f"server_validation = {kept} replaces the clients' validation samples: set validation "
            "= 0",
        )
        require(self.fine_tune >= 0, f"fine_tune must be >= 0, not {self.fine_tune}")

    def _check_optimizer(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise unknown_name_error("optimizer", self.optimizer, OPTIMIZERS)
        require(self.lr > 0, f"lr must be positive, not {self.lr}")
        require(0 <= self.momentum < 1, f"momentum must be in [0, 1), not {self.momentum}")
        sgd = self.optimizer == "sgd" and self.momentum > 0
        require(sgd or not self.nesterov, "nesterov needs optimizer = 'sgd' and momentum > 0")
        betas = _floats("betas", self.betas)
        object.__setattr__(self, "betas", betas)
        fine = len(betas) == 2 and all(0 <= beta < 1 for beta in betas)
        require(fine, f"betas must be two numbers in [0, 1), not {list(betas)}")
        require(self.eps > 0, f"eps must be positive, not {self.eps}")
        for name in ("weight_decay", "clip_norm"):
            value = getattr(self, name)
            require(value >= 0, f"{name} must be >= 0, not {value}")
        require(
            not self.clip_first or self.clip_norm > 0,
            "clip_first says when gradients are clipped: give clip_norm, too",
        )

    def _check_schedule(self) -> None:
        if self.lr_schedule not in KINDS:
            raise unknown_name_error("lr_schedule", self.lr_schedule, KINDS)
        require(
            self.lr_unit in ("round", "step"),
            f"lr_unit must be 'round' or 'step', not {self.lr_unit!r}",
        )
        for name in ("lr_warmup", "lr_period"):
            value = getattr(self, name)
            require(value >= 0, f"{name} must be >= 0, not {value}")
        require(0 < self.lr_gamma <= 1, f"lr_gamma must be in (0, 1], not {self.lr_gamma}")
        require(0 <= self.lr_final <= 1, f"lr_final must be in [0, 1], not {self.lr_final}")
        self.schedule.check()

    def _check_loss(self) -> None:
        smoothing = self.label_smoothing
        require(0 <= smoothing < 1, f"label_smoothing must be in [0, 1), not {smoothing}")
        if self.class_weights != "balanced":
            weights = _floats("class_weights", self.class_weights, 'or "balanced"')
            object.__setattr__(self, "class_weights", weights)
            fine = all(0 < weight < math.inf for weight in weights)
            require(fine, f"class_weights must be positive, not {list(weights)}")

    def _check_report(self) -> None:
        """Refuse to choose a round by what is not measured."""
        require(
            self.report in (None, "best", "last"),
            f"report must be 'best' or 'last', not {self.report!r}",
        )
        require(
            self.validates or self.select_by is None,
            f"select_by = {self.select_by!r} chooses a round on validation samples, but validation "
            "= 0: leave out select_by, or hold out some samples",
        )
        require(
            self.validates or self.report != "best",
            "report = 'best' chooses a round on validation samples, but validation = 0: use report "
            "= 'last', or hold out some samples",
        )
        require(
            self.report != "last" or self.select_by is None,
            "report = 'last' reports the last round, whatever select_by says: leave out one of "
            "them",
        )
        require(
            self.last_rounds == 1 or self.reports_last,
            f"last_rounds = {self.last_rounds} needs report = 'last'",
        )
        require(
            self.last_rounds == 1 or self.evaluate_every == 1,
            f"last_rounds = {self.last_rounds} averages rounds, so each of them must be evaluated: "
            "use evaluate_every = 1",
        )
        require(
            self.last_rounds <= self.rounds,
            f"last_rounds = {self.last_rounds}, but there are only {self.rounds} rounds",
        )

    @property
    def reports_last(self) -> bool:
        """Whether the last round is reported."""
        return self.report == "last" or not self.validates

    @property
    def validates(self) -> bool:
        """Whether models are measured on validation samples, of the clients or of the server."""
        return self.validation > 0 or self.server_validation > 0


def _floats(name: str, values: Any, or_else: str = "") -> tuple[float, ...]:
    """Return numbers as a tuple; refuse anything else."""
    wanted = f"a list of numbers {or_else}".strip()
    refusal = f"{name} must be {wanted}, not {values!r}"
    require(not isinstance(values, str), refusal)
    try:
        return tuple(map(float, values))
    except (TypeError, ValueError) as problem:
        raise UserError(refusal) from problem
