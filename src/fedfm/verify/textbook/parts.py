"""Textbook batches, averages, anchors and matching losses: what the library is tested against.

This file was written from the paper (its Methodology and FedFM-Lite sections) and the project's
specification, apart from the library: its author did not read the library's source, and it imports
nothing but torch. (``local_batches`` came later and shares no code with the library either.) It
favours being easy to check by eye over being fast. ``loop`` plays rounds with it.

Plain data everywhere:

* A model is an ``nn.Module`` whose ``forward(x)`` returns ``(features [B, d], logits [B, C])``. No
  function here changes the model that it is given, nor its train or eval mode.
* A client is a mapping with ``"batches"`` (a list of ``(x, y)``, one per local step, in order),
  ``"samples"`` (n_k, for the weight p_k), ``"data"`` (the pair ``(x, y)`` of its whole training
  data, for the anchors) and ``"id"``, under which methods keep its state.
* Anchors are a dict from class to a raw (un-normalised) vector of length d. A class without an
  entry has no anchor.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Anchors = dict[int, Tensor]
Client = Mapping[str, Any]
ExtraLoss = Callable[[Tensor, Tensor], Tensor]


# --- Federated averaging ---------------------------------------------------------------------


def local_batches(
    samples: Sequence[int],
    shuffle: Callable[[Sequence[int]], Iterable[int]],
    epochs: int,
    batch_size: int,
    keep_last: bool,
) -> list[list[int]]:
    """Batches of a client in a round: every epoch shuffles the samples and cuts them into batches.

    The last batch of an epoch is left out if it is short, unless ``keep_last`` or it is the only
    one.
    """
    batches = []
    for _ in range(epochs):
        order = list(shuffle(samples))
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            if len(batch) == batch_size or keep_last or first == 0:
                batches.append(batch)
    return batches


def average_models(models: Sequence[nn.Module], samples: Sequence[int]) -> nn.Module:
    """Model aggregation: w = sum_k p_k w_k with p_k = n_k / sum_j n_j over the cohort.

    Parameters and floating-point buffers are averaged so; an integer buffer (BatchNorm's
    ``num_batches_tracked``) takes the largest of the clients' values.
    """
    result = copy.deepcopy(models[0])
    for name, value in result.state_dict().items():
        local = torch.stack([model.state_dict()[name] for model in models])
        if value.is_floating_point():
            p = torch.tensor(samples, dtype=value.dtype) / sum(samples)
            value.copy_(torch.tensordot(p, local, dims=1))
        else:
            value.copy_(local.amax(dim=0))
    return result


# --- Anchors ---------------------------------------------------------------------------------


def local_anchors(model: nn.Module, x: Tensor, y: Tensor) -> Anchors:
    """Local anchors: a_{k,c} = (1 / |B_{k,c}|) sum of f_mid(w, x) over (x, c) in B_{k,c}.

    Raw features, model in eval mode, no gradient. A class without a sample has no entry.
    """
    frozen = copy.deepcopy(model).eval()
    with torch.no_grad():
        features, _ = frozen(x)
    return {c: features[y == c].mean(dim=0) for c in sorted(set(y.tolist()))}


def global_anchors_weighted(
    uploads: Sequence[Mapping[int, Tensor]],
    counts: Sequence[Mapping[int, int]],
    previous: Mapping[int, Tensor],
) -> Anchors:
    """Global anchors, weighted: a_c = sum_k n_{k,c} a_{k,c} / sum_k n_{k,c}.

    ``uploads`` holds each client's anchors, ``counts`` its n_{k,c}. A class that nobody in the
    cohort holds keeps its previous anchor; one that was never seen has no entry.
    """
    result: Anchors = dict(previous)
    for c in sorted({c for anchors in uploads for c in anchors}):
        holders = [k for k, anchors in enumerate(uploads) if c in anchors]
        total = sum(counts[k][c] for k in holders)
        result[c] = torch.stack([counts[k][c] / total * uploads[k][c] for k in holders]).sum(dim=0)
    return result


def global_anchors_uniform(
    uploads: Sequence[Mapping[int, Tensor]], previous: Mapping[int, Tensor]
) -> Anchors:
    """Global anchors, uniform: a_c = (1 / K) sum_k a_{k,c}, no class counts needed.

    A client without class c contributes the previous global anchor of c, or, where there is none,
    is left out of that class's mean. A class that nobody in the cohort holds keeps its previous
    anchor; one that was never seen has no entry.
    """
    result: Anchors = dict(previous)
    for c in sorted({c for anchors in uploads for c in anchors}):
        contributions = []
        for anchors in uploads:
            if c in anchors:
                contributions.append(anchors[c])
            elif c in previous:
                contributions.append(previous[c])
        result[c] = torch.stack(contributions).mean(dim=0)
    return result


def update_anchors(
    models: Sequence[nn.Module],
    clients: Sequence[Client],
    previous: Mapping[int, Tensor],
    aggregation: str,
) -> Anchors:
    """Anchor updating: every a_{k,c} with client k's model ``models[k]``, then the global a_c."""
    uploads, counts = [], []
    for model, client in zip(models, clients, strict=True):
        x, y = client["data"]
        uploads.append(local_anchors(model, x, y))
        counts.append(Counter(y.tolist()))
    if aggregation == "weighted":
        return global_anchors_weighted(uploads, counts, previous)
    if aggregation == "uniform":
        return global_anchors_uniform(uploads, previous)
    raise ValueError(f"aggregation must be 'weighted' or 'uniform', not {aggregation!r}")


# --- Matching losses -------------------------------------------------------------------------


def unit(vector: Tensor) -> Tensor:
    """Normalisation: v / |v| with |v| = sqrt(sum_j v_j^2). The zero vector is refused."""
    length = (vector * vector).sum().sqrt()
    if float(length.detach()) == 0.0:
        raise ValueError("a zero vector has no direction: choose test data without zero features")
    return vector / length


def cg_loss(
    features: Tensor, labels: Tensor, anchors: Mapping[int, Tensor], temperature: float
) -> Tensor:
    """Contrastive guiding: q = -log s_c, s_n = exp(z_n) / sum_i exp(z_i).

    Here z_n = <a_n / |a_n|, f / |f|> / alpha, and n and i run over the classes that have an anchor.
    The mean is over the samples whose own class has one; it is 0 where there is no such sample.
    """
    terms = []
    for i in range(len(labels)):
        c = int(labels[i])
        if c not in anchors:
            continue
        f = unit(features[i])
        z = {n: (unit(anchor) * f).sum() / temperature for n, anchor in anchors.items()}
        log_of_sum = torch.logsumexp(torch.stack(list(z.values())), dim=0)
        terms.append(log_of_sum - z[c])
    return mean_or_zero(terms, features)


def l2_loss(features: Tensor, labels: Tensor, anchors: Mapping[int, Tensor]) -> Tensor:
    """L2 guiding: q = || f / |f| - a_c / |a_c| ||^2, summed over the d coordinates.

    The mean is over the samples whose own class has an anchor; it is 0 where there is no such
    sample.
    """
    terms = []
    for i in range(len(labels)):
        c = int(labels[i])
        if c not in anchors:
            continue
        difference = unit(features[i]) - unit(anchors[c])
        terms.append((difference * difference).sum())
    return mean_or_zero(terms, features)


def mean_or_zero(terms: Sequence[Tensor], features: Tensor) -> Tensor:
    """Mean of the terms: (1 / m) sum_i q_i; for m = 0 a zero that can be differentiated."""
    return torch.stack(list(terms)).mean() if terms else 0.0 * features.sum()


def matching_loss(
    anchors: Mapping[int, Tensor], strength: float, guide: str, temperature: float
) -> ExtraLoss:
    """Matching term: lambda * Q(w; A), as an ``extra_loss`` for local training."""
    if guide not in ("cg", "l2"):
        raise ValueError(f"guide must be 'cg' or 'l2', not {guide!r}")

    def loss(features: Tensor, labels: Tensor) -> Tensor:
        if guide == "cg":
            return strength * cg_loss(features, labels, anchors, temperature)
        return strength * l2_loss(features, labels, anchors)

    return loss
