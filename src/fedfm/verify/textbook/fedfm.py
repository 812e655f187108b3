"""Textbook FedFM and FedFM-Lite on any other method.

This file was written from the project's table of exact updates and its specification, apart from
the library: its author did not read the library's source, and it imports nothing but torch and its
sister files. ``FedFMLite`` came later, from decisions 4 and 6. Methods, models and clients are the
plain data of ``loop``.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from torch import nn

from fedfm.verify.textbook.loop import FedAvg
from fedfm.verify.textbook.parts import Anchors, Client, matching_loss, update_anchors


@dataclass(kw_only=True)
class FedFM:
    """FedFM on any method: A+ from the received x; the method's round + lambda Q(.; A+).

    The first ``wait`` rounds (those before T_s) are the method's own. With ``warm_up`` rounds W,
    lambda is multiplied by min(1, (t - T_s + 1) / W) in round t: 1 / W in round T_s, 1 in the W-th
    round.
    """

    method: FedAvg
    strength: float
    guide: str
    aggregation: str
    temperature: float
    wait: int = 0
    warm_up: int = 0
    played: int = 0
    anchors: Anchors = field(default_factory=dict, init=False)

    @property
    def model(self) -> nn.Module:
        """Global model: x."""
        return self.method.model

    def round(self, cohort: Sequence[Client]) -> None:
        """One round: global anchors from the received model, then the method's round."""
        if self.played >= self.wait:
            received = [self.method.received_by(client) for client in cohort]
            self.anchors = self.new_anchors(received, cohort)
        self.match()
        self.method.round(cohort)
        self.played += 1

    def new_anchors(self, models: Sequence[nn.Module], cohort: Sequence[Client]) -> Anchors:
        """Global anchors of the round, from these models of the cohort."""
        return update_anchors(models, cohort, self.anchors, self.aggregation)

    def match(self) -> None:
        """The method's extra loss becomes the round's lambda Q(.; A), if there are anchors."""
        if self.anchors:
            self.method.extra_loss = matching_loss(
                self.anchors, self.strength_now(), self.guide, self.temperature
            )

    def strength_now(self) -> float:
        """Lambda of the round that begins: strength min(1, (t - T_s + 1) / W)."""
        if self.warm_up == 0:
            return self.strength
        return self.strength * min(1.0, (self.played - self.wait + 1) / self.warm_up)


@dataclass(kw_only=True)
class FedFMLite(FedFM):
    """FedFM-Lite on a method whose clients keep nothing: anchors travel in every round.

    A client trains with lambda Q(.; A), A the last global anchors, then sends its local anchors,
    taken with its own trained model; the server makes the new A of them. Models go up every
    ``every`` rounds. In between a client goes on from its own model, while x is still the global
    model of the last exchange: a pull mu (w - x) is towards that. A client without a model of its
    own since then starts from x.

    The first ``wait`` rounds (T_s) have no matching term; the last of them sends the first anchors.
    With T_s = 0 the first anchors come after round 0 as with T_s = 1, and so does the warm-up.
    """

    every: int = 1
    own_models: dict[Hashable, nn.Module] = field(default_factory=dict)

    def round(self, cohort: Sequence[Client]) -> None:
        """One round: local training, local anchors, and in the last of a cycle the server."""
        self.match()
        for client in cohort:
            start = self.own_models.get(client["id"], self.model)
            self.own_models[client["id"]] = self.method.train_locally(client, start)
        trained = [self.own_models[client["id"]] for client in cohort]
        self.played += 1
        if self.played >= self.wait:
            self.anchors = self.new_anchors(trained, cohort)
        if self.played % self.every == 0:
            self.method.model = self.method.server(cohort, trained)
            self.own_models = {}
        self.method.lr = self.method.lr * self.method.lr_gamma

    def strength_now(self) -> float:
        """Lambda of the round that begins: that of FedFM with T_s of at least 1."""
        if self.warm_up == 0:
            return self.strength
        return self.strength * min(1.0, (self.played - max(self.wait, 1) + 1) / self.warm_up)
