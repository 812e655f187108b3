"""Textbook FedAvgM, FedProx, SCAFFOLD, FedDyn, FedNova, MOON, FedProto and FedFM-Lite: oracles.

This file was written from the project's table of exact updates and its specification, apart from
the library: its author did not read the library's source, and it imports nothing but torch and its
sister file, the textbook FedAvg and FedFM (``FedFMLite`` came later, from decisions 4 and 6). Like
that file it favours being easy to check by eye over being fast: whole models are copied, and
clients, batches and samples are looped over.

Notation: x the global parameters at the start of the round, y_i client i's after its local steps,
w those on the way, eta the local learning rate, K_i the local steps, rho the local momentum, p_i
the share of client i's samples in the cohort's; S of N clients take part.

* A method is an object: ``round(cohort)`` plays one round and replaces ``model``; what else the
  server and the clients remember are its other attributes. Models and clients are the plain data
  of the sister file; a client's ``"id"`` names its state.
* Only trainable parameters take part in corrections, controls and momentum. Floating-point buffers
  are averaged with p_i in every method, and integer buffers take the largest value.
* ``extra_loss(features, labels, client_index)``, the index being the place in the cohort, is added
  to the loss of every batch. It may be replaced before every round, and so may ``lr``.
  ``matching_round`` uses it to combine any of the methods with FedFM, ``FedFMLite`` with its Lite.
"""

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedfm.verify.textbook import (
    Anchors,
    Client,
    ExtraLoss,
    average_models,
    matching_loss,
    update_anchors,
)

Vector = dict[str, Tensor]  # one tensor per trainable parameter, by name
TaskLoss = Callable[[Tensor, Tensor], Tensor]


# --- Helpers ---------------------------------------------------------------------------------


def values(model: nn.Module) -> Vector:
    """Trainable parameters of a model, as a copy without gradient."""
    return {
        name: parameter.detach().clone()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def zeros(model: nn.Module) -> Vector:
    """Zero vector: 0 for every trainable parameter."""
    return {name: torch.zeros_like(value) for name, value in values(model).items()}


def replace_values(model: nn.Module, new: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the model in which the trainable parameters are ``new``."""
    result = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in result.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(new[name])
    return result


def frozen_copy(model: nn.Module) -> nn.Module:
    """A copy of the model, parameters and buffers, in eval mode; it gets no gradient."""
    result = copy.deepcopy(model)
    result.eval()
    for parameter in result.parameters():
        parameter.requires_grad_(False)
    return result


def data_shares(cohort: Sequence[Client]) -> list[float]:
    """Data shares: p_i = n_i / sum_j n_j over the cohort."""
    total = sum(int(client["samples"]) for client in cohort)
    return [int(client["samples"]) / total for client in cohort]


def unit_gradient_sum(steps: int, momentum: float, mu: float = 0.0, lr: float = 1.0) -> float:
    """Normaliser: a = -d / eta, d how far ``steps`` unit gradients move a parameter.

    The recursion of heavy-ball SGD itself, with the pull mu of a proximal term (mu = 0: a(K, rho),
    whatever eta): m <- rho m + (1 + mu d), d <- d - eta m, from m = d = 0.
    """
    if steps < 1:
        raise ValueError("a client must take at least one local step")
    m = 0.0
    d = 0.0
    for _ in range(steps):
        m = momentum * m + (1.0 + mu * d)
        d = d - lr * m
    return -d / lr


def proximal_term(local: nn.Module, received: Mapping[str, Tensor], mu: float) -> Tensor:
    """Proximal term: (mu / 2) ||w - x||^2, over all trainable parameters."""
    terms = []
    for name, parameter in local.named_parameters():
        if parameter.requires_grad:
            difference = parameter - received[name]
            terms.append((difference * difference).sum())
    return 0.5 * mu * torch.stack(terms).sum()


def cosine_similarity(a: Tensor, b: Tensor) -> Tensor:
    """Cosine similarity: <a, b> / (|a| |b|). The zero vector is refused."""
    length_a = (a * a).sum().sqrt()
    length_b = (b * b).sum().sqrt()
    if float(length_a.detach()) == 0.0 or float(length_b.detach()) == 0.0:
        raise ValueError("a zero vector has no direction: choose test data without zero features")
    return (a * b).sum() / (length_a * length_b)


# --- FedAvg, which the others change in one place or two -------------------------------------


class FedAvg:
    """FedAvg: local SGD from x; x+ = sum_i p_i y_i.

    The other methods override what is theirs: ``start_round`` (before local training),
    ``added_loss`` (a term of the local loss), ``correct_gradients`` (between the backward pass and
    the optimiser's step) and ``server`` (from the y_i to x+, and all states).

    ``task_loss(logits, labels)`` is the mean cross-entropy unless told otherwise. The model given
    is copied; ``model`` is a new module after every round, and ``local_models`` are the clients'
    after the last round, in the cohort's order.
    """

    def __init__(
        self,
        model: nn.Module,
        clients_total: int,
        *,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        extra_loss: ExtraLoss | None = None,
        task_loss: TaskLoss = nn.functional.cross_entropy,
    ) -> None:
        self.model = copy.deepcopy(model)
        self.clients_total = clients_total
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.extra_loss = extra_loss
        self.task_loss = task_loss
        self.local_models: list[nn.Module] = []

    def round(self, cohort: Sequence[Client]) -> None:
        """One round: every client of the cohort trains from x, then the server makes x+."""
        self.start_round(cohort)
        local_models = []
        for k, client in enumerate(cohort):
            local_models.append(self.train_locally(client, k, self.model))
        self.local_models = local_models
        self.model = self.server(cohort, local_models)

    def train_locally(self, client: Client, client_index: int, start: nn.Module) -> nn.Module:
        """Local training from ``start``: one SGD step per batch, momentum from zero."""
        local = copy.deepcopy(start)
        local.train()
        optimiser = torch.optim.SGD(
            [parameter for parameter in local.parameters() if parameter.requires_grad],
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )
        for x, y in client["batches"]:
            optimiser.zero_grad()
            features, logits = local(x)
            loss = self.task_loss(logits, y)
            loss = loss + self.added_loss(local, client, x, y, features)
            if self.extra_loss is not None:
                loss = loss + self.extra_loss(features, y, client_index)
            torch.autograd.backward(loss)
            self.correct_gradients(local, client)
            optimiser.step()
        return local

    def start_round(self, cohort: Sequence[Client]) -> None:
        """Before local training; FedAvg: nothing."""

    def added_loss(
        self, local: nn.Module, client: Client, x: Tensor, y: Tensor, features: Tensor
    ) -> Tensor:
        """Term of the local loss; FedAvg: 0."""
        return features.new_zeros(())

    def correct_gradients(self, local: nn.Module, client: Client) -> None:
        """Change of the gradients before the step; FedAvg: none."""

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """Server: x+ = sum_i p_i y_i."""
        return self.average(cohort, local_models)

    def average(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """Average with p_i of parameters and float buffers; largest value of integer buffers."""
        samples = [int(client["samples"]) for client in cohort]
        return average_models(self.model, local_models, samples)

    def steps_of(self, client: Client) -> int:
        """Local steps: K_i, one per batch."""
        return len(client["batches"])


# --- The methods -----------------------------------------------------------------------------


class FedAvgM(FedAvg):
    """FedAvgM: v <- beta v + (sum_i p_i y_i - x); x+ = x + v. v starts at 0.

    No damping, no Nesterov; buffers are averaged plainly. ``velocity`` is v.
    """

    def __init__(self, model: nn.Module, clients_total: int, *, beta: float, **common: Any) -> None:
        super().__init__(model, clients_total, **common)
        self.beta = beta
        self.velocity = zeros(model)

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """Server: v <- beta v + (sum_i p_i y_i - x); x+ = x + v."""
        x = values(self.model)
        averaged = self.average(cohort, local_models)
        mean = values(averaged)
        new = {}
        for name in x:
            self.velocity[name] = self.beta * self.velocity[name] + (mean[name] - x[name])
            new[name] = x[name] + self.velocity[name]
        return replace_values(averaged, new)


class FedProx(FedAvg):
    """FedProx: local loss + (mu / 2) ||w - x||^2, so gradient + mu (w - x); server as FedAvg."""

    def __init__(self, model: nn.Module, clients_total: int, *, mu: float, **common: Any) -> None:
        super().__init__(model, clients_total, **common)
        self.mu = mu

    def added_loss(
        self, local: nn.Module, client: Client, x: Tensor, y: Tensor, features: Tensor
    ) -> Tensor:
        """Term of the local loss: (mu / 2) ||w - x||^2."""
        return proximal_term(local, values(self.model), self.mu)


class Scaffold(FedAvg):
    """SCAFFOLD: gradient + c - c_i; x+ = x + mean_i(y_i - x), a plain mean over the cohort.

    Afterwards c_i+ = c_i - c + (x - y_i) / (a(K_i, rho) eta) and c+ = c + (S/N) mean_i(c_i+ - c_i).
    All controls start at 0. ``control`` is c, ``client_controls[id]`` is c_i (no entry: 0).
    """

    def __init__(self, model: nn.Module, clients_total: int, **common: Any) -> None:
        super().__init__(model, clients_total, **common)
        self.control = zeros(model)
        self.client_controls: dict[Hashable, Vector] = {}

    def control_of(self, client: Client) -> Vector:
        """Client control: c_i, 0 for a client that never took part."""
        return self.client_controls.get(client["id"], zeros(self.model))

    def correct_gradients(self, local: nn.Module, client: Client) -> None:
        """Change of the gradients before the step: + c - c_i."""
        c_i = self.control_of(client)
        for name, parameter in local.named_parameters():
            if parameter.requires_grad:
                assert parameter.grad is not None
                parameter.grad = parameter.grad + self.control[name] - c_i[name]

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """Clients' c_i+ with the round's c, then x+ = x + mean(y_i - x) and c+."""
        x = values(self.model)
        cohort_size = len(cohort)
        move = zeros(self.model)
        control_change = zeros(self.model)
        for client, local in zip(cohort, local_models, strict=True):
            y_i = values(local)
            a_i = unit_gradient_sum(self.steps_of(client), self.momentum)
            c_i = self.control_of(client)
            c_i_new = {}
            for name in x:
                c_i_new[name] = (
                    c_i[name] - self.control[name] + (x[name] - y_i[name]) / (a_i * self.lr)
                )
                move[name] = move[name] + (y_i[name] - x[name]) / cohort_size
                control_change[name] = (
                    control_change[name] + (c_i_new[name] - c_i[name]) / cohort_size
                )
            self.client_controls[client["id"]] = c_i_new
        fraction = cohort_size / self.clients_total
        new = {}
        for name in x:
            new[name] = x[name] + move[name]
            self.control[name] = self.control[name] + fraction * control_change[name]
        return replace_values(self.average(cohort, local_models), new)


class FedDyn(FedAvg):
    """FedDyn: local loss - <h_i, w> + (alpha / 2) ||w - x||^2, so gradient - h_i + alpha (w - x).

    Afterwards h_i+ = h_i - alpha (y_i - x). Server: h+ = h - alpha (1/N) sum_i (y_i - x) and
    x+ = mean_i(y_i) - h+ / alpha, a plain mean over the cohort. All states start at 0. ``state`` is
    h, ``client_states[id]`` is h_i (no entry: 0).
    """

    def __init__(
        self, model: nn.Module, clients_total: int, *, alpha: float, **common: Any
    ) -> None:
        super().__init__(model, clients_total, **common)
        self.alpha = alpha
        self.state = zeros(model)
        self.client_states: dict[Hashable, Vector] = {}

    def state_of(self, client: Client) -> Vector:
        """Client state: h_i, 0 for a client that never took part."""
        return self.client_states.get(client["id"], zeros(self.model))

    def added_loss(
        self, local: nn.Module, client: Client, x: Tensor, y: Tensor, features: Tensor
    ) -> Tensor:
        """Terms of the local loss: - <h_i, w> + (alpha / 2) ||w - x||^2."""
        h_i = self.state_of(client)
        products = []
        for name, parameter in local.named_parameters():
            if parameter.requires_grad:
                products.append((h_i[name] * parameter).sum())
        linear = torch.stack(products).sum()
        return -linear + proximal_term(local, values(self.model), self.alpha)

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """Clients' h_i+, h+ = h - alpha (1/N) sum (y_i - x), x+ = mean(y_i) - h+ / alpha."""
        x = values(self.model)
        sum_of_y = zeros(self.model)
        sum_of_moves = zeros(self.model)
        for client, local in zip(cohort, local_models, strict=True):
            y_i = values(local)
            h_i = self.state_of(client)
            h_i_new = {}
            for name in x:
                h_i_new[name] = h_i[name] - self.alpha * (y_i[name] - x[name])
                sum_of_y[name] = sum_of_y[name] + y_i[name]
                sum_of_moves[name] = sum_of_moves[name] + (y_i[name] - x[name])
            self.client_states[client["id"]] = h_i_new
        new = {}
        for name in x:
            self.state[name] = (
                self.state[name] - self.alpha * sum_of_moves[name] / self.clients_total
            )
            new[name] = sum_of_y[name] / len(cohort) - self.state[name] / self.alpha
        return replace_values(self.average(cohort, local_models), new)


class FedNova(FedAvg):
    """FedNova: x+ = x + tau_eff sum_i p_i (y_i - x) / a_i, tau_eff = sum_i p_i a_i.

    a_i = a(K_i, rho). With ``mu`` above 0 it is FedNova with FedProx: local loss + (mu / 2)
    ||w - x||^2, and a_i that of the recursion with the same pull. ``normalisers`` are the a_i of
    the last round, in the cohort's order.
    """

    def __init__(
        self, model: nn.Module, clients_total: int, *, mu: float = 0.0, **common: Any
    ) -> None:
        super().__init__(model, clients_total, **common)
        self.mu = mu
        self.normalisers: list[float] = []

    def added_loss(
        self, local: nn.Module, client: Client, x: Tensor, y: Tensor, features: Tensor
    ) -> Tensor:
        """Term of the local loss: (mu / 2) ||w - x||^2, nothing for mu = 0."""
        if self.mu == 0.0:
            return features.new_zeros(())
        return proximal_term(local, values(self.model), self.mu)

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """Server: x+ = x + tau_eff sum_i p_i (y_i - x) / a_i."""
        x = values(self.model)
        p = data_shares(cohort)
        a = []
        for client in cohort:
            a.append(unit_gradient_sum(self.steps_of(client), self.momentum, self.mu, self.lr))
        self.normalisers = a
        tau_eff = sum(p_i * a_i for p_i, a_i in zip(p, a, strict=True))
        direction = zeros(self.model)
        for k, local in enumerate(local_models):
            y_i = values(local)
            for name in x:
                direction[name] = direction[name] + p[k] * (y_i[name] - x[name]) / a[k]
        new = {name: x[name] + tau_eff * direction[name] for name in x}
        return replace_values(self.average(cohort, local_models), new)


class Moon(FedAvg):
    """MOON: local loss + mu CE([sim(f, f_glob), sim(f, f_prev)] / tau, 0); server as FedAvg.

    f is the feature by the model in training, f_glob by the received global model, f_prev by the
    client's model after its last local training (the received one for a client that never took
    part), the latter two frozen in eval mode. sim is the cosine similarity; the mean is over the
    batch. ``previous[id]`` is the previous local model (no entry: never took part).
    """

    def __init__(
        self, model: nn.Module, clients_total: int, *, mu: float, tau: float = 0.5, **common: Any
    ) -> None:
        super().__init__(model, clients_total, **common)
        self.mu = mu
        self.tau = tau
        self.received = frozen_copy(model)
        self.previous: dict[Hashable, nn.Module] = {}

    def start_round(self, cohort: Sequence[Client]) -> None:
        """Before local training: the received global model is frozen."""
        self.received = frozen_copy(self.model)

    def added_loss(
        self, local: nn.Module, client: Client, x: Tensor, y: Tensor, features: Tensor
    ) -> Tensor:
        """Term of the local loss: mu (1 / B) sum_b -log(e^{g_b} / (e^{g_b} + e^{q_b})).

        g_b = sim(f_b, f_glob_b) / tau and q_b = sim(f_b, f_prev_b) / tau.
        """
        previous = self.previous.get(client["id"], self.received)
        with torch.no_grad():
            global_features, _ = self.received(x)
            previous_features, _ = previous(x)
        terms = []
        for b in range(len(y)):
            g = cosine_similarity(features[b], global_features[b]) / self.tau
            q = cosine_similarity(features[b], previous_features[b]) / self.tau
            terms.append(torch.logsumexp(torch.stack([g, q]), dim=0) - g)
        return self.mu * torch.stack(terms).sum() / len(terms)

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """The clients' models become their previous ones; x+ = sum_i p_i y_i."""
        for client, local in zip(cohort, local_models, strict=True):
            self.previous[client["id"]] = frozen_copy(local)
        return self.average(cohort, local_models)


class FedProto(FedAvg):
    """FedProto, generalized: local loss + lambda mean_b ||f_b - prototype of b's class||^2.

    Raw features, no normalisation; the squared distance is summed over the d coordinates, and the
    mean is over the batch's samples whose class has a prototype. Before local training the
    prototypes are made anew with the received model in eval mode: class means of the cohort's raw
    features, weighted by class counts; an absent class keeps its last one. Server as FedAvg.
    ``strength`` is lambda, ``prototypes`` are the last ones, by class. The first ``wait`` rounds
    are FedAvg's.
    """

    def __init__(
        self,
        model: nn.Module,
        clients_total: int,
        *,
        strength: float,
        wait: int = 0,
        **common: Any,
    ) -> None:
        super().__init__(model, clients_total, **common)
        self.strength = strength
        self.wait = wait
        self.prototypes: Anchors = {}

    def start_round(self, cohort: Sequence[Client]) -> None:
        """Before local training: prototype of c = sum_i n_ic mean_ic / sum_i n_ic."""
        self.wait -= 1
        if self.wait >= 0:
            return
        received = [self.model for _ in cohort]
        self.prototypes = update_anchors(received, cohort, self.prototypes, "weighted")

    def added_loss(
        self, local: nn.Module, client: Client, x: Tensor, y: Tensor, features: Tensor
    ) -> Tensor:
        """Term of the local loss: lambda (1 / m) sum_b ||f_b - prototype||^2; 0 for m = 0."""
        terms = []
        for b in range(len(y)):
            c = int(y[b])
            if c in self.prototypes:
                difference = features[b] - self.prototypes[c]
                terms.append((difference * difference).sum())
        if not terms:
            return features.new_zeros(())
        return self.strength * torch.stack(terms).sum() / len(terms)


# --- Any method combined with FedFM ----------------------------------------------------------


def matching_round(
    method: FedAvg,
    cohort: Sequence[Client],
    anchors: Mapping[int, Tensor],
    *,
    strength: float,
    guide: str = "cg",
    aggregation: str = "weighted",
    temperature: float,
    active: bool = True,
) -> Anchors:
    """A round of FedFM on any method: A+ from the received x; the method's round + lambda Q(.; A+).

    The matching term takes the place of ``extra_loss`` in this round only. Where not ``active`` (a
    round before T_s) it is the method's own round, and the anchors stay as they are. Returns the
    new global anchors.
    """
    if not active:
        method.round(cohort)
        return dict(anchors)
    received = [method.model for _ in cohort]
    new_anchors = update_anchors(received, cohort, anchors, aggregation)
    own_extra_loss = method.extra_loss
    method.extra_loss = matching_loss(new_anchors, strength, guide, temperature)
    method.round(cohort)
    method.extra_loss = own_extra_loss
    return new_anchors


class FedFMLite:
    """FedFM-Lite on a method whose clients keep nothing: anchors travel in every round.

    A client trains with lambda Q(.; A), A the last global anchors, then sends its local anchors,
    taken with its own trained model; the server makes the new A of them. Models go up every
    ``every`` rounds. In between a client goes on from its own model, while x is still the global
    model of the last exchange: a pull mu (w - x) is towards that. A client without a model of its
    own since then starts from x.

    The first ``wait`` rounds (T_s) have no matching term; the last of them sends the first anchors.
    """

    def __init__(
        self,
        method: FedAvg,
        *,
        strength: float,
        guide: str = "cg",
        aggregation: str = "weighted",
        temperature: float,
        every: int = 1,
        wait: int = 0,
    ) -> None:
        self.method = method
        self.strength = strength
        self.guide = guide
        self.aggregation = aggregation
        self.temperature = temperature
        self.every = every
        self.wait = wait
        self.played = 0
        self.anchors: Anchors = {}
        self.own_models: dict[Hashable, nn.Module] = {}

    @property
    def model(self) -> nn.Module:
        """Global model: x."""
        return self.method.model

    def round(self, cohort: Sequence[Client]) -> None:
        """One round: local training, local anchors, and in the last of a cycle the server."""
        trained = self.train(cohort)
        self.played += 1
        if self.played >= self.wait:
            self.anchors = update_anchors(trained, cohort, self.anchors, self.aggregation)
        if self.played % self.every == 0:
            self.method.model = self.method.server(cohort, trained)
            self.own_models = {}

    def train(self, cohort: Sequence[Client]) -> list[nn.Module]:
        """Local training of every client, from its own model where it has one."""
        self.method.extra_loss = None
        if self.anchors:
            self.method.extra_loss = matching_loss(
                self.anchors, self.strength, self.guide, self.temperature
            )
        for k, client in enumerate(cohort):
            start = self.own_models.get(client["id"], self.model)
            self.own_models[client["id"]] = self.method.train_locally(client, k, start)
        return [self.own_models[client["id"]] for client in cohort]
