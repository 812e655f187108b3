"""The cost of a method, from the shapes of its messages: a round on the meta device."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from fedfm.core.ledger import Traffic
from fedfm.core.trees import Tree, to_device
from fedfm.engine.networks import copy_model, describe_task
from fedfm.engine.shapes import ShapesExecutor
from fedfm.methods import Method, Task
from fedfm.optim import Sgd
from fedfm.privacy.privacy_mechanism import PrivacyMechanism
from fedfm.rounds.clients import answer_measure
from fedfm.rounds.federation import Federation, LocalTraining
from fedfm.rounds.group import prepare_group
from fedfm.rounds.messages import Request
from fedfm.rounds.round import run_round
from fedfm.rounds.state import State, initial_state


@dataclass(frozen=True)
class Cost:
    """Per client and round, averaged over the rounds between two exchanges of models."""

    method: str
    memory: int
    """The floats that a client holds in training."""
    floats_up: float
    floats_down: float
    bytes_up: float
    bytes_down: float
    handshakes: float
    conclusion: int = 0
    """The floats that a client sends in a last round without training, of methods with one."""

    def whole_process(self, clients: int, rounds: int) -> float:
        """Return the floats that `clients` clients send in `rounds` rounds, in one direction."""
        trained = rounds - 1 if self.conclusion else rounds
        return (self.floats_up * trained + self.conclusion) * clients

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers by name."""
        return {k: v for k, v in asdict(self).items() if k != "conclusion" or v}


def measure_cost(method: Method, model: nn.Module, classes: int, features: int) -> Cost:
    """Measure the cost of a method in rounds with every piece active, but not the first model."""
    start = copy_model(model).map(lambda tree: to_device(tree, "meta"))
    task = describe_task(model, start, classes, features)
    begun = initial_state(start, method, task)
    state = replace(begun, round=method.steady_round, received=frozenset({0}))
    fed = make_single_client(method, task)
    traffic, held = Traffic(), 0
    for _ in range(method.share_every):
        state, log = run_round(state, fed)
        traffic, held = traffic + log.traffic, log.held
    per_round = {name: sum_ / method.share_every for name, sum_ in traffic.as_dict().items()}
    return Cost(method.name, held, **per_round, conclusion=_count_conclusion(state, fed))


def _count_conclusion(state: State, fed: Federation) -> int:
    """Return the floats that a client sends in a last round without training, if there is one."""
    if not fed.method.concludes(0, rounds=1):
        return 0
    how = [0], state.model, [0], [0], Tree(), state.clients
    request = Request("measure", state.round, *how, sharing=False, when="end")
    return answer_measure(prepare_group(request, fed), fed, request).traffic.floats_up


def make_single_client(
    method: Method, task: Task, privacy: PrivacyMechanism | None = None
) -> Federation:
    """Return a federation of one client with one sample."""
    return Federation(
        task=task,
        method=method,
        executor=ShapesExecutor(task),
        samples=[torch.zeros(1, dtype=torch.int64)],
        training=LocalTraining(1, 1, False, Sgd(0.01, 0.9, 0.0)),
        participation=1.0,
        augmentation=None,
        seed=0,
        privacy=privacy,
    )
