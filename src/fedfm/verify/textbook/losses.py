"""Textbook FedNTD, FedLC, FedRS, balanced softmax, FedDecorr and FedUV: other local losses.

This file was written from the papers and the project's table of their updates, apart from the
library: its author did not read the library's methods, and it imports nothing but torch and its
sister files. Methods, models and clients are the plain data of ``loop``.

Notation: z_b the raw features of the batch's sample b, f_b its logits, y_b its class; B samples in
the batch, C classes, d features; n_c the samples of class c in all of the client's training data.
Losses are means over the batch, servers are FedAvg's.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor, nn

from fedfm.verify.textbook.loop import Batch, FedAvg, frozen_copy
from fedfm.verify.textbook.parts import Client

# --- Helpers ---------------------------------------------------------------------------------


def class_counts(client: Client) -> dict[int, int]:
    """Class counts: n_c of the classes that the client has."""
    return dict(sorted(Counter(client["data"][1].tolist()).items()))


def log_softmax_of(chosen: dict[int, Tensor]) -> dict[int, Tensor]:
    """Log of softmax over some classes: f_c - log sum_k exp(f_k)."""
    total = torch.logsumexp(torch.stack(list(chosen.values())), dim=0)
    return {c: value - total for c, value in chosen.items()}


# --- Knowledge of the global model -----------------------------------------------------------


@dataclass(kw_only=True)
class FedNTD(FedAvg):
    """FedNTD (Lee et al. 2022): cross-entropy + strength T^2 mean_b KL(q_b || p_b).

    p_b is the softmax of f_b / T over the C - 1 classes that are not y_b, q_b the same of the
    received global model's logits. That model is frozen and in eval mode; the paper does not say
    so, and in the public code its mode is that of the model it was copied from. T is
    ``temperature``.
    """

    strength: float = 1.0
    temperature: float = 1.0

    def data_loss(self, client: Client, batch: Batch, features: Tensor, logits: Tensor) -> Tensor:
        """Cross-entropy + strength T^2 (1 / B) sum_b sum_{c != y_b} q_bc (log q_bc - log p_bc)."""
        x, y = batch
        _, global_logits = frozen_copy(self.model)(x)
        terms = []
        for f, g, true in zip(logits, global_logits, y.tolist(), strict=True):
            others = [c for c in range(len(f)) if c != true]
            log_p = log_softmax_of({c: f[c] / self.temperature for c in others})
            log_q = log_softmax_of({c: g[c] / self.temperature for c in others})
            terms += [log_q[c].exp() * (log_q[c] - log_p[c]) for c in others]
        distillation = torch.stack(terms).sum() / len(y)
        plain = super().data_loss(client, batch, features, logits)
        return plain + self.strength * self.temperature**2 * distillation


# --- Losses that know the client's class counts ----------------------------------------------


@dataclass(kw_only=True)
class FedLC(FedAvg):
    """FedLC (Zhang et al. 2022): loss of the logits s_c = f_c - strength n_c^(-1/4).

    -log(exp(s_y) / sum_{c != y} exp(s_c)), mean over the batch. That the true class is left out of
    the denominator is from memory; with ``exclude_true`` false it is in it, as in all public code.
    Classes that the client lacks drop out. A client with a single class has no denominator then,
    and its loss is 0.
    """

    strength: float = 1.0
    exclude_true: bool = True

    def data_loss(self, client: Client, batch: Batch, features: Tensor, logits: Tensor) -> Tensor:
        """Loss of the data: (1 / B) sum_b (log sum_c exp(s_bc) - s_b,y_b)."""
        counts = class_counts(client)
        terms = []
        for f, true in zip(logits, batch[1].tolist(), strict=True):
            shifted = {c: f[c] - self.strength * n**-0.25 for c, n in counts.items()}
            below = [s for c, s in shifted.items() if c != true or not self.exclude_true]
            if below:
                terms.append(torch.logsumexp(torch.stack(below), dim=0) - shifted[true])
            else:
                terms.append(0.0 * f.sum())
        return torch.stack(terms).mean()


@dataclass(kw_only=True)
class FedRS(FedAvg):
    """FedRS (Li and Zhan 2021): cross-entropy of a_c f_c, a_c = 1 if n_c > 0, else ``alpha``.

    The form is from memory. The whole logit is scaled, with its bias, and in training alone. With
    ``graded``, the official code's form: a_c = alpha + (1 - alpha) n_c / max_k n_k (that code's
    logits have no bias).
    """

    alpha: float = 0.5
    graded: bool = False

    def data_loss(self, client: Client, batch: Batch, features: Tensor, logits: Tensor) -> Tensor:
        """Loss of the data: cross-entropy over all classes of the scaled logits."""
        counts = class_counts(client)
        terms = []
        for f, true in zip(logits, batch[1].tolist(), strict=True):
            scaled = {}
            for c in range(len(f)):
                share = counts.get(c, 0) / max(counts.values())
                held = share if self.graded else float(c in counts)
                scaled[c] = (self.alpha + (1 - self.alpha) * held) * f[c]
            terms.append(-log_softmax_of(scaled)[true])
        return torch.stack(terms).mean()


@dataclass(kw_only=True)
class BalancedSoftmax(FedAvg):
    """Balanced softmax (Ren et al. 2020): -log(n_y exp(f_y) / sum_c n_c exp(f_c)).

    So cross-entropy of f_c + log n_c, in training alone. Classes that the client lacks drop out.
    """

    def data_loss(self, client: Client, batch: Batch, features: Tensor, logits: Tensor) -> Tensor:
        """Loss of the data: cross-entropy of f_c + log n_c over the classes that it has."""
        log_counts = {c: torch.tensor(n).double().log() for c, n in class_counts(client).items()}
        terms = []
        for f, true in zip(logits, batch[1].tolist(), strict=True):
            shifted = {c: f[c] + log_n.to(f.dtype) for c, log_n in log_counts.items()}
            terms.append(-log_softmax_of(shifted)[true])
        return torch.stack(terms).mean()


# --- Losses of the features' and predictions' spread -----------------------------------------


@dataclass(kw_only=True)
class FedDecorr(FedAvg):
    """FedDecorr (Shi et al. 2023): cross-entropy + strength ||K||_F^2 / d^2.

    K is the d x d matrix of the features' correlations over the batch. (The paper's form is from
    memory.) Its diagonal, all ones, has no gradient. A feature that is the same in the whole batch
    correlates with none; a batch of one sample has no term. With ``averaged``, the public code's
    form, without its 1e-8 below the root: ((B - 1)^2 / B) times the mean of K_jk^2 over j != k.
    """

    strength: float = 0.1
    averaged: bool = False

    def penalty(self, local: nn.Module, client: Client, batch: Batch, features: Tensor) -> Tensor:
        """Term of the local loss: strength sum_jk K_jk^2 / d^2; 0 for B = 1."""
        samples, d = features.shape
        if samples == 1:
            return 0.0 * features.sum()
        total = 0.0 * features.sum()
        for j in range(d):
            for k in range(d):
                if j != k or not self.averaged:
                    total = total + correlation(features[:, j], features[:, k]) ** 2
        if self.averaged:
            return self.strength * (samples - 1) ** 2 / samples * total / (d * (d - 1))
        return self.strength * total / d**2


def correlation(first: Tensor, second: Tensor) -> Tensor:
    """Correlation: sum_b u_b v_b / sqrt(sum_b u_b^2 sum_b v_b^2), u and v less their means."""
    u = first - first.mean()
    v = second - second.mean()
    squares = (u * u).sum() * (v * v).sum()
    if squares == 0:
        return 0.0 * first.sum()
    return (u * v).sum() / squares.sqrt()


@dataclass(kw_only=True)
class FedUV(FedAvg):
    """FedUV (Son et al. 2024): cross-entropy + ``variance`` V + ``uniformity`` U.

    V = (1 / C) sum_c max(0, C^(-1/2) - std_b(p_bc)), p_b the softmax of f_b and std that with
    B - 1. The bound is the deviation that one-hot predictions have if every class occurs once. The
    default 2.5 is the paper's C / 4 for its ten classes, from memory: for C classes take C / 4.

    U = mean over pairs of samples of exp(-||z_i - z_j||^2 / m), m the median of those squared
    distances that are not 0, the lower one of two. As in the public code, the gradient passes
    through m, unless ``fixed_width``. A batch of one sample has neither term; one whose features
    are all equal has no U.
    """

    variance: float = 2.5
    uniformity: float = 0.5
    fixed_width: bool = False

    def data_loss(self, client: Client, batch: Batch, features: Tensor, logits: Tensor) -> Tensor:
        """Loss of the data: cross-entropy + variance V + uniformity U."""
        loss = super().data_loss(client, batch, features, logits)
        if len(features) > 1:
            loss = loss + self.variance * self.missing_variance(logits)
            loss = loss + self.uniformity * self.crowding(features)
        return loss

    def missing_variance(self, logits: Tensor) -> Tensor:
        """V of a batch: (1 / C) sum_c max(0, C^(-1/2) - std_b(p_bc))."""
        samples, classes = logits.shape
        terms = []
        for c in range(classes):
            p = torch.stack([f[c].exp() / f.exp().sum() for f in logits])
            std = (((p - p.mean()) ** 2).sum() / (samples - 1)).sqrt()
            terms.append(torch.relu(classes**-0.5 - std))
        return torch.stack(terms).mean()

    def crowding(self, features: Tensor) -> Tensor:
        """U of a batch: mean_{i < j} exp(-||z_i - z_j||^2 / m)."""
        pairs: Sequence[Tensor] = [((u - v) ** 2).sum() for u, v in combinations(features, 2)]
        apart = sorted((d for d in pairs if d != 0), key=lambda d: d.detach().item())
        if not apart:
            return 0.0 * features.sum()
        m = apart[(len(apart) - 1) // 2]
        if self.fixed_width:
            m = m.detach()
        return torch.stack([(-d / m).exp() for d in pairs]).mean()
