"""Least squares: quadratic local problems, with optima and trajectories in closed form.

Client i minimises the mean over its samples of ||W f + b - t||^2 / 2, whose gradient in
V = (W, b)^T [d + 1, C] is A_i V - B_i with A_i = mean f~ f~^T and B_i = mean f~ t^T. A local step
takes all of its samples, so K_i steps of plain SGD lead from V to P_i + (1 - eta A_i)^K_i (V - P_i)
with P_i the client's own optimum.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfm import models
from fedfm.core.trees import Tree
from fedfm.data.batches import BatchPlan
from fedfm.data.dataset import Dataset
from fedfm.data.split import Split
from fedfm.engine.networks import copy_model
from fedfm.methods import Batch, FedAvg, FedDyn, Model, Piece
from fedfm.rounds.federation import Federation
from fedfm.verify.checks import Mismatch, check, only, same
from fedfm.verify.fixtures import Pieces, make_federation, play_rounds, split_samples, start

FEATURES, CLASSES = 3, 2
SIZES, STEPS = (12, 12, 9, 9), (2, 5, 3, 4)


@dataclass(frozen=True)
class LeastSquares(Piece):
    """The squared error in place of cross-entropy."""

    name = "least squares"

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        """Return half the squared error, less the cross-entropy that the engine adds -> [S]."""
        shape = batch.labels.shape
        entropy = F.cross_entropy(
            batch.logits.flatten(0, 1), batch.labels.flatten(), reduction="none"
        )
        wrong = batch.logits - F.one_hot(batch.labels, CLASSES)
        return (wrong.square().sum(-1) / 2 - entropy.view(shape)).mean(-1)


class WholeBatches(Federation):
    """Client i takes STEPS[i] steps, each on all of its samples."""

    def plan(self, round: int, client: int, epochs: int | None = None) -> BatchPlan:
        """Return the same batches in every round."""
        samples, steps = self.samples[client], STEPS[client]
        return BatchPlan(samples.repeat(steps), (len(samples),) * steps, None, 0)


@cache
def make_problem() -> tuple[nn.Module, Dataset]:
    """Return the network of softmax regression, and data in which the clients disagree."""
    rng = torch.Generator().manual_seed(1)
    labels = torch.randint(CLASSES, (sum(SIZES),), generator=rng)
    inputs = torch.randn(sum(SIZES), FEATURES, generator=rng, dtype=torch.float64)
    owner = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES))
    labels[owner >= len(SIZES) // 2] = 0
    split = Split(inputs * (1 + owner.unsqueeze(1) / 4), labels)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        network = models.MLP((FEATURES,), CLASSES, hidden=()).double()
    return network, Dataset("quadratic", split, split, ("0", "1"), keep_order=True)


def make_quadratic_federation(pieces: Pieces, lr: float, momentum: float) -> Federation:
    """Return the federation of all four clients in every round."""
    module, data = make_problem()
    method = LeastSquares(), *pieces
    fed = make_federation(module, data, *method, lr=lr, momentum=momentum, weight_decay=0.0)
    return WholeBatches(**vars(fed) | {"samples": split_samples(SIZES)})


def train_quadratic(pieces: Pieces, rounds: int, lr: float, momentum: float = 0.0) -> Tensor:
    """Return V [d + 1, C] after some rounds."""
    fed = make_quadratic_federation(pieces, lr, momentum)
    return flatten_model(play_rounds(start(fed), fed, rounds).model)


def flatten_model(model: Model) -> Tensor:
    """Return weight and bias as one matrix V [d + 1, C]."""
    weight, bias = model.params.values()
    return torch.cat([weight.T, bias.unsqueeze(0)])


def make_systems() -> tuple[Tensor, Tensor]:
    """Return A [N, d + 1, d + 1] and B [N, d + 1, C] of the clients."""
    split = make_problem()[1].train
    inputs = F.pad(split.inputs, (0, 1), value=1.0)
    targets = F.one_hot(split.labels, CLASSES).double()
    pairs = [(inputs[samples], targets[samples]) for samples in split_samples(SIZES)]
    products = [(x.T @ x / len(x), x.T @ t / len(x)) for x, t in pairs]
    return torch.stack([a for a, _ in products]), torch.stack([b for _, b in products])


@check(
    "closed form",
    "on quadratics every round ends where the closed form says",
    only("fedavg", "fedavgm", "fedprox", "fednova"),
)
def compare_closed_form(pieces: Pieces) -> None:
    """Compare three rounds of plain SGD with unequal steps."""
    (piece,), lr, (curvature, right) = pieces, 0.1, make_systems()
    pull = piece.pull * torch.eye(FEATURES + 1, dtype=torch.float64)
    shares = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)
    counts = [sum((1 - lr * piece.pull) ** j for j in range(steps)) for steps in STEPS]
    lengths = torch.tensor(counts, dtype=torch.float64)
    if piece.name == "fednova":
        shares = (shares * lengths).sum() * shares / lengths
    where, velocity = flatten_model(copy_model(make_problem()[0])), torch.zeros(())
    for _ in range(3):
        mean = torch.zeros_like(where)
        for a, b, share, steps in zip(curvature + pull, right, shares, STEPS, strict=True):
            best = torch.linalg.solve(a, b + piece.pull * where)
            factor = torch.matrix_power(torch.eye(FEATURES + 1).double() - lr * a, steps)
            mean = mean + share * (best + factor @ (where - best) - where)
        velocity = getattr(piece, "beta", 0.0) * velocity + mean
        where = where + velocity
    same({"V": train_quadratic(pieces, 3, lr)}, {"V": where}, 1e-11)


@cache
def find_optimum() -> Tensor:
    """Return the optimum V [d + 1, C] of the average problem, which FedAvg misses."""
    curvature, right = make_systems()
    optimum: Tensor = torch.linalg.solve(curvature.mean(0), right.mean(0))
    if (train_quadratic((FedAvg(),), 40, 0.2) - optimum).abs().max() < 1e-2:
        raise Mismatch("FedAvg reaches the optimum too: the problem is too easy")
    return optimum


@check(
    "optimum",
    "on quadratics that differ it reaches the optimum of their average, which FedAvg misses",
    only("scaffold", "feddyn"),
)
def reach_optimum(pieces: Pieces) -> None:
    """Play many rounds, without momentum and with; a large alpha makes FedDyn faster."""
    (piece,) = pieces
    quick = replace(piece, alpha=2.0) if isinstance(piece, FedDyn) else piece
    for lr, momentum in ((0.2, 0.0), (0.04, 0.9)):
        ours = train_quadratic((quick,), 40, lr, momentum)
        same({"V": ours}, {"V": find_optimum()}, 1e-4, f"momentum {momentum}: ")
