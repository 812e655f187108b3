"""Textbook MOON and FedProto: losses on the features of a batch.

This file was written from the project's table of exact updates and its specification, apart from
the library: its author did not read the library's source, and it imports nothing but torch and its
sister files. Methods, models and clients are the plain data of ``loop``.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedfm.verify.textbook.loop import Batch, FedAvg, frozen_copy
from fedfm.verify.textbook.parts import Anchors, Client, mean_or_zero, unit, update_anchors


@dataclass(kw_only=True)
class Moon(FedAvg):
    """MOON: local loss + mu CE([sim(f, f_glob), sim(f, f_prev)] / tau, 0); server as FedAvg.

    f is the feature by the model in training, f_glob by the received global model, f_prev by the
    client's model after its last local training (the received one for a client that never took
    part), the latter two frozen in eval mode. sim is the cosine similarity; the mean is over the
    batch. ``previous[id]`` is the previous local model (no entry: never took part).
    """

    mu: float
    tau: float = 0.5
    previous: dict[Hashable, nn.Module] = field(default_factory=dict)

    def start_round(self, cohort: Sequence[Client]) -> None:
        """Before local training: the received global model is frozen."""
        self.received = frozen_copy(self.model)

    def penalty(self, local: nn.Module, client: Client, batch: Batch, features: Tensor) -> Tensor:
        """Term of the local loss: mu (1 / B) sum_b -log(e^{g_b} / (e^{g_b} + e^{q_b})).

        g_b = sim(f_b, f_glob_b) / tau and q_b = sim(f_b, f_prev_b) / tau.
        """
        x, _ = batch
        global_features, _ = self.received(x)
        previous_features, _ = self.previous.get(client["id"], self.received)(x)
        terms = []
        for b in range(len(x)):
            f = unit(features[b])
            g = (f * unit(global_features[b])).sum() / self.tau
            q = (f * unit(previous_features[b])).sum() / self.tau
            terms.append(torch.logsumexp(torch.stack([g, q]), dim=0) - g)
        return self.mu * mean_or_zero(terms, features)

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """The clients' models become their previous ones; x+ = sum_i p_i y_i."""
        for client, local in zip(cohort, local_models, strict=True):
            self.previous[client["id"]] = frozen_copy(local)
        return super().server(cohort, local_models)


@dataclass(kw_only=True)
class FedProto(FedAvg):
    """FedProto, generalized: local loss + lambda mean_b ||f_b - prototype of b's class||^2.

    Raw features, no normalisation; the squared distance is summed over the d coordinates, and the
    mean is over the batch's samples whose class has a prototype. Before local training the
    prototypes are made anew with the received model in eval mode: class means of the cohort's raw
    features, weighted by class counts; an absent class keeps its last one. Server as FedAvg.
    ``strength`` is lambda, ``anchors`` are the last prototypes, by class. The first ``wait`` rounds
    are FedAvg's.
    """

    strength: float
    wait: int = 0
    anchors: Anchors = field(default_factory=dict, init=False)

    def start_round(self, cohort: Sequence[Client]) -> None:
        """Before local training: prototype of c = sum_i n_ic mean_ic / sum_i n_ic."""
        self.wait -= 1
        if self.wait < 0:
            received = [self.model for _ in cohort]
            self.anchors = update_anchors(received, cohort, self.anchors, "weighted")

    def penalty(self, local: nn.Module, client: Client, batch: Batch, features: Tensor) -> Tensor:
        """Term of the local loss: lambda (1 / m) sum_b ||f_b - prototype||^2; 0 for m = 0."""
        _, y = batch
        terms = []
        for f, c in zip(features, y.tolist(), strict=True):
            if c in self.anchors:
                terms.append(((f - self.anchors[c]) ** 2).sum())
        return self.strength * mean_or_zero(terms, features)
