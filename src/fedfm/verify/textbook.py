"""Textbook federated averaging and FedFM: the oracle the library is tested against.

This file was written from the paper (its Methodology and FedFM-Lite sections) and the project's
specification, apart from the library: its author did not read the library's source, and it imports
nothing but torch (``local_batches`` came later and shares no code with it either). It favours being
easy to check by eye over being fast: whole models are copied, clients and batches are looped over,
and the matching losses loop over samples and classes.

Plain data everywhere:

* A model is an ``nn.Module`` whose ``forward(x)`` returns ``(features [B, d], logits [B, C])``. No
  function here changes the model that it is given, nor its train or eval mode.
* A client is a mapping with ``"batches"`` (a list of ``(x, y)``, one per local step, in order),
  ``"samples"`` (n_k, for the weight p_k), ``"data"`` (the pair ``(x, y)`` of its whole training
  data, for the anchors) and, for methods that keep something of it, ``"id"``.
* Anchors are a dict from class to a raw (un-normalised) vector of length d. A class without an
  entry has no anchor.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Anchors = dict[int, Tensor]
Counts = dict[int, int]
Client = Mapping[str, Any]
ExtraLoss = Callable[[Tensor, Tensor, int], Tensor]


# --- Federated averaging ---------------------------------------------------------------------


def local_batches(
    samples: Sequence[int],
    shuffled: Callable[[Sequence[int]], Iterable[int]],
    epochs: int,
    batch_size: int,
    keep_last: bool,
) -> list[list[int]]:
    """Batches of a client in a round: every epoch cuts the samples, shuffled anew, into batches.

    The last batch of an epoch is left out if it is short, unless ``keep_last`` or it is the only
    one.
    """
    batches = []
    for _ in range(epochs):
        order = list(shuffled(samples))
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            if len(batch) == batch_size or keep_last or first == 0:
                batches.append(batch)
    return batches


def train_locally(
    start: nn.Module,
    client: Client,
    client_index: int,
    lr: float,
    momentum: float,
    weight_decay: float,
    extra_loss: ExtraLoss | None = None,
) -> nn.Module:
    """Local training: w <- w - eta * d/dw [CE(w) + extra(w)], one SGD step per batch.

    The optimiser is new, so momentum starts at zero. ``start`` is copied and left as it was; the
    copy, parameters and buffers, is the client's local model.
    """
    local = copy.deepcopy(start)
    local.train()
    optimiser = torch.optim.SGD(
        local.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay
    )
    for x, y in client["batches"]:
        optimiser.zero_grad()
        features, logits = local(x)
        loss = nn.functional.cross_entropy(logits, y)
        if extra_loss is not None:
            loss = loss + extra_loss(features, y, client_index)
        torch.autograd.backward(loss)
        optimiser.step()
    return local


def average_models(
    template: nn.Module, models: Sequence[nn.Module], samples: Sequence[int]
) -> nn.Module:
    """Model aggregation: w = sum_k p_k w_k with p_k = n_k / sum_j n_j over the cohort.

    Parameters and floating-point buffers are averaged so; an integer buffer (BatchNorm's
    ``num_batches_tracked``) takes the largest of the clients' values.
    """
    total = sum(samples)
    result = copy.deepcopy(template)
    local_parameters = [dict(model.named_parameters()) for model in models]
    local_buffers = [dict(model.named_buffers()) for model in models]
    with torch.no_grad():
        for name, parameter in result.named_parameters():
            mean = torch.zeros_like(parameter)
            for k in range(len(models)):
                mean = mean + (samples[k] / total) * local_parameters[k][name]
            parameter.copy_(mean)
        for name, buffer in result.named_buffers():
            if buffer.is_floating_point():
                mean = torch.zeros_like(buffer)
                for k in range(len(models)):
                    mean = mean + (samples[k] / total) * local_buffers[k][name]
                buffer.copy_(mean)
            else:
                largest = local_buffers[0][name]
                for k in range(1, len(models)):
                    largest = torch.maximum(largest, local_buffers[k][name])
                buffer.copy_(largest)
    return result


def fedavg_round(
    model: nn.Module,
    clients: Sequence[Client],
    lr: float,
    momentum: float,
    weight_decay: float,
    extra_loss: ExtraLoss | None = None,
) -> tuple[nn.Module, list[nn.Module]]:
    """A round of FedAvg: w+ = sum_k p_k w_k, w_k from local SGD started at the global model.

    ``extra_loss(features, labels, client_index)`` is added to the mean cross-entropy of every
    batch. Returns the new global model and the clients' local models, in the clients' order.
    """
    local_models = []
    for k, client in enumerate(clients):
        local_models.append(train_locally(model, client, k, lr, momentum, weight_decay, extra_loss))
    samples = [int(client["samples"]) for client in clients]
    return average_models(model, local_models, samples), local_models


# --- Anchors ---------------------------------------------------------------------------------


def local_anchors(model: nn.Module, x: Tensor, y: Tensor, classes: Iterable[int]) -> Anchors:
    """Local anchors: a_{k,c} = (1 / |B_{k,c}|) sum of f_mid(w, x) over (x, c) in B_{k,c}.

    Raw features, model in eval mode, no gradient. A class in ``classes`` of which the data hold no
    sample gets no entry.
    """
    frozen = copy.deepcopy(model)
    frozen.eval()
    anchors: Anchors = {}
    with torch.no_grad():
        for c in classes:
            features = []
            for i in range(len(y)):
                if int(y[i]) == c:
                    feature, _ = frozen(x[i : i + 1])
                    features.append(feature[0])
            if features:
                anchors[c] = torch.stack(features).sum(dim=0) / len(features)
    return anchors


def class_counts(y: Tensor) -> Counts:
    """Class counts: n_{k,c} = |B_{k,c}|, for the classes that occur in ``y``."""
    counts: Counts = {}
    for label in y.tolist():
        counts[label] = counts.get(label, 0) + 1
    return counts


def global_anchors_weighted(
    uploads: Sequence[tuple[Mapping[int, Tensor], Mapping[int, int]]],
    previous: Mapping[int, Tensor],
) -> Anchors:
    """Global anchors, weighted: a_c = sum_k n_{k,c} a_{k,c} / sum_k n_{k,c}.

    ``uploads`` holds each client's (anchors, counts). A class that nobody in the cohort holds keeps
    its previous anchor; one that was never seen has no entry.
    """
    result: Anchors = dict(previous)
    held = {c for anchors, _ in uploads for c in anchors}
    for c in sorted(held):
        weighted_sum: Tensor | None = None
        count = 0
        for anchors, counts in uploads:
            if c in anchors:
                term = counts[c] * anchors[c]
                weighted_sum = term if weighted_sum is None else weighted_sum + term
                count += counts[c]
        assert weighted_sum is not None
        result[c] = weighted_sum / count
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
    held = {c for anchors in uploads for c in anchors}
    for c in sorted(held):
        contributions = []
        for anchors in uploads:
            if c in anchors:
                contributions.append(anchors[c])
            elif c in previous:
                contributions.append(previous[c])
        result[c] = torch.stack(contributions).sum(dim=0) / len(contributions)
    return result


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
    return _mean_or_zero(terms, features)


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
    return _mean_or_zero(terms, features)


def _mean_or_zero(terms: Sequence[Tensor], features: Tensor) -> Tensor:
    """Mean of the terms: (1 / m) sum_i q_i; for m = 0 a zero that can be differentiated."""
    if not terms:
        return 0.0 * features.sum()
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total / len(terms)


def matching_loss(
    anchors: Mapping[int, Tensor], strength: float, guide: str, temperature: float
) -> ExtraLoss:
    """Matching term: lambda * Q(w; A), as an ``extra_loss`` for local training."""
    if guide not in ("cg", "l2"):
        raise ValueError(f"guide must be 'cg' or 'l2', not {guide!r}")

    def loss(features: Tensor, labels: Tensor, client_index: int) -> Tensor:
        if guide == "cg":
            return strength * cg_loss(features, labels, anchors, temperature)
        return strength * l2_loss(features, labels, anchors)

    return loss


# --- FedFM -----------------------------------------------------------------------------------


def update_anchors(
    models: Sequence[nn.Module],
    clients: Sequence[Client],
    previous: Mapping[int, Tensor],
    aggregation: str,
) -> Anchors:
    """Anchor updating: every a_{k,c} with client k's model ``models[k]``, then the global a_c."""
    local: list[Anchors] = []
    counts: list[Counts] = []
    for model, client in zip(models, clients, strict=True):
        x, y = client["data"]
        count = class_counts(y)
        local.append(local_anchors(model, x, y, sorted(count)))
        counts.append(count)
    if aggregation == "weighted":
        return global_anchors_weighted(list(zip(local, counts, strict=True)), previous)
    if aggregation == "uniform":
        return global_anchors_uniform(local, previous)
    raise ValueError(f"aggregation must be 'weighted' or 'uniform', not {aggregation!r}")


def fedfm_round(
    model: nn.Module,
    clients: Sequence[Client],
    anchors: Mapping[int, Tensor],
    *,
    strength: float,
    guide: str = "cg",
    aggregation: str = "weighted",
    temperature: float,
    active: bool,
    lr: float,
    momentum: float,
    weight_decay: float,
) -> tuple[nn.Module, Anchors]:
    """A round of FedFM: A+ from the received w; w_k minimises F_k + lambda Q_k(.; A+); average.

    Where not ``active`` (a round before T_s): plain FedAvg, and the anchors stay as they are.
    Returns the new global model and the new global anchors.
    """
    if not active:
        new_model, _ = fedavg_round(model, clients, lr, momentum, weight_decay)
        return new_model, dict(anchors)
    received = [model for _ in clients]
    new_anchors = update_anchors(received, clients, anchors, aggregation)
    matching = matching_loss(new_anchors, strength, guide, temperature)
    new_model, _ = fedavg_round(model, clients, lr, momentum, weight_decay, matching)
    return new_model, new_anchors
