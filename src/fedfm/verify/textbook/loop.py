"""Textbook FedAvg: the loop of rounds, local training and averaging that the other methods change.

This file was written from the project's table of exact updates and its specification, apart from
the library: its author did not read the library's source, and it imports nothing but torch and its
sister file, ``parts``. Clipping and a rate that decays from round to round came last. It favours
being easy to check by eye over being fast: whole models are copied, and clients, batches and
samples are looped over.

Notation: x the global parameters at the start of the round, y_i client i's after its local steps,
w those on the way, eta the local learning rate, K_i the local steps, rho the local momentum, p_i
the share of client i's samples in the cohort's; S of N clients take part.

* A method is an object: ``round(cohort)`` plays one round and replaces ``model``; what else the
  server and the clients remember are its other attributes. Models and clients are the plain data
  of ``parts``; a client's ``"id"`` names its state.
* Only parameters, all of them trainable, take part in corrections, controls and momentum.
  Floating-point buffers are averaged with p_i in every method, and integer buffers take the largest
  value.
* ``extra_loss(features, labels)`` is added to the loss of every batch. ``FedFM`` and ``FedFMLite``
  use it to match features on top of any other method. ``model_loss(model)``, a loss that needs no
  data, is added, too.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedfm.verify.textbook.parts import Client, ExtraLoss, average_models

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
