"""Mistakes around the pieces: in the engine, the batches, the round and the ledger."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfm.core import ledger, trees
from fedfm.core.ledger import Ledger, Traffic
from fedfm.core.trees import Tree
from fedfm.data.batches import BatchPlan, plan_batches
from fedfm.engine.cohort import Cohort, CohortPart, TrainingResult
from fedfm.engine.networks import BoundNetwork
from fedfm.engine.objective import Objective
from fedfm.engine.update import update
from fedfm.methods import (
    FedAvg,
    FedDyn,
    FedFM,
    FedFMLite,
    FedNTD,
    FedProx,
    Model,
    Moon,
    Scaffold,
)
from fedfm.optim import Schedule, Sgd
from fedfm.rounds import clients, federation, stages
from fedfm.rounds import round as rounds
from fedfm.rounds.clients import TrainedClients, answer_measure, answer_train
from fedfm.rounds.federation import Federation
from fedfm.rounds.group import ClientGroup
from fedfm.rounds.messages import Request, Sums
from fedfm.rounds.stages import make_objective
from fedfm.verify.mistakes.planting import plant_in

bind_frozen, sum_buffers = BoundNetwork.bind_frozen, clients.sum_buffers
count_uploads, record_handshake = clients.count_uploads, Ledger.record_handshake
train, finish_step, factors = Cohort.train, Cohort.finish_step, Schedule.factors
FM, LITE = FedFM(strength=1.0, start_round=0), FedFMLite(strength=1.0, start_round=0)
UNIFORM_FM, UNIFORM_LITE = replace(FM, anchors="uniform"), replace(LITE, anchors="uniform")


@plant_in(BoundNetwork, "bind_frozen", "frozen models run in training mode", Moon(mu=2.0), FedNTD())
def bind_training(self: BoundNetwork, name: str, model: Model) -> BoundNetwork:
    """Let the frozen model move its BatchNorm statistics."""
    net = bind_frozen(self, name, model)
    net.module.train()
    return net


@plant_in(clients, "sum_buffers", "BatchNorm buffers are one client's, not the average", FedAvg())
def take_first_buffers(buffers: Tree, base: Tree, samples: Tensor) -> Tree:
    """Give the first client all the weight."""
    first = torch.zeros_like(samples)
    first[0] = samples.sum()
    return sum_buffers(buffers, base, first)


@plant_in(
    clients,
    "sum_buffers",
    "BatchNorm buffers are averaged plainly instead of by data share",
    FedAvg(),
)
def sum_buffers_plainly(buffers: Tree, base: Tree, samples: Tensor) -> Tree:
    """Give every client the same weight."""
    return sum_buffers(buffers, base, samples.mean().expand_as(samples))


@plant_in(federation, "plan_batches", "all epochs have their batches in one order", FedAvg())
def repeat_first_epoch(indices: np.ndarray, *, epochs: int, **how: Any) -> BatchPlan:
    """Repeat the batches of the first epoch."""
    whole = plan_batches(indices, epochs=epochs, **how)
    first = whole.first(whole.steps // epochs)
    return replace(whole, indices=first.indices.repeat(epochs))


@plant_in(Schedule, "factors", "the rate stays that of the first round", FedAvg(), Scaffold())
def freeze_rate(self: Schedule, round: int, steps: int) -> tuple[float, ...]:
    """Return the factors of round 0."""
    return factors(self, 0, steps)


@plant_in(Cohort, "train", "momentum is carried over to the next round", FedAvg())
def carry_momentum(self: Cohort, plans: Sequence[BatchPlan]) -> TrainingResult:
    """Begin with the moments of the network's last cohort."""
    carried: Tree = vars(self.net).get("carried", self.moments)
    self.moments = vars(self.net)["carried"] = carried
    return train(self, plans)


@plant_in(Cohort, "finish_step", "gradients are clipped after weight decay", FedAvg())
def clip_late(self: Cohort, part: CohortPart, grads: Tree) -> None:
    """Add the decay to the gradient before it is clipped."""
    if not self.clipping or not isinstance(self.optimizer, Sgd):
        finish_step(self, part, grads)
        return
    decay = self.optimizer.weight_decay
    grads = trees.tree_map(lambda g, p: g + decay * p, grads, part.params)
    sgd = replace(self.optimizer, weight_decay=0.0)
    update(part.params, self.clipping(grads), part.moments, part.low_params, sgd, self.clock)


@plant_in(
    stages,
    "make_objective",
    "between exchanges of models the pull is towards the client's own",
    FedProx(mu=0.3),
)
def pull_to_start(group: ClientGroup, fed: Federation, request: Request) -> Objective:
    """Give the pieces the model that a client starts from instead of the received one."""
    return make_objective(group._replace(base=group.start), fed, request)


def count_everybody(answer: Callable[..., Sums]) -> Callable[..., Sums]:
    """Return an answer that counts clients who failed with the others."""

    def wrong(*args: Any) -> Sums:
        sums = answer(*args)
        return sums._replace(clients=sums.present)

    return wrong


plant_in(
    rounds,
    "answer_train",
    "a client whose training failed is counted",
    FedDyn(alpha=0.2),
    UNIFORM_LITE,
)(count_everybody(answer_train))
plant_in(rounds, "answer_measure", "a client whose features are not finite is counted", UNIFORM_FM)(
    count_everybody(answer_measure)
)


@plant_in(ledger, "float_leaves", "the ledger has buffers among the floats", FedAvg())
def every_float(message: Tree) -> Iterator[Tensor]:
    """Return buffers, too."""
    return (leaf for leaf in trees.leaves(message) if leaf.is_floating_point())


@plant_in(ledger, "count_bytes", "the ledger leaves out the bytes of integers", LITE)
def count_float_bytes(message: Tree) -> int:
    """Leave out counts and flags."""
    return sum(leaf.numel() * leaf.element_size() for leaf in every_float(message))


@plant_in(Ledger, "record_handshake", "the ledger has one handshake in every round", FM)
def record_one_handshake(self: Ledger, answers: Traffic) -> None:
    """Reset the count to 1, however often server and clients meet."""
    record_handshake(self, answers)
    self.traffic = replace(self.traffic, handshakes=1)


@plant_in(
    clients,
    "count_uploads",
    "the ledger has models that were not sent",
    replace(LITE, models_every=2),
)
def count_unsent_uploads(group: ClientGroup, work: TrainedClients, sharing: bool) -> Traffic:
    """Count a model that stays with its client."""
    return count_uploads(group, work, sharing=True)
