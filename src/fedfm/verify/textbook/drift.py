"""Textbook FedProx, SCAFFOLD, FedDyn and FedNova: against the drift of clients from each other.

This file was written from the project's table of exact updates and its specification, apart from
the library: its author did not read the library's source, and it imports nothing but torch and its
sister files. Methods, models and clients are the plain data of ``loop``.

Notation: x the global parameters at the start of the round, y_i client i's after its local steps,
w those on the way, eta the local learning rate, K_i the local steps, rho the local momentum, p_i
the share of client i's samples in the cohort's; S of N clients take part.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedfm.verify.textbook.loop import (
    Batch,
    FedAvg,
    Vector,
    proximal_term,
    replace_values,
    unit_gradient_sum,
    values,
    zeros,
)
from fedfm.verify.textbook.parts import Client


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
