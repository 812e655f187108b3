"""Pieces: what a method is made of.

A piece is a frozen dataclass: its fields are hyper-parameters, its methods are pure functions. It
overrides only the hooks it needs. The round (rounds/round.py) calls them in the order below.
Client-side hooks work on a cohort: every tensor has a leading client axis S (or 1 for what all
clients share), and hooks must not mix clients. Server-side hooks see one server.
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
        """Apply a function of trees to both."""
        return Model(fn(self.params), fn(self.buffers))

    def rows(self, which: slice | Tensor) -> "Model":
        """Return the models of some of the clients; a shared model stays as it is."""
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
        """The device of the model."""
        return next(trees.leaves(self.params)).device


class Batch(NamedTuple):
    """The output of the network for a batch of each client.

    features [S, B, d], logits [S, B, C], labels [S, B]; mask [S, B] is False where a sample is
    padding (never in training); views are the features [S, B, d] by the further models that the
    piece asked for.
    """

    features: Tensor
    logits: Tensor
    labels: Tensor
    mask: Tensor
    views: Mapping[str, Tensor] = MappingProxyType({})


class LocalRun(NamedTuple):
    """The local training of a cohort: models, steps taken [S], and the SGD used."""

    start: Model
    end: Model
    steps: Tensor
    sgd: Sgd
    pull: float
    """mu of all terms mu/2 ||w - x||^2 in the local loss."""
    samples: Tensor
    """n_i [S]: the number of samples of each client, in a unit common to all clients."""

    def rows(self, which: slice | Tensor) -> "LocalRun":
        """Return the runs of some of the clients."""
        return self._replace(
            start=self.start.rows(which),
            end=self.end.rows(which),
            steps=self.steps[which],
            samples=self.samples[which],
        )

    @property
    def accumulation(self) -> Tensor:
        """a_i [S]: how far the client's steps move under a unit gradient, in units of eta."""
        like = next(trees.leaves(self.end.params))
        return self.sgd.accumulation(self.steps, self.pull).to(like)


class Turnout(NamedTuple):
    """The clients in a sum: their number, the population, sum_i n_i, and sum_i u_i."""

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
    """The hooks, with defaults that make FedAvg; the module's docstring has the conventions."""

    name: ClassVar[str]
    """The name in configs and tables."""
    claims: ClassVar[frozenset[str]] = frozenset()
    """Roles that only one piece of a method may have, such as "anchors"."""
    step_cost: ClassVar[float] = 1.0
    """About how long a local step takes, in units of plain training; for estimates of time."""
    shares_every_round: ClassVar[bool] = False
    """Whether the piece needs models to be exchanged in every round."""
    measures: ClassVar[Literal["before", "after"] | None] = None
    """When statistics are taken: with the received model, or with the trained one."""
    adds_nothing: ClassVar[bool] = False
    """Whether the piece adds nothing to other pieces, as FedAvg does."""

    counted: ClassVar[frozenset[str]] = frozenset()
    """Leaves of its reports that are counts; under noise, small counts are dropped."""

    def __post_init__(self) -> None:
        """Refuse settings that must be numbers and are not."""
        require_numbers(self)

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

    def download(self, server: Tree) -> Tree:
        """Return the message to every client; leaves [...]."""
        return {}

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        """Return what clients hold besides their model in training: [S, ...] or [1, ...].

        `received` is the global model that a client received last. Where models travel rarely, it
        is not the model that the client starts from.
        """
        return {}

    def views(self, held: Tree) -> dict[str, Model]:
        """Return further frozen models [S, ...] or [1, ...] whose features the loss needs."""
        return {}

    def loss(self, batch: Batch, held: Tree) -> Tensor | None:
        """Return a term [S] of each client's local loss, or None."""
        return None

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        """Return the gradients [S, ...] for the optimizer, given those of the loss."""
        return grads

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        """After training, return what is sent [S, ...], to be summed, and what is kept [S, ...]."""
        return {}, client

    def weights(self, weights: Tensor, run: LocalRun) -> Tensor:
        """Return u_i [S], the weights of the clients' changes, given n_i [S]; claims "weights".

        A factor common to all clients does not matter. Each client computes its own weight, so
        nothing about the others is known here.
        """
        return weights

    def rescale(self, total: Tree, turnout: Turnout) -> Tensor | float:
        """Return a factor on the mean change, given the sum of what was sent; see `weights`."""
        return 1.0

    def step(self, server: Tree, delta: Tree, total: Tree, turnout: Turnout) -> tuple[Tree, Tree]:
        """Return the server's new state and its step [...].

        `delta` is sum_i u_i (y_i - x) / sum_i u_i [...]; `total` is the sum of what was sent [...].
        """
        return server, delta
