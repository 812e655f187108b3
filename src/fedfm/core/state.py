"""Everything of a federation that must survive a round, and nothing else."""

from dataclasses import dataclass, field

from fedfm.algorithms.base import Method, Model, Task
from fedfm.core.trees import Tree


@dataclass(frozen=True)
class State:
    """The state after `round` rounds; `run_round` maps it to the next one.

    `model` is the global model, leaves [...]. `server` has a tree per piece. `clients` has, for
    those clients that took part and keep anything, a tree per piece, and under "model" the local
    model a client goes on from while models are not shared.
    """

    round: int
    model: Model
    server: Tree
    clients: dict[int, Tree] = field(default_factory=dict)


def initial_state(model: Model, method: Method, task: Task) -> State:
    """The state before the first round."""
    return State(0, model, {piece.name: piece.server_state(task) for piece in method.pieces})


def to_tree(state: State) -> Tree:
    """The state's tensors as one tree; the round is not among them."""
    clients = {str(client): own for client, own in state.clients.items()}
    return {"model": state.model._asdict(), "server": state.server, "clients": clients}


def from_tree(round: int, tree: Tree, method: Method) -> State:
    """The inverse of `to_tree`; branches without tensors were not saved."""
    model = Model(tree["model"]["params"], tree["model"].get("buffers", {}))
    server = {piece.name: tree.get("server", {}).get(piece.name, {}) for piece in method.pieces}
    clients = {int(client): own for client, own in tree.get("clients", {}).items()}
    return State(round, model, server, clients)
