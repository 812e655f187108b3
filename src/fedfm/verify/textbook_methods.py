"""Textbook FedAvg, FedAvgM, FedProx, SCAFFOLD, FedDyn, FedNova, MOON, FedProto, FedFM and its Lite.

This file was written from the project's table of exact updates and its specification, apart from
the library: its author did not read the library's source, and it imports nothing but torch and its
sister file, ``textbook``. Later changes added ``FedFMLite`` (from decisions 4 and 6) and shortened
the rest; clipping and a rate that decays from round to round came last. It favours being easy to
check by eye over being fast: whole models are copied, and clients, batches and samples are looped
over.

Notation: x the global parameters at the start of the round, y_i client i's after its local steps,
w those on the way, eta the local learning rate, K_i the local steps, rho the local momentum, p_i
the share of client i's samples in the cohort's; S of N clients take part.

* A method is an object: ``round(cohort)`` plays one round and replaces ``model``; what else the
  server and the clients remember are its other attributes. Models and clients are the plain data
  of the sister file; a client's ``"id"`` names its state.
* Only parameters, all of them trainable, take part in corrections, controls and momentum.
  Floating-point buffers are averaged with p_i in every method, and integer buffers take the largest
  value.
* ``extra_loss(features, labels)`` is added to the loss of every batch. ``FedFM`` and ``FedFMLite``
  use it to match features on top of any other method. ``model_loss(model)``, a loss that needs no
  data, is added, too.
"""

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedfm.verify.textbook import (
    Anchors,
    Client,
    ExtraLoss,
    average_models,
    matching_loss,
    mean_or_zero,
    unit,
    update_anchors,
)

Vector = dict[str, Tensor]  # one tensor per parameter, by name
Batch = tuple[Tensor, Tensor]  # x and y


# --- Helpers ---------------------------------------------------------------------------------


def values(model: nn.Module) -> Vector:
    """Parameters of a model, as a copy without gradient."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def zeros(model: nn.Module) -> Vector:
    """Zero vector: 0 for every parameter."""
    return {name: torch.zeros_like(value) for name, value in values(model).items()}


def replace_values(model: nn.Module, new: Mapping[str, Tensor]) -> nn.Module:
    """Copy of the model in which the parameters are ``new``."""
    result = copy.deepcopy(model)
    result.load_state_dict(new, strict=False)
    return result


def frozen_copy(model: nn.Module) -> nn.Module:
    """Copy of the model, parameters and buffers, in eval mode; it gets no gradient."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def unit_gradient_sum(steps: int, momentum: float, mu: float = 0.0, lr: float = 1.0) -> float:
    """Normaliser: a = -d / eta, d how far ``steps`` unit gradients move a parameter.

    The recursion of heavy-ball SGD itself, with the pull mu of a proximal term (mu = 0: a(K, rho),
    whatever eta): m <- rho m + (1 + mu d), d <- d - eta m, from m = d = 0.
    """
    m = 0.0
    d = 0.0
    for _ in range(steps):
        m = momentum * m + (1.0 + mu * d)
        d = d - lr * m
    return -d / lr


def proximal_term(local: nn.Module, received: Mapping[str, Tensor], mu: float) -> Tensor:
    """Proximal term: (mu / 2) ||w - x||^2, over all parameters."""
    squares = [((w - received[name]) ** 2).sum() for name, w in local.named_parameters()]
    return 0.5 * mu * torch.stack(squares).sum()


# --- FedAvg, which the others change in one place or two -------------------------------------


@dataclass
class FedAvg:
    """FedAvg: local SGD from x; x+ = sum_i p_i y_i.

    The other methods override what is theirs: ``start_round`` (before local training),
    ``data_loss`` (cross-entropy), ``penalty`` (a term of the local loss), ``backward`` (the
    gradients of a step), ``correct_gradients`` (between the backward pass and the optimiser's step)
    and ``server`` (from the y_i to x+, and all states).

    ``lr`` is eta of the present round; every round multiplies it by ``lr_gamma``. Where
    ``clip_norm`` is above 0, the whole gradient is clipped to that norm: after its correction and
    before weight decay, or before its correction with ``clip_first``.
    """

    model: nn.Module
    clients_total: int
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    extra_loss: ExtraLoss | None = None
    lr_gamma: float = 1.0
    clip_norm: float = 0.0
    clip_first: bool = False
    model_loss: Callable[[nn.Module], Tensor] | None = None

    def round(self, cohort: Sequence[Client]) -> None:
        """One round: every client of the cohort trains from x, then the server makes x+."""
        self.start_round(cohort)
        local_models = [self.train_locally(client, self.model) for client in cohort]
        self.model = self.server(cohort, local_models)
        self.lr = self.lr * self.lr_gamma

    def train_locally(self, client: Client, start: nn.Module) -> nn.Module:
        """Local training from a copy of ``start``: one SGD step per batch, momentum from zero."""
        local = copy.deepcopy(start).train()
        optimiser = torch.optim.SGD(
            local.parameters(),
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )
        for batch in client["batches"]:
            optimiser.zero_grad()
            self.backward(local, client, batch)
            if self.clip_first:
                self.clip_gradients(local)
            self.correct_gradients(local, client)
            if not self.clip_first:
                self.clip_gradients(local)
            optimiser.step()
        return local

    def backward(self, local: nn.Module, client: Client, batch: Batch) -> None:
        """Gradients of a step, into ``grad``; FedAvg: those of the local loss at w."""
        torch.autograd.backward(self.local_loss(local, client, batch))

    def local_loss(self, local: nn.Module, client: Client, batch: Batch) -> Tensor:
        """Local loss on a batch: loss of the data, penalty and extra loss, by the model ``local``.

        In training mode the running statistics of batch norm move with every call.
        """
        x, y = batch
        features, logits = local(x)
        loss = self.data_loss(client, batch, features, logits)
        loss = loss + self.penalty(local, client, batch, features)
        if self.extra_loss is not None:
            loss = loss + self.extra_loss(features, y)
        if self.model_loss is not None:
            loss = loss + self.model_loss(local)
        return loss

    def data_loss(self, client: Client, batch: Batch, features: Tensor, logits: Tensor) -> Tensor:
        """Loss of the data; FedAvg: cross-entropy, the mean over the batch."""
        return nn.functional.cross_entropy(logits, batch[1])

    def clip_gradients(self, local: nn.Module) -> None:
        """Clipping: g <- g min(1, clip / ||g||), the norm over all parameters."""
        if self.clip_norm > 0:
            nn.utils.clip_grad_norm_(local.parameters(), self.clip_norm)

    def received_by(self, client: Client) -> nn.Module:
        """Model that a client has before it trains; FedAvg: x."""
        return self.model

    def start_round(self, cohort: Sequence[Client]) -> None:
        """Before local training; FedAvg: nothing."""

    def penalty(self, local: nn.Module, client: Client, batch: Batch, features: Tensor) -> Tensor:
        """Term of the local loss; FedAvg: 0."""
        return features.new_zeros(())

    def correct_gradients(self, local: nn.Module, client: Client) -> None:
        """Change of the gradients before the step; FedAvg: none."""

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """Server: x+ = sum_i p_i y_i."""
        return average_models(local_models, [client["samples"] for client in cohort])


# --- The methods -----------------------------------------------------------------------------


@dataclass(kw_only=True)
class FedAvgM(FedAvg):
    """FedAvgM: v <- beta v + (sum_i p_i y_i - x); x+ = x + v. v starts at 0.

    No damping, no Nesterov; buffers are averaged plainly. ``velocity`` is v.
    """

    beta: float

    def __post_init__(self) -> None:
        """Velocity: v = 0."""
        self.velocity = zeros(self.model)

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """Server: v <- beta v + (sum_i p_i y_i - x); x+ = x + v."""
        x = values(self.model)
        averaged = super().server(cohort, local_models)
        mean = values(averaged)
        for name in x:
            self.velocity[name] = self.beta * self.velocity[name] + (mean[name] - x[name])
        return replace_values(averaged, {name: x[name] + self.velocity[name] for name in x})


@dataclass(kw_only=True)
class FedProx(FedAvg):
    """FedProx: local loss + (mu / 2) ||w - x||^2, so gradient + mu (w - x); server as FedAvg."""

    mu: float

    def penalty(self, local: nn.Module, client: Client, batch: Batch, features: Tensor) -> Tensor:
        """Term of the local loss: (mu / 2) ||w - x||^2."""
        return proximal_term(local, values(self.model), self.mu)


@dataclass(kw_only=True)
class Scaffold(FedAvg):
    """SCAFFOLD: gradient + c - c_i; x+ = x + mean_i(y_i - x), a plain mean over the cohort.

    Afterwards c_i+ = c_i - c + (x - y_i) / (a(K_i, rho) eta) and c+ = c + (S/N) mean_i(c_i+ - c_i).
    All controls start at 0. ``control`` is c, ``client_controls[id]`` is c_i (no entry: 0).
    """

    client_controls: dict[Hashable, Vector] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Control: c = 0."""
        self.control = zeros(self.model)

    def control_of(self, client: Client) -> Vector:
        """Client control: c_i, 0 for a client that never took part."""
        return self.client_controls.get(client["id"], zeros(self.model))

    def correct_gradients(self, local: nn.Module, client: Client) -> None:
        """Change of the gradients before the step: + c - c_i."""
        c_i = self.control_of(client)
        for name, parameter in local.named_parameters():
            assert parameter.grad is not None
            parameter.grad = parameter.grad + self.control[name] - c_i[name]

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """Clients' c_i+ with the round's c, then x+ = x + mean(y_i - x) and c+."""
        x = values(self.model)
        new = values(self.model)
        control = {name: c.clone() for name, c in self.control.items()}
        fraction = len(cohort) / self.clients_total
        for client, local in zip(cohort, local_models, strict=True):
            y_i = values(local)
            a_i = unit_gradient_sum(len(client["batches"]), self.momentum)
            c_i = self.control_of(client)
            c_i_new = {}
            for name in x:
                gradient = (x[name] - y_i[name]) / (a_i * self.lr)
                c_i_new[name] = c_i[name] - self.control[name] + gradient
                new[name] += (y_i[name] - x[name]) / len(cohort)
                control[name] += fraction * (c_i_new[name] - c_i[name]) / len(cohort)
            self.client_controls[client["id"]] = c_i_new
        self.control = control
        return replace_values(super().server(cohort, local_models), new)


@dataclass(kw_only=True)
class FedDyn(FedAvg):
    """FedDyn: local loss - <h_i, w> + (alpha / 2) ||w - x||^2, so gradient - h_i + alpha (w - x).

    Afterwards h_i+ = h_i - alpha (y_i - x). Server: h+ = h - alpha (1/N) sum_i (y_i - x) and
    x+ = mean_i(y_i) - h+ / alpha, a plain mean over the cohort. All states start at 0. ``state`` is
    h, ``client_states[id]`` is h_i (no entry: 0).
    """

    alpha: float
    client_states: dict[Hashable, Vector] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Server state: h = 0."""
        self.state = zeros(self.model)

    def state_of(self, client: Client) -> Vector:
        """Client state: h_i, 0 for a client that never took part."""
        return self.client_states.get(client["id"], zeros(self.model))

    def penalty(self, local: nn.Module, client: Client, batch: Batch, features: Tensor) -> Tensor:
        """Terms of the local loss: - <h_i, w> + (alpha / 2) ||w - x||^2."""
        h_i = self.state_of(client)
        products = [(h_i[name] * w).sum() for name, w in local.named_parameters()]
        linear = torch.stack(products).sum()
        return -linear + proximal_term(local, values(self.model), self.alpha)

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """Clients' h_i+, h+ = h - alpha (1/N) sum (y_i - x), x+ = mean(y_i) - h+ / alpha."""
        x = values(self.model)
        mean = zeros(self.model)
        for client, local in zip(cohort, local_models, strict=True):
            y_i = values(local)
            h_i = self.state_of(client)
            h_i_new = {}
            for name in x:
                move = y_i[name] - x[name]
                h_i_new[name] = h_i[name] - self.alpha * move
                self.state[name] = self.state[name] - self.alpha * move / self.clients_total
                mean[name] += y_i[name] / len(cohort)
            self.client_states[client["id"]] = h_i_new
        new = {name: mean[name] - self.state[name] / self.alpha for name in x}
        return replace_values(super().server(cohort, local_models), new)


@dataclass(kw_only=True)
class FedNova(FedAvg):
    """FedNova: x+ = x + tau_eff sum_i p_i (y_i - x) / a_i, tau_eff = sum_i p_i a_i.

    a_i = a(K_i, rho). With ``mu`` above 0 it is FedNova with FedProx: local loss + (mu / 2)
    ||w - x||^2, and a_i that of the recursion with the same pull.
    """

    mu: float = 0.0

    def penalty(self, local: nn.Module, client: Client, batch: Batch, features: Tensor) -> Tensor:
        """Term of the local loss: (mu / 2) ||w - x||^2."""
        return proximal_term(local, values(self.model), self.mu)

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """Server: x+ = x + tau_eff sum_i p_i (y_i - x) / a_i."""
        x = values(self.model)
        total = sum(client["samples"] for client in cohort)
        tau_eff = 0.0
        direction = zeros(self.model)
        for client, local in zip(cohort, local_models, strict=True):
            p_i = client["samples"] / total
            a_i = unit_gradient_sum(len(client["batches"]), self.momentum, self.mu, self.lr)
            tau_eff += p_i * a_i
            y_i = values(local)
            for name in x:
                direction[name] += p_i * (y_i[name] - x[name]) / a_i
        new = {name: x[name] + tau_eff * direction[name] for name in x}
        return replace_values(super().server(cohort, local_models), new)


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


# --- Any method combined with FedFM ----------------------------------------------------------


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
