"""FedFM on a problem whose constants are known exactly, to hold Theorem 1 against.

Features are linear, f(W, x) = W x, the task is least squares, matching is L2 (Eq. 3):

    Phi_k(W; A) = mean_i [ 1/2 |W x_i - y_i|^2 + lambda |W x_i - a_c(i)|^2 ] + rho/2 |W|^2

Whatever the anchors, Phi_k has the Hessian H_k = (1 + 2 lambda) S_k + rho I, S_k = mean_i x_i x_i',
in every row of W, so L = max_k |H_k|. At the best anchors a_c = W m_c (Eq. 5) all gradients are
affine in W: grad Phi_k = W M_k - B_k. Gradients are W's shape, [d, m]: d features, m inputs.
"""

from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from fedfm.core.rng import generator

Array = NDArray[np.float64]

SLACK = 1.2
"""beta^2 over the smallest one for which a finite kappa^2 exists."""


@dataclass(frozen=True)
class Constants:
    """What Theorem 1 speaks of."""

    smoothness: float
    """L, of every Phi_k (Lemma 1)."""
    variance: float
    """sigma^2, of a client's stochastic gradient (Assumption 3)."""
    beta2: float
    kappa2: float
    """beta^2 and kappa^2 of Assumption 4: valid for every W, with the best anchors for it."""
    gap: float
    """Phi(W(0); A(0)) - Phi_inf."""
    spread: float
    """sum_k p_k^2."""

    def largest_rate(self, tau: int) -> float:
        """Return the largest eta that the condition of Theorem 1 admits."""
        drift = sqrt(2 * tau * (tau - 1) * (2 * self.beta2 + 1))
        return min(1 / (2 * tau), 1 / drift if drift else 1.0) / self.smoothness


@dataclass(frozen=True)
class Problem:
    """K clients' statistics; clients differ in their classes, sizes and inputs."""

    weights: Array
    """p_k [K], in proportion to the data held."""
    second: Array
    """S_k [K, m, m]."""
    shares: Array
    """The share of class c in client k's data [K, C]."""
    means: Array
    """The mean input of class c at client k [K, C, m]."""
    targets: Array
    """mean_i y_i x_i' [K, d, m]; y_i is the class as a unit vector, so d = C."""
    strength: float
    """lambda."""
    ridge: float
    """rho."""
    sigma: float
    """The standard deviation of the gradient noise, which is Gaussian."""

    @cached_property
    def class_means(self) -> Array:
        """Return m_c [C, m], the mean input of class c over all clients."""
        counts = self.weights[:, None] * self.shares
        return np.asarray(np.einsum("kc,kcm->cm", counts, self.means) / counts.sum(0)[:, None])

    @cached_property
    def hessians(self) -> Array:
        """Return H_k [K, m, m], at any fixed anchors."""
        eye = np.eye(self.second.shape[-1])
        return np.asarray((1 + 2 * self.strength) * self.second + self.ridge * eye)

    @cached_property
    def slopes(self) -> Array:
        """Return M_k [K, m, m]: H_k less the part by which the anchors follow W."""
        pull = np.einsum("kc,cm,kcn->kmn", self.shares, self.class_means, self.means)
        return np.asarray(self.hessians - 2 * self.strength * pull)

    @cached_property
    def slope(self) -> Array:
        """Return M = sum_k p_k M_k [m, m], symmetric: the Hessian of min_A Phi(W; A)."""
        return self.mean(self.slopes)

    @cached_property
    def best(self) -> Array:
        """Return the minimiser [d, m] of Phi over W and A together, a convex problem."""
        return np.asarray(np.linalg.solve(self.slope, self.mean(self.targets).T).T)

    @cached_property
    def steepest(self) -> Array:
        """Return the steepest direction [m] of M, in which noise hurts most."""
        return np.asarray(np.linalg.eigh(self.slope)[1][:, -1])

    @property
    def profile(self) -> Array:
        """Return the noise's share of each row of W [d]: even, with length 1."""
        rows = self.targets.shape[1]
        return np.full(rows, 1 / sqrt(rows))

    def mean(self, values: Array) -> Array:
        """Return sum_k p_k values_k: [K, ...] -> [...]."""
        return np.asarray(np.tensordot(self.weights, values, 1))

    def value(self, point: Array) -> float:
        """Return Phi(W; A) at W [d, m] and its best anchors; |y_i|^2 = 1 for unit vectors y_i."""
        square = np.trace(point @ self.slope @ point.T)
        return float((square + 1) / 2 - np.sum(point * self.mean(self.targets)))

    def constants(self, start: Array) -> Constants:
        """Return the constants of Theorem 1 for a run from `start` [d, m]."""
        beta2, kappa2 = self.dissimilarity()
        return Constants(
            smoothness=float(np.linalg.eigvalsh(self.hessians).max()),
            variance=self.sigma**2,
            beta2=beta2,
            kappa2=kappa2,
            gap=self.value(start) - self.value(self.best),
            spread=float(np.sum(self.weights**2)),
        )

    def dissimilarity(self) -> tuple[float, float]:
        """Return beta^2 and its least kappa^2: the maximum over all W of a concave quadratic.

        sum_k p_k |W M_k - B_k|^2 - beta^2 |W M - B|^2 is concave in W once beta^2 exceeds the
        largest generalised eigenvalue of (sum_k p_k M_k M_k', M M').
        """
        inner = self.mean(self.slopes @ self.slopes.mT)
        inverse = np.linalg.inv(self.slope)
        beta2 = SLACK * max(1.0, float(np.linalg.eigvalsh(inverse @ inner @ inverse)[-1]))
        curve = beta2 * self.slope @ self.slope - inner
        target = self.mean(self.targets)
        linear = beta2 * target @ self.slope - self.mean(self.targets @ self.slopes.mT)
        top = np.sum(linear * np.linalg.solve(curve, linear.T).T)
        rest = self.mean(np.sum(self.targets**2, (1, 2))) - beta2 * np.sum(target**2)
        return beta2, float(top + rest)


def make_problem(
    seed: int = 0, *, clients: int = 30, classes: int = 4, inputs: int = 6, sigma: float = 3.0
) -> Problem:
    """Return a problem with L = 1: Gaussian classes, dealt by Dir(0.5), shifted at every client."""
    rng = generator(seed, "quadratic")
    strength, ridge = 0.5, 0.2
    widths = np.linspace(2.5, 0.5, inputs)
    sizes = rng.integers(40, 120, clients)
    centres, shifts = rng.normal(size=(classes, inputs)), rng.normal(size=(clients, inputs))
    parts: list[tuple[Array, Array, Array, Array]] = []
    for size, shift in zip(sizes, shifts, strict=True):
        labels = rng.choice(classes, size, p=rng.dirichlet(np.full(classes, 0.5)))
        x = centres[labels] + 0.3 * shift + widths * rng.normal(size=(size, inputs))
        parts.append(_statistics(x, np.eye(classes)[labels]))
    second, shares, means, targets = (np.stack(each) for each in zip(*parts, strict=True))
    scale = (1 - ridge) / ((1 + 2 * strength) * np.linalg.eigvalsh(second).max())
    small = sqrt(scale)
    return Problem(
        sizes / sizes.sum(), scale * second, shares, small * means, small * targets,
        strength, ridge, sigma,
    )  # fmt: skip


def _statistics(x: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    """Return S_k, shares, means and targets of inputs x [n, m] with classes y [n, C], one-hot."""
    counts = y.sum(0)
    means = y.T @ x / np.maximum(counts, 1)[:, None]
    return x.T @ x / len(x), counts / len(x), means, y.T @ x / len(x)
