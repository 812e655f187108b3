"""The server's side of a round: new state and model from the clients' sums."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.errors import UserError
from fedfm.core.trees import Tree
from fedfm.methods.base import Model, Participation, Piece
from fedfm.methods.contract import check_alike, check_pair
from fedfm.privacy.privacy_mechanism import PrivacyMechanism

VARIANCE = "running_var"
"""PyTorch's name of the buffers that must not be negative."""


class Diverged(UserError):
    """A round ended in NaN or infinite numbers."""

    def __init__(self, what: str, round: int) -> None:
        super().__init__(
            f"round {round + 1}: the {what}: NaN or infinite loss or weights. Try a smaller lr or "
            "a weaker method"
        )


def describe_divergence(clients: Sequence[int]) -> str:
    """Describe that the answer of no client was finite."""
    named = ", ".join(map(str, clients[:5])) + (", ..." if len(clients) > 5 else "")
    return f"training of every client diverged (clients {named})"


def absorb_reports(
    pieces: Sequence[Piece],
    server: Tree,
    reports: Tree,
    clients: int,
    privacy: PrivacyMechanism | None = None,
) -> Tree:
    """Return the server's state after the sum of the reports of `clients` clients."""
    reports = privacy.drop_noisy_counts(reports, pieces, clients) if privacy else reports
    for piece in pieces:
        if piece.name in reports and clients:
            state = piece.absorb(server[piece.name], reports[piece.name], clients)
            server = server | {piece.name: _check_state(piece, "absorb", state, server)}
    return server


def start_model(pieces: Sequence[Piece], server: Tree, model: Model) -> Model:
    """Return the model that clients receive and start from."""
    params = model.params
    for piece in pieces:
        moved = piece.start(server[piece.name], params)
        params = check_alike(piece, "start", moved, params, "the parameters that are sent")
    return model._replace(params=params)


def aggregate(
    pieces: Sequence[Piece], server: Tree, old: Model, total: Tree, participation: Participation
) -> tuple[Tree, Model]:
    """Return the server's new state and model x + step(mean change); average buffers by samples."""
    factor: Tensor | float = 1.0
    for piece in pieces:
        factor = factor * piece.rescale(total["pieces"].get(piece.name, {}), participation)
    scale = factor / participation.weight
    delta = trees.tree_map(lambda change: change * scale, total["change"])
    delta |= {name: torch.zeros_like(p) for name, p in old.params.items() if name not in delta}
    for piece in pieces:
        sent = total["pieces"].get(piece.name, {})
        pair = piece.step(server[piece.name], delta, sent, participation)
        state, step = check_pair(piece, "step", pair, "the server's state and its step")
        server = server | {piece.name: _check_state(piece, "step", state, server)}
        delta = check_alike(piece, "step", step, delta, "a step")
    params = trees.tree_map(torch.add, old.params, delta)
    return server, Model(params, update_buffers(old.buffers, total, participation))


def _check_state(piece: Piece, hook: str, state: Tree, server: Tree) -> Tree:
    """Refuse keys that the initial state lacks: a resumed run would lack them, too."""
    return check_alike(piece, hook, state, server[piece.name], "the server's state")


def update_buffers(old: Tree, total: Tree, participation: Participation) -> Tree:
    """Add the mean change to the buffers; take the largest counters, if clients sent them.

    Clamp variances at zero, since noise may make them negative.
    """
    counters = total.get("counters", {})

    def new(name: str, leaf: Tensor) -> Tensor:
        if name not in total["buffers"]:
            largest: Tensor = counters.get(name, leaf)
            return largest
        moved: Tensor = leaf + total["buffers"][name] / participation.samples
        return moved.clamp(min=0) if name.endswith(VARIANCE) else moved

    return {name: new(name, leaf) for name, leaf in old.items()}
