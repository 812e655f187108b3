"""Textbook CCVR: class means and covariances of all clients' features, from sums.

This file was written from the paper and the project's table of its updates, apart from the library:
its author did not read the library's methods, and it imports nothing but torch.

After the last round every client (not only the last cohort) computes, with the final global model
in eval mode, the sums of its classes: n, the sum of z and the sum of z z^T, z the raw features of a
sample [d]. The server adds the sums of all clients, class by class. Mean and covariance of a class
are then those of the pooled samples, exactly, however they are divided among the clients; the
paper's formula in terms of the clients' own means and covariances is the same number.

Then the server retrains the head, and the head alone, body and buffers of the final model as they
are:

1. For every class c that has a mean, it draws ``samples`` features from the normal distribution
   N(mu_c, S_c): mu_c + R_c e with e standard normal and R_c R_c^T = S_c. Any such R_c has the same
   distribution; S_c is singular where n_c <= d, so that R_c is a symmetric or eigenvalue root, with
   eigenvalues that rounding made negative taken as 0. Equally many for every class, whatever n_c:
   the virtual data are balanced.
2. The drawn features, through ReLU and Tukey's transformation z^(1/2) in the paper (from memory;
   in that case the statistics are of the transformed features, and the head is asked so, too), are
   the training data of the head. Without them, the form here, features are raw throughout.
3. The head starts from the final model's, and is trained by SGD on the cross-entropy of the virtual
   features, in shuffled batches, some epochs. Nothing goes back to the clients; the model with the
   new head is what is evaluated.

A class that nobody has is neither drawn nor trained but by the cross-entropy of the others.
"""

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

Sums = tuple[int, Tensor, Tensor]  # n, the sum of z [d], the sum of z z^T [d, d]


def class_sums(model: nn.Module, x: Tensor, y: Tensor) -> dict[int, Sums]:
    """Sums of a client's classes: n, sum of z, sum of z z^T. A class without samples has none."""
    frozen = copy.deepcopy(model).eval()
    with torch.no_grad():
        features, _ = frozen(x)
    sums: dict[int, Sums] = {}
    for z, c in zip(features, y.tolist(), strict=True):
        n, first, second = sums.get(
            c, (0, torch.zeros_like(z), torch.zeros_like(torch.outer(z, z)))
        )
        sums[c] = n + 1, first + z, second + torch.outer(z, z)
    return sums


def add_sums(clients: Sequence[Mapping[int, Sums]]) -> dict[int, Sums]:
    """Sums of all clients together, class by class."""
    total: dict[int, Sums] = {}
    for sums in clients:
        for c, (n, first, second) in sums.items():
            if c in total:
                total[c] = total[c][0] + n, total[c][1] + first, total[c][2] + second
            else:
                total[c] = n, first, second
    return total


def mixture(sums: Mapping[int, Sums]) -> dict[int, tuple[Tensor, Tensor]]:
    """Mean [d] and covariance [d, d] of every class, the latter with n - 1.

    mu = (sum of z) / n; S = (sum of z z^T - n mu mu^T) / (n - 1). The covariance of a single sample
    is 0.
    """
    result = {}
    for c, (n, first, second) in sums.items():
        mu = first / n
        spread = second - n * torch.outer(mu, mu)
        result[c] = mu, spread / (n - 1) if n > 1 else torch.zeros_like(spread)
    return result


def mixture_of_clients(
    statistics: Sequence[tuple[int, Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Mean and covariance of a class in the paper's form, from (n_i, mu_i, S_i) of its clients.

    mu = sum_i n_i mu_i / n; S = (sum_i (n_i - 1) S_i + sum_i n_i mu_i mu_i^T - n mu mu^T) / (n - 1)
    with n = sum_i n_i > 1, S_i with n_i - 1, and 0 for n_i = 1.
    """
    n = sum(count for count, _, _ in statistics)
    mu = torch.stack([count * mean / n for count, mean, _ in statistics]).sum(0)
    spread = -n * torch.outer(mu, mu)
    for count, mean, covariance in statistics:
        spread = spread + (count - 1) * covariance + count * torch.outer(mean, mean)
    return mu, spread / (n - 1)


def drawn_features(mean: Tensor, covariance: Tensor, normal: Tensor) -> Tensor:
    """Features of a class [M, d] from standard normal numbers [M, d]: z_m = mu + R e_m.

    R is the symmetric root of S: sum_k sqrt(max(l_k, 0)) v_k v_k^T, l_k and v_k the eigenvalues and
    eigenvectors of S.
    """
    root = torch.zeros_like(covariance)
    eigenvalues, eigenvectors = torch.linalg.eigh(covariance)
    for value, v in zip(eigenvalues, eigenvectors.T, strict=True):
        root = root + value.clamp(min=0).sqrt() * torch.outer(v, v)
    return torch.stack([mean + root @ e for e in normal])


def retrained_head(
    head: nn.Linear,
    features: Tensor,
    labels: Tensor,
    orders: Sequence[Sequence[int]],
    batch_size: int,
    lr: float,
    momentum: float = 0.0,
) -> nn.Linear:
    """Head after SGD from its present weights, on the mean cross-entropy of drawn features.

    m <- momentum m + g; w <- w - lr m, one step per batch. An epoch goes through ``features`` [m,
    d] and ``labels`` [m] in an order of ``orders``, cut into batches; the last one may be short.
    """
    result = copy.deepcopy(head)
    optimiser = torch.optim.SGD(result.parameters(), lr=lr, momentum=momentum)
    for order in orders:
        for first in range(0, len(order), batch_size):
            chosen = list(order[first : first + batch_size])
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(result(features[chosen]), labels[chosen])
            torch.autograd.backward(loss)
            optimiser.step()
    return result
