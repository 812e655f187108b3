"""What a method is made of: pieces.

A piece is a frozen dataclass: its fields are hyper-parameters, its methods are pure functions. It
overrides the hooks it needs and nothing else; the round (rounds/round.py) calls them in the order
in which they stand below. Client-side hooks work on a cohort: every tensor they see has a leading
client axis S (or 1 for what all clients share) and they must not mix clients. Server-side hooks
see one server.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.errors import require_numbers
from fedfm.core.sgd import Sgd
from fedfm.core.trees import Tree


class Model(NamedTuple):
    """Trainable parameters and buffers: leaves [S, ...], [1, ...] for what is shared, or [...]."""

    params: Tree
    buffers: Tree

    def map(self, fn: Callable[[Tree], Tree]) -> "Model":
        """A function of trees applied to both."""
        return Model(fn(self.params), fn(self.buffers))

    def rows(self, which: slice | Tensor) -> "Model":
        """The models of some of the clients; one that all share stays as it is."""
        return self.map(lambda tree: trees.rows(tree, which))

    @property
    def shared(self) -> bool:
        """Whether one model [1, ...] serves all clients."""
        return next(trees.leaves(self.params)).shape[0] == 1


@dataclass(frozen=True)
class Task:
    """The shapes a piece may need: a template of the model [...], and the sizes C and d."""

    model: Model
    classes: int
    features: int

    @property
    def params(self) -> Tree:
        """The template's parameters."""
        return self.model.params

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(trees.leaves(self.params)).device


class Batch(NamedTuple):
    """What the network made of a batch of each client.

    features [S, B, d], logits [S, B, C], labels [S, B]; mask [S, B] is False where a sample only
    fills up the rectangle (never in training); views are the features [S, B, d] that the further
    models of the piece at hand give.
    """

    features: Tensor
    logits: Tensor
    labels: Tensor
    mask: Tensor
    views: Mapping[str, Tensor] = MappingProxyType({})


class LocalRun(NamedTuple):
    """How the local training of a cohort went: models, steps taken [S], and with what SGD."""

    start: Model
    end: Model
    steps: Tensor
    sgd: Sgd
    pull: float
    """mu of all terms mu/2 ||w - x||^2 in the local loss."""
    samples: Tensor
    """n_i [S], how many samples each client has, in any unit that all clients share."""

    def rows(self, which: slice | Tensor) -> "LocalRun":
        """The runs of some of the clients."""
        return self._replace(
            start=self.start.rows(which),
            end=self.end.rows(which),
            steps=self.steps[which],
            samples=self.samples[which],
        )

    @property
    def accumulation(self) -> Tensor:
        """a_i [S]: how far the client's steps carry a unit gradient, in units of eta."""
        like = next(trees.leaves(self.end.params))
        return self.sgd.accumulation(self.steps, self.pull).to(like)


class Turnout(NamedTuple):
    """Who is in a sum over clients: how many of how many, sum_i n_i, and sum_i u_i."""

    clients: int
    population: int
    samples: Tensor
    weight: Tensor

    @property
    def fraction(self) -> float:
        """S / N."""
        return self.clients / self.population


@dataclass(frozen=True)
class Piece:
    """The hooks, with defaults that make FedAvg; see the module's text for the conventions."""

    name: ClassVar[str]
    """What configs and tables call it."""
    claims: ClassVar[frozenset[str]] = frozenset()
    """Roles of which a method has one at most, e.g. "anchors"; two claims of one contradict."""
    step_cost: ClassVar[float] = 1.0
    """About how long a local step takes, in units of plain training; for estimates of time."""
    shares_every_round: ClassVar[bool] = False
    """Whether its maths needs models to be exchanged in every round."""
    measures: ClassVar[Literal["before", "after"] | None] = None
    """When statistics are taken: with the received model, or with the trained one."""

    counted: ClassVar[frozenset[str]] = frozenset()
    """Leaves of its reports that count something: under noise, small ones mean nothing."""

    def __post_init__(self) -> None:
        """Refuse settings that are no numbers where there should be one."""
        require_numbers(self)

    @property
    def share_every(self) -> int:
        """Models travel every so many rounds; in between a client goes on from its own."""
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
        """mu, where the piece adds mu/2 ||w - x||^2 to the local loss."""
        return 0.0

    def server_state(self, task: Task) -> Tree:
        """What the server keeps for this piece, initially."""
        return {}

    def client_state(self, task: Task) -> Tree:
        """What one client keeps, initially; leaves [...] without the client axis."""
        return {}

    def statistic(self, batch: Batch) -> Tree:
        """Statistics [S, ...] of a batch, which add up over batches."""
        return {}

    def report(self, statistic: Tree) -> Tree:
        """What a client sends of its summed statistics [S, ...]; it must add up over clients."""
        return statistic

    def absorb(self, server: Tree, total: Tree, clients: int) -> Tree:
        """The server's state after it received the reports' sum over `clients` clients."""
        return server

    def download(self, server: Tree) -> Tree:
        """What goes to each client; leaves [...]."""
        return {}

    def prepare(self, client: Tree, start: Model, down: Tree) -> Tree:
        """What a client holds beside its model while it trains: [S, ...] or [1, ...]."""
        return {}

    def views(self, held: Tree) -> dict[str, Model]:
        """Further models [S, ...] or [1, ...], frozen, whose features of each batch it needs."""
        return {}

    def loss(self, batch: Batch, held: Tree) -> Tensor | None:
        """A term [S] of each client's local loss."""
        return None

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        """The gradients [S, ...] that the optimizer gets, given those of the loss."""
        return grads

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        """After training: what goes up [S, ...], to be added up, and what is kept [S, ...]."""
        return {}, client

    def weights(self, weights: Tensor, run: LocalRun) -> Tensor:
        """u_i [S], how much a client's change counts, given n_i [S]; claims "weights".

        A factor common to all clients does not matter; what others do is not known here.
        """
        return weights

    def rescale(self, total: Tree, turnout: Turnout) -> Tensor | float:
        """A factor on the mean change, given the sum of what went up; goes with `weights`."""
        return 1.0

    def step(self, server: Tree, delta: Tree, total: Tree, turnout: Turnout) -> tuple[Tree, Tree]:
        """The server's new state and its step [...].

        Given sum_i u_i (y_i - x) / sum_i u_i [...] and the sum of what went up [...].
        """
        return server, delta
