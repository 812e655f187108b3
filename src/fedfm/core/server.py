"""The server's side of a round: what it makes of the clients' sums."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfm.algorithms.base import Model, Piece, Turnout
from fedfm.core import trees
from fedfm.core.errors import UserError
from fedfm.core.trees import Tree


class Diverged(UserError):
    """The training of every client of a round ended in NaN or infinity."""

    def __init__(self, clients: Sequence[int], round: int) -> None:
        named = ", ".join(map(str, clients[:5])) + (", ..." if len(clients) > 5 else "")
        super().__init__(
            f"round {round + 1}: the training of every client diverged (clients {named}): NaN or "
            "infinite loss or weights.\nTry a smaller lr or a weaker method; the checkpoint before "
            "this round is kept."
        )


def absorbed(pieces: Sequence[Piece], server: Tree, reports: Tree, clients: int) -> Tree:
    """The server's state after it received the sum of the reports of `clients` clients."""
    for piece in pieces:
        if piece.name in reports and clients:
            state = piece.absorb(server[piece.name], reports[piece.name], clients)
            server = server | {piece.name: state}
    return server


def aggregated(
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
        state, delta = piece.step(server[piece.name], delta, sent, turnout)
        server = server | {piece.name: state}
    params = trees.tree_map(torch.add, old.params, delta)
    return server, Model(params, new_buffers(old.buffers, total, turnout))


def new_buffers(old: Tree, total: Tree, turnout: Turnout) -> Tree:
    """The clients' mean buffers and largest counters, in the order of the old ones."""
    means = trees.tree_map(lambda leaf: leaf / turnout.samples, total["buffers"])
    found = {**means, **total["counters"]}
    return {name: found[name] for name in old}
