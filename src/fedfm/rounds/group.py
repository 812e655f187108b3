"""The clients of a round before they train: their samples, states and starting models."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from fedfm.core import trees
from fedfm.core.trees import Tree
from fedfm.methods.base import Model, Piece, Task
from fedfm.rounds.federation import Federation
from fedfm.rounds.messages import Request

OWN, SECOND = "model", "second"
"""The parts of a client's state that are models: leaves of its own, and a second model."""


class ClientGroup(NamedTuple):
    """The clients of a round, their pieces, samples and starting models."""

    cohort: list[int]
    pieces: list[Piece]
    samples: list[Tensor]
    base: Model
    """The global model, leaves [1, ...]."""
    start: Model
    """Leaves [1, ...] if all start from the global model, else [S, ...]."""
    clients: Tree
    """The clients' states: a tree per piece, leaves [S, ...]."""
    personal: frozenset[str]
    """The names of the parameters and buffers that stay at the clients."""
    frozen: frozenset[str]
    """The names of the parameters that nobody trains."""
    second: Model
    """The clients' second models, or the global one for a client that has none yet."""

    @property
    def received(self) -> Model:
        """The global model that each client received last, with its own leaves in it."""
        return self.start if self.personal else self.base

    def select_sent(self, model: Model) -> Model:
        """Return the part of a model that clients send."""
        return model.split(self.personal | self.frozen)[1]


def prepare_group(request: Request, fed: Federation) -> ClientGroup:
    """Collect the samples, models and states of the clients of the cohort."""
    pieces = fed.method.active(request.round)
    kept = [trees.to_device(request.kept.get(client), fed.task.device) for client in request.cohort]
    return ClientGroup(
        request.cohort,
        pieces,
        [fed.samples[client] for client in request.cohort],
        request.model.map(trees.share),
        make_starting_models(request.model, kept),
        {piece.name: piece_states(kept, piece, fed.task) for piece in pieces},
        fed.method.personal(fed.task),
        fed.task.frozen,
        make_starting_models(request.model, kept, SECOND),
    )


def make_starting_models(shared: Model, kept: Sequence[Tree], which: str = OWN) -> Model:
    """Return each client's starting model: the global one [...] with the leaves that it kept."""
    if all(which not in state for state in kept):
        return shared.map(trees.share)
    parts = shared._asdict().items()
    kept_models = [state.get(which, {}) for state in kept]
    models = [{part: leaves | one.get(part, {}) for part, leaves in parts} for one in kept_models]
    return Model(**trees.stack(models))


def personal_models(shared: Model, kept: Sequence[Tree]) -> Model:
    """Return the model that each client would use: its second one, or the one it starts from."""
    has_second = any(SECOND in state for state in kept)
    return make_starting_models(shared, kept, SECOND if has_second else OWN)


def piece_states(kept: Sequence[Tree], piece: Piece, task: Task) -> Tree:
    """Return the clients' states of a piece [S, ...]; new clients have the initial state."""
    initial = piece.client_state(task)
    if not initial:
        return {}
    states = [trees.complete(state.get(piece.name, initial), initial) for state in kept]
    return trees.stack(states)
