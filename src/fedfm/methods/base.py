"""Pieces: what a method is made of.

A piece is a frozen dataclass: its fields are hyper-parameters, its methods are pure functions. It
overrides only the hooks it needs, and a line in `PIECES` (`__init__.py`) registers it. The round
(rounds/round.py) calls the hooks in the order below. Client-side hooks work on a cohort: every
tensor has a leading client axis S (or 1 for what all clients share), and hooks must not mix
clients. Server-side hooks see one server.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.errors import UserError, require_numbers
from fedfm.core.trees import Tree
from fedfm.optim import Optimizer


class Model(NamedTuple):
    """Parameters and buffers: leaves [S, ...], [1, ...] for what is shared, or [...].

    Examples:
        >>> import torch
        >>> cohort = Model({"weight": torch.zeros(4, 3, 2)}, {})  # four clients
        >>> cohort.shared, cohort.rows(slice(0, 1)).params["weight"].shape
        (False, torch.Size([1, 3, 2]))
    """

    params: Tree
    """Trainable parameters by name."""
    buffers: Tree
    """Buffers by name, such as the running means of batch norm."""

    def map(self, fn: Callable[[Tree], Tree]) -> "Model":
        """Apply a function of trees to both."""
        return Model(fn(self.params), fn(self.buffers))

    def rows(self, which: slice | Tensor) -> "Model":
        """Return the models of some of the clients; a shared model stays as it is."""
        return self.map(lambda tree: trees.rows(tree, which))

    def split(self, names: Container[str]) -> "tuple[Model, Model]":
        """Return the leaves that are named, and the others."""
        named = self.map(lambda tree: {k: leaf for k, leaf in tree.items() if k in names})
        return named, self.map(lambda tree: {k: tree[k] for k in tree if k not in names})

    @property
    def shared(self) -> bool:
        """Whether one model [1, ...] serves all clients."""
        return next(trees.leaves(self.params)).shape[0] == 1


@dataclass(frozen=True)
class Task:
    """The shapes that a piece needs to make its first states.

    Examples:
        >>> import torch
        >>> from fedfm.methods import FedAvgM
        >>> task = Task(Model({"weight": torch.ones(3, 2)}, {}), classes=3, features=2)
        >>> FedAvgM().server_state(task)["velocity"]["weight"].shape
        torch.Size([3, 2])
    """

    model: Model
    """A template of the model, leaves [...]."""
    classes: int
    """C, the number of classes."""
    features: int
    """d, the number of features."""
    head: frozenset[str] = frozenset()
    """The names of the parameters of the last layer."""
    norms: frozenset[str] = frozenset()
    """The names of the parameters and buffers of batch-norm layers."""
    frozen: frozenset[str] = frozenset()
    """The names of the parameters that nobody trains; they are among the model's buffers."""

    @property
    def params(self) -> Tree:
        """The template's parameters."""
        return self.model.params

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(trees.leaves(self.params)).device


@dataclass(frozen=True)
class Stage:
    """A stage of a client's local training; most methods have one.

    Examples:
        >>> Stage(epochs=10, trains="personal").trains  # FedRep trains the head first
        'personal'
    """

    epochs: int | None = None
    """Epochs over the client's samples; None: as many as the config says."""
    trains: Literal["all", "personal", "shared"] = "all"
    """The parameters that take steps."""
    second: "Piece | None" = None
    """Train the client's second model instead, on the same batches, with this piece alone."""


def refuse_head(features: Tensor) -> Tensor:
    """Refuse to classify features where no network is bound."""
    raise UserError("there is no network whose head could classify features")


class Batch(NamedTuple):
    """The output of the network for a batch of each client.

    Examples:
        >>> import torch
        >>> from fedfm import FedFM
        >>> labels, mask = torch.tensor([[0, 1]]), torch.ones(1, 2, dtype=torch.bool)
        >>> batch = Batch(torch.eye(2)[None], torch.zeros(1, 2, 2), labels, mask)
        >>> FedFM().statistic(batch)["count"]
        tensor([[1, 1]])
    """

    features: Tensor
    """[S, B, d]."""
    logits: Tensor
    """[S, B, C]."""
    labels: Tensor
    """[S, B], class indices."""
    mask: Tensor
    """[S, B], False where a sample is padding; there is no padding in training."""
    views: Mapping[str, Tensor] = MappingProxyType({})
    """Features [S, B, d] of the further models that the piece asked for."""
    view_logits: Mapping[str, Tensor] = MappingProxyType({})
    """Logits [S, B, C] of these models."""
    classify: Callable[[Tensor], Tensor] = refuse_head
    """Maps features [S, M, d] or [1, M, d] to logits [S, M, C] by the clients' present heads."""


class LocalRun(NamedTuple):
    """The local training of a cohort, as `Piece.finish` sees it.

    Examples:
        >>> import torch
        >>> from fedfm.optim import Sgd
        >>> model = Model({"weight": torch.zeros(2, 3)}, {})  # two clients
        >>> steps, samples = torch.tensor([4, 8]), torch.tensor([40.0, 80.0])
        >>> run = LocalRun(model, model, steps, Sgd(0.1, 0.0, 0.0), 0.0, samples)
        >>> run.accumulation  # without momentum, the number of steps
        tensor([4., 8.])
    """

    start: Model
    """The models before training."""
    end: Model
    """The models after training."""
    steps: Tensor
    """[S]: the number of local steps of each client."""
    optimizer: Optimizer
    """The local optimizer."""
    pull: float
    """mu of all terms mu/2 ||w - x||^2 in the local loss."""
    samples: Tensor
    """n_i [S]: the number of samples of each client, in a unit common to all clients."""
    factors: tuple[float, ...] = ()
    """What eta was multiplied with in each step; none if it never changes."""
    moved: Mapping[str, Any] = MappingProxyType({})
    """What `Piece.advance` made of the held values that it changes, leaves [S, ...]."""

    def rows(self, which: slice | Tensor) -> "LocalRun":
        """Return the runs of some of the clients."""
        return self._replace(
            start=self.start.rows(which),
            end=self.end.rows(which),
            steps=self.steps[which],
            samples=self.samples[which],
            moved=trees.rows(dict(self.moved), which),
        )

    @property
    def accumulation(self) -> Tensor:
        """a_i [S]: how far the client's steps move under a unit gradient, in units of eta.

        Only for SGD; a piece that uses it says `needs_sgd`.
        """
        like = next(trees.leaves(self.end.params))
        return self.optimizer.accumulation(self.steps, self.pull, self.factors).to(like)


class Participation(NamedTuple):
    """The clients in a sum, as `Piece.rescale` and `Piece.step` see them.

    Examples:
        >>> import torch
        >>> Participation(5, 20, torch.tensor(400.0), torch.tensor(400.0)).fraction
        0.25
    """

    clients: int
    """S, the number of clients in the sum."""
    population: int
    """N, the number of all clients."""
    samples: Tensor
    """sum_i n_i."""
    weight: Tensor
    """sum_i u_i, see `Piece.weights`."""

    @property
    def fraction(self) -> float:
        """S / N."""
        return self.clients / self.population


@dataclass(frozen=True)
class Piece:
    """A piece of a method: hooks, with defaults that make FedAvg.

    Subclass it as a frozen dataclass, set `name`, add hyper-parameters as fields, and override the
    hooks that you need. Hooks are pure functions of these arguments:

    - `task`: the shapes of the model and the data.
    - `server`, `client`: the states that the piece keeps, [...] and [S, ...].
    - `batch`: the network's output for one batch of each client.
    - `received`: the global model that the clients received last, [1, ...] or [S, ...].
    - `down`: what `download` returned, [1, ...].
    - `held`: what `prepare` returned, [S, ...] or [1, ...].
    - `run`: the local training of the cohort.
    - `total`: the sum of what the clients sent, [...]; `participation`: which clients are in it.

    Examples:
        A pull of the head alone towards the received model:

        >>> from dataclasses import dataclass
        >>> from fedfm import FedFM, Training, compose, simulate
        >>> @dataclass(frozen=True)
        ... class HeadProx(Piece):
        ...     name = "headprox"
        ...     mu: float = 0.1
        ...
        ...     def prepare(self, client, received, down):
        ...         return {"reference": received.params}
        ...
        ...     def correct(self, grads, params, held):
        ...         pull = {k: self.mu * (w - held["reference"][k]) for k, w in params.items()}
        ...         return {k: g + (pull[k] if "head" in k else 0) for k, g in grads.items()}
        >>> compose([HeadProx(mu=0.5), FedFM()]).name
        'headprox+fedfm'
        >>> few = Training(clients=3, rounds=1, epochs=1)
        >>> len(simulate("mlp", "digits", HeadProx(), training=few, executor="loop").rounds)
        1
    """

    name: ClassVar[str]
    """The name in configs and tables."""
    claims: ClassVar[frozenset[str]] = frozenset()
    """Roles that only one piece of a method may have, such as "anchors"."""
    step_cost: ClassVar[float] = 1.0
    """About how long a local step takes, in units of plain training; for estimates of time."""
    shares_every_round: ClassVar[bool] = False
    """Whether the piece needs models to be exchanged in every round."""
    needs_sgd: ClassVar[bool] = False
    """Whether the maths of the piece holds for SGD only, not for optimizers such as Adam."""
    measures: ClassVar[Literal["before", "after", "end"] | None] = None
    """When statistics are taken: with the received model, with the trained one, or in the last
    round, which then trains nothing, see `conclude`."""
    adds_nothing: ClassVar[bool] = False
    """Whether the piece adds nothing to other pieces, as FedAvg does."""
    needs_whole_model: ClassVar[bool] = False
    """Whether its maths needs every parameter to be shared and trained in every step."""
    single_pass: ClassVar[bool] = False
    """Whether a batch may pass the network only once in a step, so that no piece may perturb."""
    moves: ClassVar[frozenset[str]] = frozenset()
    """The keys of what `prepare` returns whose values `advance` changes in every step."""
    pools_data: ClassVar[bool] = False
    """Whether one client trains on the samples of all, as no federation would."""
    drops_classes: ClassVar[bool] = False
    """Whether it gives the logit -inf to classes that a client lacks, see `adjust_logits`."""

    counted: ClassVar[frozenset[str]] = frozenset()
    """Leaves of its reports that are counts; under noise, small counts are dropped."""

    def __post_init__(self) -> None:
        """Refuse settings that must be numbers, or true or false, and are not."""
        require_numbers(self, f"{getattr(self, 'name', type(self).__name__)}: ")

    @property
    def share_every(self) -> int:
        """Models are exchanged every so many rounds; in between, clients keep their own."""
        return 1

    @property
    def first_round(self) -> int:
        """The first round (from 0) in which this piece takes part."""
        return 0

    @property
    def needs_class_holders(self) -> bool:
        """Whether the server must know how many clients hold each class."""
        return False

    @property
    def pull(self) -> float:
        """mu, if the piece adds mu/2 ||w - x||^2 to the local loss."""
        return 0.0

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of local training, in order; a piece that has several claims "stages"."""
        return (Stage(),)

    def check(self, task: Task) -> None:
        """Refuse a network or data that the piece cannot work with, before anything is trained."""

    def personal(self, task: Task) -> frozenset[str]:
        """Return the names of the parameters and buffers that stay at the clients.

        Each client keeps its own, which start at the values of the first model it receives.
        """
        return frozenset()

    def server_state(self, task: Task) -> Tree:
        """Return the initial state of the server for this piece."""
        return {}

    def client_state(self, task: Task) -> Tree:
        """Return the initial state of one client; leaves [...] without the client axis."""
        return {}

    def statistic(self, batch: Batch) -> Tree:
        """Return statistics [S, ...] of a batch; they are summed over batches."""
        return {}

    def report(self, statistic: Tree) -> Tree:
        """Return what each client sends of its statistics [S, ...]; it is summed over clients."""
        return statistic

    def absorb(self, server: Tree, total: Tree, clients: int) -> Tree:
        """Return the server's state after `total`, the sum of the reports of `clients` clients."""
        return server

    def start(self, server: Tree, params: Tree) -> Tree:
        """Return the parameters [...] that clients receive and start from, given the server's x.

        They are sent in place of x. Changes are counted from them, statistics before training are
        taken with them, and the step is still added to x, which is evaluated and saved.
        """
        return params

    def download(self, server: Tree) -> Tree:
        """Return the message to every client; leaves [...]."""
        return {}

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        """Return what clients hold besides their model in training: [S, ...] or [1, ...].

        `received` is the global model that a client received last. Where models travel rarely, it
        is not the model that the client starts from.
        """
        return {}

    def use_counts(self, counts: Tensor) -> Tree:
        """Return what clients hold that follows from their class counts [S, C], [S, ...].

        It is added to what `prepare` returned. The counts have the model's precision, are those of
        the client's own training samples, and stay at the clients.
        """
        return {}

    def views(self, held: Tree) -> dict[str, Model]:
        """Return further models [S, ...] or [1, ...] whose features or logits the loss needs.

        They are frozen and run in evaluation mode.
        """
        return {}

    def adjust_logits(self, batch: Batch, held: Tree) -> Tensor:
        """Return the logits [S, B, C] that the task's loss is computed from, in training only.

        A class with the logit -inf takes no part; a piece that does this says `drops_classes`. The
        terms of pieces see the network's own logits.
        """
        return batch.logits

    def loss(self, batch: Batch, held: Tree) -> Tensor | None:
        """Return a term [S] of each client's local loss, or None."""
        return None

    def perturb(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        """Return an offset e [S, ...]; the step then uses the gradients at params + e.

        `grads` are those of the whole local loss at params, without corrections and weight decay.
        A piece with this hook costs a second pass of the batch, with the random numbers of the
        first one. Buffers, such as running statistics, keep the values of the first pass.
        """
        return {}

    def blend(self, first: Tree, second: Tree) -> Tree:
        """Return the gradients [S, ...] to use, given those at params and at params + e."""
        return second

    def advance(self, held: Tree, grads: Tree, offset: Tree) -> Tree:
        """Return new values [S, ...] of all leaves of `held` that `moves` names, in every step.

        `grads` are those that the step uses, before corrections; `offset` is what `perturb`
        returned, and empty without. The last values reach `finish` as `run.moved`.
        """
        return {}

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        """Return the gradients [S, ...] for the optimizer, given those of the loss."""
        return grads

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        """After training, return what is sent [S, ...], to be summed, and what is kept [S, ...]."""
        return {}, client

    def amend(self, change: Tree, client: Tree) -> Tree:
        """Return what is sent in place of the change y_i - x [S, ...], given the state now kept."""
        return change

    def weights(self, weights: Tensor, run: LocalRun) -> Tensor:
        """Return u_i [S], the weights of the clients' changes, given n_i [S]; claims "weights".

        A factor common to all clients does not matter. Each client computes its own weight, so
        nothing about the others is known here.
        """
        return weights

    def rescale(self, total: Tree, participation: Participation) -> Tensor | float:
        """Return a factor on the mean change, given the sum of what was sent; see `weights`."""
        return 1.0

    def step(
        self, server: Tree, delta: Tree, total: Tree, participation: Participation
    ) -> tuple[Tree, Tree]:
        """Return the server's new state and its step [...].

        `delta` is sum_i u_i (y_i - x) / sum_i u_i [...], where x are the parameters that the
        clients received; `total` is the sum of what was sent [...].
        """
        return server, delta

    def conclude(self, task: Task, model: Model, total: Tree, random: np.random.Generator) -> Model:
        """Return the global model [...] after the last round, if the piece measures at the "end".

        `total` is the sum of all clients' reports under `model`; `random` is keyed by the run's
        seed.
        """
        return model
