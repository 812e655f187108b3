"""Textbook FedSAM, MoFedSAM, FedSpeed and FedSMOO: the gradient of a step is taken beside w.

This file was written from the papers and the project's table of their updates, apart from the
library: its author did not read the library's methods, and it imports nothing but torch and its
sister files. Methods, models and clients are the plain data of ``loop``.

Notation: x the global parameters at the start of the round, w those of client i on the way, y_i
those at its end, g(w) the gradient of the local loss on a batch, e the offset of the second pass.
The norm is over all parameters of the client together.

* The local loss is that of the data and ``extra_loss``. Weight decay is the optimiser's, and what
  FedSpeed and FedSMOO add to the gradient is added after the second pass: neither is part of g.
* Both passes of a step use the same batch and run in training mode. The running statistics of batch
  norm are those of the first pass.
* Clipping is that of the gradient which the optimiser gets, after all terms were added, or with
  ``clip_first`` of the second pass's gradient before they were. The offset is never clipped.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedfm.verify.textbook.drift import FedDyn
from fedfm.verify.textbook.loop import Batch, FedAvg, Vector, replace_values, values, zeros
from fedfm.verify.textbook.parts import Client
from fedfm.verify.textbook.server_optimizers import FedCM

# --- Helpers ---------------------------------------------------------------------------------


def gradient(method: FedAvg, local: nn.Module, client: Client, batch: Batch) -> Vector:
    """Gradient of the method's local loss on a batch at ``local``, by parameter."""
    loss = method.local_loss(local, client, batch)
    named = dict(local.named_parameters())
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def gradient_beside(
    method: FedAvg, local: nn.Module, client: Client, batch: Batch, offset: Mapping[str, Tensor]
) -> Vector:
    """Gradient of the local loss at w + e, by a copy: ``local`` keeps its w and its statistics."""
    w = values(local)
    beside = replace_values(local, {name: w[name] + offset[name] for name in w})
    return gradient(method, beside, client, batch)


def put(local: nn.Module, direction: Mapping[str, Tensor]) -> None:
    """Let the optimiser and clipping take ``direction`` for the gradient."""
    for name, parameter in local.named_parameters():
        parameter.grad = direction[name].clone()


def of_length(vector: Mapping[str, Tensor], radius: float) -> Vector:
    """Vector of the same direction: radius v / ||v||; 0 where v is 0."""
    norm = length(vector)
    if norm == 0:
        return {name: torch.zeros_like(value) for name, value in vector.items()}
    return {name: radius * value / norm for name, value in vector.items()}


def length(vector: Mapping[str, Tensor]) -> Tensor:
    """Norm over all parameters: ||v|| = sqrt(sum over parameters and entries of v^2)."""
    return torch.stack([(value * value).sum() for value in vector.values()]).sum().sqrt()


# --- Sharpness-aware clients, FedAvg's server ------------------------------------------------


@dataclass(kw_only=True)
class FedSAM(FedAvg):
    """FedSAM (Qu et al. 2022, Caldarola et al. 2022): step with g(w + e), e = r g(w) / ||g(w)||.

    r is ``radius``; with g = 0, e = 0. With ``adaptive`` above 0 it is FedASAM: e = r T^2 g / ||T
    g||, T = |w| + adaptive, entry by entry. (That the public ASAM leaves T = 1 for biases is from
    memory; here T is the same for all parameters.) Server as FedAvg.
    """

    radius: float = 0.1
    adaptive: float = 0.0

    def backward(self, local: nn.Module, client: Client, batch: Batch) -> None:
        """Gradients of a step: g(w), then e, then g(w + e)."""
        e = self.offset(local, gradient(self, local, client, batch))
        put(local, gradient_beside(self, local, client, batch, e))

    def offset(self, local: nn.Module, g: Vector) -> Vector:
        """Offset: e = r g / ||g||, or r T^2 g / ||T g||."""
        if self.adaptive == 0:
            return of_length(g, self.radius)
        scale = {name: w.abs() + self.adaptive for name, w in values(local).items()}
        e = of_length({name: scale[name] * g[name] for name in g}, self.radius)
        return {name: scale[name] * e[name] for name in g}


@dataclass(kw_only=True)
class MoFedSAM(FedSAM, FedCM):
    """MoFedSAM (Qu et al. 2022): a step goes along alpha g(w + e) + (1 - alpha) V.

    e is FedSAM's, V and the server FedCM's.
    """


# --- Sharpness-aware clients that remember their drift ---------------------------------------


@dataclass(kw_only=True)
class FedSpeed(FedSAM):
    """FedSpeed (Sun et al. 2023): step with (1 - mix) g(w) + mix g(w + e) - h_i + s (w - x).

    Afterwards h_i+ = h_i - s (y_i - x), and the client sends its amended model y_i - h_i+ / s; x+
    is their plain mean over the cohort. h_i starts at 0. s is ``strength`` (the paper's 1/lambda),
    e is FedSAM's, ``client_states[id]`` is h_i (no entry: 0). The amended model and its mean over
    the cohort alone are the paper's from memory. With ``over_all``, the public code's form:
    x+ = mean over the cohort of y_i - (mean over all N clients of h_i+) / s.
    """

    strength: float = 0.1
    mix: float = 1.0
    over_all: bool = False
    client_states: dict[Hashable, Vector] = field(default_factory=dict, init=False)

    def state_of(self, client: Client) -> Vector:
        """Client state: h_i, 0 for a client that never took part."""
        return self.client_states.get(client["id"], zeros(self.model))

    def backward(self, local: nn.Module, client: Client, batch: Batch) -> None:
        """Gradients of a step: (1 - mix) g(w) + mix g(w + e)."""
        first = gradient(self, local, client, batch)
        e = self.offset(local, first)
        second = gradient_beside(self, local, client, batch, e)
        put(local, {n: (1 - self.mix) * first[n] + self.mix * second[n] for n in first})

    def correct_gradients(self, local: nn.Module, client: Client) -> None:
        """Change of the gradients before the step: - h_i + s (w - x)."""
        x = values(self.model)
        h_i = self.state_of(client)
        for name, w in local.named_parameters():
            assert w.grad is not None
            w.grad = w.grad - h_i[name] + self.strength * (w.detach() - x[name])

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """Clients' h_i+ and amended models; x+ = mean_i(y_i - h_i+ / s)."""
        x = values(self.model)
        new = zeros(self.model)
        for client, local in zip(cohort, local_models, strict=True):
            y_i = values(local)
            h_i = self.state_of(client)
            h_i_new = {name: h_i[name] - self.strength * (y_i[name] - x[name]) for name in x}
            self.client_states[client["id"]] = h_i_new
            for name in x:
                amended = y_i[name] - h_i_new[name] / self.strength
                new[name] += (y_i[name] if self.over_all else amended) / len(cohort)
        if self.over_all:
            for h_i in self.client_states.values():
                for name in x:
                    new[name] -= h_i[name] / self.strength / self.clients_total
        return replace_values(super().server(cohort, local_models), new)


@dataclass(kw_only=True)
class FedSMOO(FedDyn):
    """FedSMOO (Sun et al. 2023): FedDyn whose offsets all clients agree on.

    In every step e = r (g(w) - mu_i - s) / ||g(w) - mu_i - s||, then mu_i <- mu_i + e - s, then a
    step with g(w + e) - h_i + alpha (w - x). x+, h and h_i as FedDyn. Server: s+ = r u / ||u||, u =
    the plain mean over the cohort of mu_i - e_i, e_i the offset of client i's last step in this
    round. All states start at 0, and mu_i stays with the client between rounds. Where a norm is 0,
    the offset is 0. With ``last_offset`` false, the public code's form: u = mean mu_i.

    r is ``radius``; ``common`` is s, ``duals[id]`` is mu_i (no entry: 0).
    """

    alpha: float = 0.1
    radius: float = 0.1
    last_offset: bool = True
    duals: dict[Hashable, Vector] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """States: h = 0, s = 0; ``last[id]`` is e of the client's last step."""
        super().__post_init__()
        self.common = zeros(self.model)
        self.last: dict[Hashable, Vector] = {}

    def penalty(self, local: nn.Module, client: Client, batch: Batch, features: Tensor) -> Tensor:
        """Term of the local loss: none, for FedDyn's terms are no part of g."""
        return features.new_zeros(())

    def backward(self, local: nn.Module, client: Client, batch: Batch) -> None:
        """Gradients of a step: g(w), then e, then mu_i, then g(w + e)."""
        g = gradient(self, local, client, batch)
        mu_i = self.duals.get(client["id"], zeros(self.model))
        e = of_length({n: g[n] - mu_i[n] - self.common[n] for n in g}, self.radius)
        self.duals[client["id"]] = {n: mu_i[n] + e[n] - self.common[n] for n in g}
        self.last[client["id"]] = e
        put(local, gradient_beside(self, local, client, batch, e))

    def correct_gradients(self, local: nn.Module, client: Client) -> None:
        """Change of the gradients before the step: - h_i + alpha (w - x)."""
        x = values(self.model)
        h_i = self.state_of(client)
        for name, w in local.named_parameters():
            assert w.grad is not None
            w.grad = w.grad - h_i[name] + self.alpha * (w.detach() - x[name])

    def server(self, cohort: Sequence[Client], local_models: Sequence[nn.Module]) -> nn.Module:
        """Server: s+ = r u / ||u||, u = mean_i(mu_i - e_i), and FedDyn's x+."""
        u = zeros(self.model)
        for client in cohort:
            mu_i = self.duals[client["id"]]
            e_i = self.last[client["id"]] if self.last_offset else zeros(self.model)
            for name in u:
                u[name] += (mu_i[name] - e_i[name]) / len(cohort)
        self.common = of_length(u, self.radius)
        return super().server(cohort, local_models)
