"""Privacy at work: what stands between the clients' answers and everybody else."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfm.core import trees
from fedfm.core.errors import require
from fedfm.core.trees import Tree
from fedfm.methods.base import Piece
from fedfm.methods.composition import Method
from fedfm.privacy.accounting import describe, spent, spent_alone
from fedfm.privacy.config import Privacy
from fedfm.privacy.noise import Normals, keyed_normals, secret_normals

Sources = Callable[[int, Sequence[int], str], list[Normals]]
"""The noise of clients in a round, for a purpose."""
CERTAIN = 2.0
"""Counts below so many standard deviations of their noise are taken for zero."""


def keyed(seed: int) -> Sources:
    """A simulation's noise."""
    return lambda round, clients, purpose: keyed_normals(seed, round, clients, purpose)


def secret(round: int, clients: Sequence[int], purpose: str) -> list[Normals]:
    """A real client's noise."""
    return [secret_normals] * len(clients)


@dataclass(frozen=True)
class Guard:
    """Clips and noises answers [S, ...]; no sum is over fewer than `fewest` clients."""

    privacy: Privacy
    fewest: int
    sources: Sources

    def update(self, tree: Tree, round: int, clients: Sequence[int]) -> Tree:
        """Updates as they leave the clients."""
        if _shapes_only(tree):
            return trees.tree_map(_floating, tree)
        return self.privacy.update(tree, self.fewest, self.sources(round, clients, "update"))

    def report(self, tree: Tree, round: int, clients: Sequence[int]) -> Tree:
        """Reports as they leave the clients."""
        if _shapes_only(tree):
            return trees.tree_map(_floating, tree)
        return self.privacy.report(tree, self.fewest, self.sources(round, clients, "report"))

    def believed(self, reports: Tree, pieces: Iterable[Piece], clients: int) -> Tree:
        """Sums of reports [...] of so many clients without the counts that are only noise."""
        least = CERTAIN * self.privacy.report_std(self.fewest) * math.sqrt(clients)
        counted = {piece.name: piece.counted for piece in pieces}
        return {
            name: {
                key: torch.where(leaf > least, leaf, 0.0) if key in counted[name] else leaf
                for key, leaf in report.items()
            }
            for name, report in reports.items()
        }

    def check_sum(self, clients: int) -> None:
        """Refuse a sum over too few: its noise is less than epsilon says."""
        require(
            clients >= self.fewest,
            f"{clients} clients are left for a sum, and [privacy] counts on {self.fewest} "
            "(deployment.minimum): less noise, a smaller lr, or a smaller minimum",
        )

    def check_weights(self, weights: Tensor) -> None:
        """Refuse clients [S] that would not count alike: how much one counts is not noised."""
        alike = weights.is_meta or bool((weights == 1).all())
        require(alike, "a method that weighs clients by their own work: not with [privacy]")

    def check(self, method: Method) -> None:
        """Refuse methods whose clients would have to tell more than clipped sums."""
        for piece in method.pieces:
            private = type(piece).rescale is Piece.rescale
            require(private, f"{piece.name} weighs clients by their own work: not with [privacy]")
            telling = piece.needs_class_holders
            require(not telling, f"{piece.name}: with [privacy] anchors must be 'weighted'")

    def statement(self, method: Method, rounds: int, secure: bool) -> str:
        """What a client that took part in every round has given away, in words."""
        reporting = sum(
            any(piece.measures for piece in method.active(round)) for round in range(rounds)
        )
        return self.paid(rounds, reporting, secure)

    def paid(self, updates: int, reports: int, secure: bool) -> str:
        """What a client has given away with so many answers, in words."""
        said = describe(spent(self.privacy, updates, reports))
        if secure:
            return said
        return said + "\n" + describe(spent_alone(self.privacy, self.fewest, updates, reports))


def _shapes_only(tree: Tree) -> bool:
    return any(leaf.is_meta for leaf in trees.leaves(tree))


def _floating(leaf: torch.Tensor) -> torch.Tensor:
    return leaf if leaf.dtype == torch.float64 else leaf.float()
