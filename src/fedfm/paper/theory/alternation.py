"""FedFM's alternation of anchors and local SGD (Algorithm 1) on the quadratic problem.

Once as it runs, many times over with random noise; and once as its exact expectation: a round is
affine in W and the noise is Gaussian, so the mean and the covariance of W follow in closed form.
"""

import numpy as np
from numpy.linalg import matrix_power

from fedfm.core.rng import generator
from fedfm.paper.theory.quadratic import Array, Problem


def simulate(
    problem: Problem,
    start: Array,
    *,
    rounds: int,
    tau: int,
    rate: float,
    repeats: int,
    seed: int = 0,
) -> Array:
    """Return |grad Phi(W(t); A(t))|^2 for t = 0 .. T-1 of every repeat [T, R], from W(0) = start.

    A round: anchors from W(t) (Eq. 9), tau steps of SGD at every client (Eq. 10), the mean of the
    clients' models (Eq. 11). All repeats are stacked: W is [R d, m], anchors [R d, C].
    """
    rng = generator(seed, "alternation", rounds, tau)
    inputs, sums = start.shape[1], problem.shares[..., None] * problem.means
    step = np.eye(inputs) - rate * problem.hessians
    direction = np.outer(problem.profile, problem.steepest)
    fixed, noise = np.tile(problem.targets, (1, repeats, 1)), rate * problem.sigma * direction
    point, norms = np.tile(start, (repeats, 1)), np.empty((rounds, repeats))
    for t in range(rounds):
        anchors = point @ problem.class_means.T
        constant = fixed + 2 * problem.strength * (anchors @ sums)
        gradient = problem.mean(point @ problem.hessians - constant)
        norms[t] = np.sum(gradient.reshape(repeats, -1) ** 2, 1)
        local: Array = np.broadcast_to(point, constant.shape)
        constant *= rate
        for draw in rng.normal(size=(tau, len(sums), repeats, 1, 1)):
            local = local @ step
            local += constant
            local -= (draw * noise).reshape(constant.shape)
        point = problem.mean(local)
    return norms


def compute_expectation(
    problem: Problem,
    start: Array,
    *,
    rounds: int,
    tau: int,
    rate: float,
    shared_noise: bool = False,
) -> tuple[Array, Array]:
    """Return mean and deviation of |grad Phi(W(t); A(t))|^2 for t = 0 .. T-1 [T], exactly.

    With G_k = I - eta H_k, a round is W -> W P + Q + u z' for a Gaussian z [m], u being the
    noise's profile over the rows. `shared_noise`: all clients draw the same noise (the theorem's
    sum_k p_k^2 takes their noises for independent).
    """
    step = np.eye(problem.slope.shape[0]) - rate * problem.hessians
    powers = np.stack([matrix_power(step, j) for j in range(tau + 1)], 1)
    total = rate * powers[:, :-1].sum(1)
    keep = problem.mean(powers[:, -1] + (problem.hessians - problem.slopes) @ total)
    shift = problem.mean(problem.targets @ total)
    fresh = _compute_noise_covariance(problem, rate * powers[:, :-1], shared_noise)
    point, spread, moments = start, np.zeros_like(keep), np.empty((2, rounds))
    target = problem.mean(problem.targets)
    for t in range(rounds):
        bias, noise = point @ problem.slope - target, problem.slope @ spread @ problem.slope
        along = problem.profile @ bias
        moments[0, t] = np.sum(bias**2) + np.trace(noise)
        moments[1, t] = np.sqrt(4 * along @ noise @ along + 2 * np.sum(noise**2))
        point, spread = point @ keep + shift, keep.T @ spread @ keep + fresh
    return moments[0], moments[1]


def _compute_noise_covariance(problem: Problem, carried: Array, shared: bool) -> Array:
    """Return the covariance [m, m] that a round adds, given how far each step's noise is carried.

    `carried` [K, tau, m, m]: eta G_k^j.
    """
    moved = problem.sigma * problem.weights[:, None, None] * (problem.steepest @ carried)
    if shared:
        moved = moved.sum(0, keepdims=True)
    return np.asarray(np.einsum("ksm,ksn->mn", moved, moved))
