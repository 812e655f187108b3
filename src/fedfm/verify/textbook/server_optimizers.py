"""Textbook FedAvgM, FedAdam, FedYogi, FedAdagrad, FedACG and FedCM: momentum between rounds.

This file was written from the papers and the project's table of their updates, apart from the
library: its author did not read the library's methods, and it imports nothing but torch and its
sister file. Methods, models and clients are the plain data of ``loop``.

Notation: x the global parameters at the start of the round, y_i client i's after its K_i local
steps, d_i = y_i - x, p_i the share of client i's samples in the cohort's, D = sum_i p_i d_i, eta
the local learning rate of the round. Buffers are averaged with p_i, as in FedAvg.

``server_lr`` and ``server_momentum`` are what the pieces call ``lr`` and ``momentum``: the names
without "server" are the local optimiser's here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedfm.verify.textbook.loop import (
    Batch,
    FedAvg,
    proximal_term,
    replace_values,
    unit_gradient_sum,
    values,
    zeros,
)
from fedfm.verify.textbook.parts import Client

# --- Momentum of the server ------------------------------------------------------------------


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


# --- Adaptive server optimizers --------------------------------------------------------------


@dataclass(kw_only=True)
class AdaptiveServer(FedAvg):
    """FedOpt (Reddi et al. 2021): m <- b1 m + (1 - b1) D; x+ = x + lr m / (sqrt(v) + tau).

    v is the subclass's, from the new D. m starts at 0 and v at tau^2 (that the paper has
    v >= tau^2 there is from memory); neither is corrected for its start. ``m`` and ``v`` are the
    server's states.
    """

    server_lr: float = 0.1
    beta1: float = 0.9
    tau: float = 1e-3

    def __post_init__(self) -> None:
        """States: m = 0, v = tau^2."""
        self.m = zeros(self.model)
        self.v = {name: torch.full_like(m, self.tau**2) for name, m in self.m.items()}

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """New v from the old one and D^2."""
        raise NotImplementedError

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """Server: D, then m, then v, then x+ = x + lr m / (sqrt(v) + tau)."""
        x = values(self.model)
        averaged = super().server(cohort, local_models)
        mean = values(averaged)
        new = {}
        for name in x:
            delta = mean[name] - x[name]
            self.m[name] = self.beta1 * self.m[name] + (1 - self.beta1) * delta
            self.v[name] = self.second_moment(self.v[name], delta * delta)
            new[name] = x[name] + self.server_lr * self.m[name] / (self.v[name].sqrt() + self.tau)
        return replace_values(averaged, new)


@dataclass(kw_only=True)
class FedAdam(AdaptiveServer):
    """FedAdam: v <- b2 v + (1 - b2) D^2. b2 = 0.99 is the paper's from memory.

    With ``bias_correction``, the form of Keras, which the paper's runs used: v starts at 0, and in
    the server's step t, from 1, lr is lr sqrt(1 - b2^t) / (1 - b1^t).
    """

    beta2: float = 0.99
    bias_correction: bool = False

    def __post_init__(self) -> None:
        """States: m = 0, v = tau^2 or 0, t = 0."""
        super().__post_init__()
        self.t = 0
        if self.bias_correction:
            self.v = zeros(self.model)

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """Server: AdaptiveServer's, by the corrected lr."""
        self.t += 1
        uncorrected = self.server_lr
        if self.bias_correction:
            root = (1 - self.beta2**self.t) ** 0.5
            self.server_lr = uncorrected * root / (1 - self.beta1**self.t)
        result = super().server(cohort, local_models)
        self.server_lr = uncorrected
        return result

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """New v: b2 v + (1 - b2) D^2."""
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(kw_only=True)
class FedYogi(AdaptiveServer):
    """FedYogi: v <- v - (1 - b2) D^2 sign(v - D^2)."""

    beta2: float = 0.99

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """New v: v - (1 - b2) D^2 sign(v - D^2)."""
        return v - (1 - self.beta2) * square * torch.sign(v - square)


@dataclass(kw_only=True)
class FedAdagrad(AdaptiveServer):
    """FedAdagrad: v <- v + D^2, without momentum unless ``beta1`` is set."""

    beta1: float = 0.0

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """New v: v + D^2."""
        return v + square


# --- Momentum that clients know of -----------------------------------------------------------


@dataclass(kw_only=True)
class FedACG(FedAvg):
    """FedACG (Kim et al. 2024): clients start at w = x + lambda m, and are pulled to it.

    Local loss + (strength / 2) ||y - w||^2; m+ = lambda m + mean_i(y_i - w); x+ = x + m+, a plain
    mean over the cohort, as in the public code. m starts at 0. The model that is evaluated is x,
    not w. The public code has no 1/2, so its strength is half of this one for the same pull. lambda
    is ``server_momentum``, m ``velocity``.
    """

    server_momentum: float = 0.85
    strength: float = 0.001

    def __post_init__(self) -> None:
        """Velocity: m = 0."""
        self.velocity = zeros(self.model)

    def received_by(self, client: Client) -> nn.Module:
        """Model that a client has before it trains: w = x + lambda m, with x's buffers."""
        ahead = values(self.model)
        for name in ahead:
            ahead[name] = ahead[name] + self.server_momentum * self.velocity[name]
        return replace_values(self.model, ahead)

    def train_locally(self, client: Client, start: nn.Module) -> nn.Module:
        """Local training from w, whatever ``start``."""
        return super().train_locally(client, self.received_by(client))

    def penalty(self, local: nn.Module, client: Client, batch: Batch, features: Tensor) -> Tensor:
        """Term of the local loss: (strength / 2) ||y - w||^2."""
        return proximal_term(local, values(self.received_by(client)), self.strength)

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """Server: m+ = lambda m + mean_i(y_i - w); x+ = x + m+."""
        x = values(self.model)
        w = values(self.received_by(cohort[0]))
        ends = [values(local) for local in local_models]
        new = {}
        for name in x:
            change = torch.stack([y_i[name] - w[name] for y_i in ends]).mean(dim=0)
            self.velocity[name] = self.server_momentum * self.velocity[name] + change
            new[name] = x[name] + self.velocity[name]
        return replace_values(super().server(cohort, local_models), new)


@dataclass(kw_only=True)
class FedCM(FedAvg):
    """FedCM (Xu et al. 2021): a step goes along alpha g + (1 - alpha) V; server as FedAvg.

    V+ = -sum_i p_i d_i / (eta a(K_i, rho)) over the cohort, with the eta and the K_i that made the
    d_i; V starts at 0. The paper's clients all take K steps of plain SGD, where a(K, 0) = K; under
    momentum V is divided as SCAFFOLD's controls are, or it would grow from round to round. The
    optimiser gets alpha g + (1 - alpha) V for its gradient, and V contains weight decay, as in the
    public code. ``direction`` is V.
    """

    alpha: float = 0.1

    def __post_init__(self) -> None:
        """Direction: V = 0."""
        self.direction = zeros(self.model)

    def correct_gradients(self, local: nn.Module, client: Client) -> None:
        """Change of the gradients before the step: alpha g + (1 - alpha) V."""
        for name, parameter in local.named_parameters():
            assert parameter.grad is not None
            parameter.grad = self.alpha * parameter.grad + (1 - self.alpha) * self.direction[name]

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """Server: V+ = -sum_i p_i d_i / (eta a(K_i, rho)), and x+ = sum_i p_i y_i."""
        x = values(self.model)
        self.direction = zeros(self.model)
        total = sum(client["samples"] for client in cohort)
        for client, local in zip(cohort, local_models, strict=True):
            p_i = client["samples"] / total
            a_i = unit_gradient_sum(len(client["batches"]), self.momentum)
            y_i = values(local)
            for name in x:
                self.direction[name] -= p_i * (y_i[name] - x[name]) / (self.lr * a_i)
        return super().server(cohort, local_models)
