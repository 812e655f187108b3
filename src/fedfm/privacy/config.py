"""How much of a client's answers is let through: lengths and noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedfm.core.errors import require
from fedfm.core.trees import Tree
from fedfm.privacy.mechanism import add_noise, clip
from fedfm.privacy.noise import Normals


@dataclass(frozen=True)
class Privacy:
    """How answers are clipped and noised.

    A noise multiplier sigma means: a sum of answers of length C at most has noise N(0, (sigma C)^2)
    in every coordinate, even for colluders who take away what they put in themselves.
    """

    clip: float = 1.0
    """C of an update: the change of parameters and buffers, and all that the pieces send."""
    noise: float = 1.0
    """sigma of updates; 0: clip only, which promises nothing."""
    anchor_clip: float = 1.0
    """C of a report of class-wise sums or means."""
    anchor_noise: float = 1.0
    """sigma of reports; 0: clip only."""
    delta: float = 1e-5
    """The probability that epsilon may be exceeded with."""
    colluders: int = 1
    """How many clients may pool what they know; one knows at least its own noise."""

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
        """Updates [S, ...] as they leave the clients, where no sum is over fewer than `fewest`."""
        return add_noise(clip(tree, self.clip), self.update_std(fewest), normals)

    def report(self, tree: Tree, fewest: int, normals: Sequence[Normals]) -> Tree:
        """Reports [S, ...] as they leave the clients, where no sum is over fewer than `fewest`."""
        return add_noise(clip(tree, self.anchor_clip), self.report_std(fewest), normals)

    def update_std(self, fewest: int) -> float:
        """The standard deviation of one client's noise in an update."""
        return self.noise * self.clip / math.sqrt(self.noise_shares(fewest))

    def report_std(self, fewest: int) -> float:
        """The standard deviation of one client's noise in a report."""
        return self.anchor_noise * self.anchor_clip / math.sqrt(self.noise_shares(fewest))

    def noise_shares(self, fewest: int) -> int:
        """How many clients add up to the noise: not the colluders, but always the client itself."""
        return max(1, fewest - self.colluders)
