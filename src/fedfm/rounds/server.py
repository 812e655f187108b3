"""The server's side of a round: what it makes of the clients' sums."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.errors import UserError
from fedfm.core.trees import Tree
from fedfm.methods.base import Model, Piece, Turnout
from fedfm.methods.contract import check_alike, check_pair
from fedfm.privacy.guard import Guard

VARIANCE = "running_var"
"""How PyTorch calls the buffers that must not be negative."""


class Diverged(UserError):
    """A round whose numbers ended in NaN or infinity."""

    def __init__(self, what: str, round: int) -> None:
        super().__init__(
            f"round {round + 1}: the {what}: NaN or infinite loss or weights.\nTry a smaller lr or "
            "a weaker method."
        )


def describe_divergence(clients: Sequence[int]) -> str:
    """What happened if no client's answer is fit for the sum."""
    named = ", ".join(map(str, clients[:5])) + (", ..." if len(clients) > 5 else "")
    return f"training of every client diverged (clients {named})"


def absorb_reports(
    pieces: Sequence[Piece], server: Tree, reports: Tree, clients: int, guard: Guard | None = None
) -> Tree:
    """The server's state after it received the sum of the reports of `clients` clients."""
    reports = guard.drop_noisy_counts(reports, pieces, clients) if guard else reports
    for piece in pieces:
        if piece.name in reports and clients:
            state = piece.absorb(server[piece.name], reports[piece.name], clients)
            server = server | {piece.name: _state(piece, "absorb", state, server)}
    return server


def aggregate(
    pieces: Sequence[Piece], server: Tree, old: Model, total: Tree, turnout: Turnout
) -> tuple[Tree, Model]:
    """The server's new state and model: x + step(mean change); buffers by data share."""
    factor: Tensor | float = 1.0
    for piece in pieces:
        factor = factor * piece.rescale(total["pieces"].get(piece.name, {}), turnout)
    scale = factor / turnout.weight
    delta = trees.tree_map(lambda change: change * scale, total["change"])
    for piece in pieces:
        sent = total["pieces"].get(piece.name, {})
        found = piece.step(server[piece.name], delta, sent, turnout)
        state, step = check_pair(piece, "step", found, "the server's state and its step")
        server = server | {piece.name: _state(piece, "step", state, server)}
        delta = check_alike(piece, "step", step, delta, "a step")
    params = trees.tree_map(torch.add, old.params, delta)
    return server, Model(params, update_buffers(old.buffers, total, turnout))


def _state(piece: Piece, hook: str, found: Tree, server: Tree) -> Tree:
    """What was not there from the beginning, a run that is resumed would not have."""
    return check_alike(piece, hook, found, server[piece.name], "the server's state")


def update_buffers(old: Tree, total: Tree, turnout: Turnout) -> Tree:
    """The old buffers and their mean change; the largest counters, where clients tell them.

    Noise may leave a variance below zero, where it is of no use.
    """
    counters = total.get("counters", {})

    def new(name: str, leaf: Tensor) -> Tensor:
        if name not in total["buffers"]:
            largest: Tensor = counters.get(name, leaf)
            return largest
        moved: Tensor = leaf + total["buffers"][name] / turnout.samples
        return moved.clamp(min=0) if name.endswith(VARIANCE) else moved

    return {name: new(name, leaf) for name, leaf in old.items()}
