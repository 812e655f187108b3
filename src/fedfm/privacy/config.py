"""The settings of privacy: clipping norms and noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedfm.core.errors import require
from fedfm.core.trees import Tree
from fedfm.privacy.gaussian_mechanism import add_noise, clip
from fedfm.privacy.noise import Normals


@dataclass(frozen=True)
class Privacy:
    """How answers are clipped and noised.

    With a noise multiplier sigma, a sum of answers of norm C at most has noise N(0, (sigma C)^2) in
    every coordinate, even for colluders who subtract their own noise.

    Examples:
        >>> Privacy(clip=1.0, noise=2.0, colluders=1).update_std(fewest=5)  # of one client
        1.0
    """

    clip: float = 1.0
    """C of an update: the change of parameters and buffers, and what the pieces send."""
    noise: float = 1.0
    """sigma of updates; 0 only clips, which guarantees nothing."""
    anchor_clip: float = 1.0
    """C of a report of class-wise sums or means."""
    anchor_noise: float = 1.0
    """sigma of reports; 0 only clips."""
    delta: float = 1e-5
    """The probability with which epsilon may be exceeded."""
    colluders: int = 1
    """How many clients may pool what they know; each knows at least its own noise."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        for name in ("clip", "anchor_clip"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"privacy: {name} must be positive, not {value}")
        for name in ("noise", "anchor_noise"):
            value = getattr(self, name)
            require(0 <= value < math.inf, f"privacy: {name} must be >= 0, not {value}")
        require(0 < self.delta < 1, f"privacy: delta must be in (0, 1), not {self.delta}")
        require(self.colluders >= 0, f"privacy: colluders must be >= 0, not {self.colluders}")

    def update(self, tree: Tree, fewest: int, normals: Sequence[Normals]) -> Tree:
        """Clip and noise updates [S, ...] for sums over at least `fewest` clients."""
        return add_noise(clip(tree, self.clip), self.update_std(fewest), normals)

    def report(self, tree: Tree, fewest: int, normals: Sequence[Normals]) -> Tree:
        """Clip and noise reports [S, ...] for sums over at least `fewest` clients."""
        return add_noise(clip(tree, self.anchor_clip), self.report_std(fewest), normals)

    def update_std(self, fewest: int) -> float:
        """Return the standard deviation of one client's noise in an update."""
        return self.noise * self.clip / math.sqrt(self.noise_shares(fewest))

    def report_std(self, fewest: int) -> float:
        """Return the standard deviation of one client's noise in a report."""
        return self.anchor_noise * self.anchor_clip / math.sqrt(self.noise_shares(fewest))

    def noise_shares(self, fewest: int) -> int:
        """Return how many clients' noise counts: all but the colluders, at least one."""
        return max(1, fewest - self.colluders)
