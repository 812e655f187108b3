"""Textbook FedBN, FedPer, FedRep and Ditto, and training without federation: alone and centralised.

This file was written from the project's specification of these methods, apart from the library: its
author did not read the library's source, and it imports nothing but torch and its sister files,
``parts``, ``loop`` and others. It favours being easy to check by eye over being fast: whole
models are copied, and the server averages even what it then throws away.

Notation: x the global model at the start of the round, y_i client i's after its local steps, v_i
the second model that client i keeps (Ditto), lambda its strength, p_i the share of client i's
samples in the cohort's.

* Methods, models, clients and ``extra_loss`` are those of the sister files.
* A leaf is a parameter or a buffer, named as in the state dict. A personal leaf never reaches the
  server, whose model keeps the initial value there for ever; every other leaf is shared.
* ``personal[id]`` holds what client ``id`` keeps after its last round, by leaf (no entry: the
  client never took part).
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedfm.verify.textbook.drift import FedProx
from fedfm.verify.textbook.loop import Batch, FedAvg, replace_values
from fedfm.verify.textbook.parts import Client

Leaves = dict[str, Tensor]  # parameters and buffers, by state-dict name


# --- Helpers ---------------------------------------------------------------------------------


def leaves(model: nn.Module, names: Iterable[str]) -> Leaves:
    """Named parameters and buffers of a model, as a copy without gradient."""
    return {name: model.state_dict()[name].detach().clone() for name in names}


def all_names(model: nn.Module) -> list[str]:
    """Names of all parameters and buffers."""
    return list(model.state_dict())


def head_names(model: nn.Module) -> list[str]:
    """Names of the last layer's parameters: those that begin with ``head.``."""
    return [name for name in all_names(model) if name.startswith("head.")]


def batch_norm_names(model: nn.Module) -> list[str]:
    """Names of the parameters and buffers of all batch-norm layers, found by the layer's type."""
    names = []
    for layer_name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm):
            names += [f"{layer_name}.{leaf}" for leaf in layer.state_dict()]
    return names


# --- Some leaves are personal ----------------------------------------------------------------


@dataclass(kw_only=True)
class PersonalLeaves(FedAvg):
    """FedAvg of the shared leaves: x+ = sum_i p_i y_i there; the personal ones stay with client i.

    The methods below say which leaves are personal; here none is, which is FedAvg.
    """

    personal: dict[Hashable, Leaves] = field(default_factory=dict, init=False)

    def personal_names(self) -> list[str]:
        """Names of the personal leaves; FedAvg: none."""
        return []

    def train_locally(self, client: Client, start: nn.Module) -> nn.Module:
        """Local training from ``start``, with the client's own personal leaves if it has any yet.

        A client that never took part starts from the server's, that is the initial, values.
        """
        return super().train_locally(client, self.received_by(client))

    def received_by(self, client: Client) -> nn.Module:
        """Model that a client has before it trains: x with the client's personal leaves."""
        return replace_values(self.model, self.personal.get(client["id"], {}))

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """Clients keep their personal leaves of y_i; x+ = sum_i p_i y_i, but x where personal."""
        names = self.personal_names()
        for client, local in zip(cohort, local_models, strict=True):
            self.personal[client["id"]] = leaves(local, names)
        averaged = super().server(cohort, local_models)
        return replace_values(averaged, leaves(self.model, names))


@dataclass(kw_only=True)
class FedBN(PersonalLeaves):
    """FedBN: personal are all parameters and buffers of batch-norm layers."""

    def personal_names(self) -> list[str]:
        """Names of the personal leaves: batch norm's."""
        return batch_norm_names(self.model)


@dataclass(kw_only=True)
class FedPer(PersonalLeaves):
    """FedPer: personal is the head, the last layer. Body and head are trained together."""

    def personal_names(self) -> list[str]:
        """Names of the personal leaves: the head's."""
        return head_names(self.model)


@dataclass(kw_only=True)
class FedRep(FedPer):
    """FedRep: personal is the head; a client trains first the head alone, then the body alone.

    The head on ``client["head_batches"]``, the body on ``client["batches"]``. The body is all but
    the head. Batch-norm statistics are shared, and they move in both phases.
    """

    def train_locally(self, client: Client, start: nn.Module) -> nn.Module:
        """Local training from ``start`` with the client's own head: head, then body."""
        local = self.received_by(client)
        names = head_names(local)
        head = [parameter for name, parameter in local.named_parameters() if name in names]
        body = [parameter for name, parameter in local.named_parameters() if name not in names]
        self.train_part(local, head, client["head_batches"])
        self.train_part(local, body, client["batches"])
        return local

    def train_part(
        self, local: nn.Module, part: Sequence[nn.Parameter], batches: Sequence[Batch]
    ) -> None:
        """One SGD step of ``part`` per batch, momentum from zero; the rest stays where it is."""
        local.train()
        optimiser = torch.optim.SGD(
            part, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )
        for x, y in batches:
            local.zero_grad()
            features, logits = local(x)
            loss = nn.functional.cross_entropy(logits, y)
            if self.extra_loss is not None:
                loss = loss + self.extra_loss(features, y)
            torch.autograd.backward(loss)
            if self.clip_norm > 0:
                nn.utils.clip_grad_norm_(part, self.clip_norm)
            optimiser.step()


# --- A second model per client ---------------------------------------------------------------


@dataclass(kw_only=True)
class Ditto(FedAvg):
    """Ditto: FedAvg, and every client has a second model v_i: gradient at v_i + lambda (v_i - x).

    v_i starts at the x that the client receives when it first takes part. It is trained on the same
    batches as y_i, without ``extra_loss``, and keeps its own buffers. ``strength`` is lambda,
    ``personal[id]`` is all of v_i.
    """

    strength: float
    personal: dict[Hashable, Leaves] = field(default_factory=dict, init=False)

    def start_round(self, cohort: Sequence[Client]) -> None:
        """Before y_i, which it does not affect: v_i is trained as FedProx would, but from v_i."""
        pulled_to_x = FedProx(
            model=self.model,
            clients_total=self.clients_total,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            clip_norm=self.clip_norm,
            mu=self.strength,
        )
        for client in cohort:
            v_i = replace_values(self.model, self.personal.get(client["id"], {}))
            trained = pulled_to_x.train_locally(client, v_i)
            self.personal[client["id"]] = leaves(trained, all_names(trained))


# --- No federation ---------------------------------------------------------------------------


@dataclass(kw_only=True)
class Local(PersonalLeaves):
    """Local training: all leaves are personal, so nothing is exchanged and x never changes."""

    def personal_names(self) -> list[str]:
        """Names of the personal leaves: all."""
        return all_names(self.model)


@dataclass(kw_only=True)
class Centralised(FedAvg):
    """Centralised training: the cohort is one client that holds everybody's samples; x+ = y."""

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """Server: x+ = y. Any number of clients but one is refused."""
        (y,) = local_models
        return y
