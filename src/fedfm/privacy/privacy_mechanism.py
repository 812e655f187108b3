"""Apply privacy to the clients' answers in a round."""

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
from fedfm.privacy.accounting import (
    Epsilon,
    compute_epsilon,
    compute_epsilon_alone,
    describe_epsilon,
)
from fedfm.privacy.config import Privacy
from fedfm.privacy.noise import Normals, keyed_normals, secret_normals

Sources = Callable[[int, Sequence[int], str], list[Normals]]
"""Returns the noise sources of clients in a round, for a purpose."""
CERTAIN = 2.0
"""Counts below this many standard deviations of their noise are set to zero."""


def keyed_sources(seed: int) -> Sources:
    """Return the noise sources of a simulation."""
    return lambda round, clients, purpose: keyed_normals(seed, round, clients, purpose)


def secret_sources(round: int, clients: Sequence[int], purpose: str) -> list[Normals]:
    """Return the noise sources of real clients."""
    return [secret_normals] * len(clients)


@dataclass(frozen=True)
class PrivacyMechanism:
    """Clips and noises answers [S, ...] for sums over at least `fewest` clients."""

    privacy: Privacy
    fewest: int
    sources: Sources

    def update(self, tree: Tree, round: int, clients: Sequence[int]) -> Tree:
        """Clip and noise updates."""
        if _shapes_only(tree):
            return trees.tree_map(_to_float, tree)
        return self.privacy.update(tree, self.fewest, self.sources(round, clients, "update"))

    def report(self, tree: Tree, round: int, clients: Sequence[int]) -> Tree:
        """Clip and noise reports."""
        if _shapes_only(tree):
            return trees.tree_map(_to_float, tree)
        return self.privacy.report(tree, self.fewest, self.sources(round, clients, "report"))

    def drop_noisy_counts(self, reports: Tree, pieces: Iterable[Piece], clients: int) -> Tree:
        """Set counts that may be only noise to zero, in sums [...] over `clients` clients."""
        threshold = CERTAIN * self.privacy.report_std(self.fewest) * math.sqrt(clients)
        counted = {piece.name: piece.counted for piece in pieces}
        return {
            name: {
                key: torch.where(leaf > threshold, leaf, 0.0) if key in counted[name] else leaf
                for key, leaf in report.items()
            }
            for name, report in reports.items()
        }

    def check_sum(self, clients: int) -> None:
        """Refuse a sum over too few clients: its noise would be less than epsilon assumes."""
        require(
            clients >= self.fewest,
            f"only {clients} clients are left for a sum, but [privacy] needs {self.fewest} "
            "(deployment.minimum): use less noise, a smaller lr, or a smaller minimum",
        )

    def check_weights(self, weights: Tensor) -> None:
        """Refuse unequal weights [S] of clients, because weights are not noised."""
        equal = weights.is_meta or bool((weights == 1).all())
        require(equal, "the method weighs clients by their own work: [privacy] does not allow that")

    def check(self, method: Method) -> None:
        """Refuse methods whose clients would have to send more than clipped sums."""
        for piece in method.pieces:
            private = type(piece).rescale is Piece.rescale
            require(private, f"{piece.name} weighs clients by their own work: not with [privacy]")
            telling = piece.needs_class_holders
            require(not telling, f"{piece.name}: with [privacy] anchors must be 'weighted'")

    def describe_run(self, method: Method, rounds: int, secure: bool) -> str:
        """Describe the privacy loss of a client that took part in every round."""
        return "\n".join(map(describe_epsilon, self.spent(method, rounds, secure)))

    def spent(self, method: Method, rounds: int, secure: bool) -> list[Epsilon]:
        """Return the privacy loss of a client that took part in every round.

        The first is against whoever sees only sums; without secure sums there is one against the
        server.
        """
        reporting = sum(
            any(piece.measures for piece in method.active(round)) for round in range(rounds)
        )
        return self._count(rounds, reporting, secure)

    def describe_spent(self, updates: int, reports: int, secure: bool) -> str:
        """Describe the privacy loss of a client that sent these numbers of answers."""
        return "\n".join(map(describe_epsilon, self._count(updates, reports, secure)))

    def _count(self, updates: int, reports: int, secure: bool) -> list[Epsilon]:
        losses = [compute_epsilon(self.privacy, updates, reports)]
        if not secure:
            losses.append(compute_epsilon_alone(self.privacy, self.fewest, updates, reports))
        return losses


def _shapes_only(tree: Tree) -> bool:
    return any(leaf.is_meta for leaf in trees.leaves(tree))


def _to_float(leaf: torch.Tensor) -> torch.Tensor:
    return leaf if leaf.dtype == torch.float64 else leaf.float()
