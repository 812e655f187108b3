"""The part of a federation that changes from round to round."""

from dataclasses import dataclass, field
from typing import Any

from fedfm.core.client_states import ClientStates, InMemory, OnClients, OnDisk
from fedfm.core.trees import Tree, complete
from fedfm.methods.base import Model, Task
from fedfm.methods.composition import Method


@dataclass(frozen=True)
class State:
    """The state after `round` rounds; `run_round` maps it to the next one.

    `model` is the global model, leaves [...]. `server` has a tree per piece. `clients` has, for
    the clients that keep a state, a tree per piece, and under "model" the local model that a client
    continues from while models are not shared. `received` names the clients that have what is sent
    once (`Method.sent_once`).
    """

    round: int
    model: Model
    server: Tree
    clients: ClientStates = field(default_factory=InMemory)
    received: frozenset[int] = frozenset()


def initial_state(
    model: Model, method: Method, task: Task, clients: ClientStates | None = None
) -> State:
    """Return the state before the first round."""
    server = {piece.name: piece.server_state(task) for piece in method.pieces}
    return State(0, model, server, clients or InMemory())


def to_tree(state: State) -> Tree:
    """Return the state's tensors as one tree, without the round and without states on disk."""
    kept = state.clients.states if isinstance(state.clients, InMemory) else {}
    clients = {str(client): state for client, state in kept.items()}
    return {"model": state.model._asdict(), "server": state.server, "clients": clients}


def to_facts(state: State) -> dict[str, Any]:
    """Return what `to_tree` leaves out: the round, and what is on disk or at clients."""
    named = state.clients.rounds if isinstance(state.clients, OnDisk | OnClients) else {}
    return {
        "round": state.round,
        "clients": {str(k): round for k, round in named.items()},
        "received": sorted(state.received),
    }


def from_tree(tree: Tree, facts: dict[str, Any], start: State) -> State:
    """Invert `to_tree` and `to_facts`, for a run that began with `start`."""
    model = complete(tree["model"], start.model._asdict())
    server = complete(tree.get("server", {}), start.server)
    if isinstance(start.clients, OnDisk | OnClients):
        rounds = {int(client): round for client, round in facts["clients"].items()}
        clients: ClientStates = start.clients.restore(rounds)
    else:
        kept = tree.get("clients", {})
        clients = InMemory({int(client): state for client, state in kept.items()})
    received = frozenset(facts.get("received", ()))
    return State(facts["round"], Model(**model), server, clients, received)
