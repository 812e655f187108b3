"""The server's side of a round: whom it leaves out, what it absorbs, how it aggregates."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfm.algorithms.base import Model
from fedfm.core import trees
from fedfm.core.clients import Visit, Work
from fedfm.core.errors import UserError
from fedfm.core.federation import Federation
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


def data_shares(samples: Sequence[Tensor]) -> Tensor:
    """p_i = n_i / sum_j n_j over the cohort [S]."""
    sizes = torch.tensor([len(own) for own in samples], dtype=torch.float64)
    return sizes / sizes.sum()


def without_failures(visit: Visit, work: Work, round: int) -> tuple[Visit, Work]:
    """Leave out clients whose loss, model or message is not finite; stop if none is left.

    Those clients keep the state they had, and the others' data shares add up to 1 again.
    """
    fine = trees.finite({"losses": work.losses, "model": work.model._asdict(), "up": work.up})
    if fine.is_meta or bool(fine.all()):
        return visit, work
    left = fine.nonzero().flatten().tolist()
    if not left:
        raise Diverged(visit.cohort, round)
    samples = [visit.samples[i] for i in left]
    fewer = visit._replace(
        cohort=[visit.cohort[i] for i in left],
        samples=samples,
        shares=data_shares(samples).to(visit.shares),
    )
    trained = work._replace(
        model=work.model.map(lambda tree: chosen(tree, fine)),
        losses=work.losses[fine],
        up=chosen(work.up, fine),
        kept=chosen(work.kept, fine),
    )
    return fewer, trained


def chosen(tree: Tree, which: Tensor) -> Tree:
    """The rows [S, ...] of the clients for which `which` [S] holds."""
    if which.is_meta or bool(which.all()):
        return tree
    return trees.tree_map(lambda leaf: leaf[which], tree)


def absorbed(visit: Visit, server: Tree, report: Tree) -> Tree:
    """The server's state after it received the sum of the reports that are finite."""
    for piece in visit.pieces:
        if piece.name in report:
            sound = chosen(report[piece.name], trees.finite(report[piece.name]))
            clients = len(next(trees.leaves(sound)))
            state = piece.absorb(server[piece.name], trees.total(sound), clients)
            server = server | {piece.name: state}
    return server


def aggregated(
    visit: Visit, fed: Federation, server: Tree, old: Model, work: Work
) -> tuple[Tree, Model]:
    """The server's new state and model: x + step(sum_i w_i (y_i - x)); buffers by data share."""
    weights = visit.shares
    for piece in visit.pieces:
        weights = piece.weights(weights, work.up[piece.name])
    delta = trees.tree_map(
        lambda y, x: trees.weighted_sum(weights, y - x), work.model.params, old.params
    )
    fraction = len(visit.cohort) / len(fed.samples)
    for piece in visit.pieces:
        state, delta = piece.step(server[piece.name], delta, work.up[piece.name], fraction)
        server = server | {piece.name: state}
    params = trees.tree_map(torch.add, old.params, delta)
    return server, Model(params, trees.average(work.model.buffers, visit.shares))
