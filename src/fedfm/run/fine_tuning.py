"""Local fine-tuning: what each client gets if it trains the reported model on its own samples."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from torch import Tensor

from fedfm.config.training import Training, cohort_size
from fedfm.core.client_states import InMemory
from fedfm.core.errors import require
from fedfm.engine.evaluation import Evaluator, Measured
from fedfm.methods.base import Model
from fedfm.methods.composition import Method
from fedfm.rounds.exchange import Request
from fedfm.rounds.federation import Federation
from fedfm.rounds.group import prepare_group
from fedfm.rounds.stages import train_locally
from fedfm.run.client_results import ClientResults
from fedfm.run.scores import make_results


def fine_tune(
    model: Model, fed: Federation, evaluator: Evaluator, epochs: int, round: int
) -> ClientResults | None:
    """Return what the clients get after training `model` [...] for `epochs` epochs.

    Each trains with the plain loss on its training samples, in batches drawn for `round`, and is
    tested on its own test samples, or on its validation samples where it has no test samples.
    """
    plain = replace(
        fed, method=Method(()), guard=None, training=replace(fed.training, epochs=epochs)
    )
    parts = [
        _measure_group(model, plain, evaluator, round, clients)
        for clients in _split_clients(
            fed.population, cohort_size(fed.participation, fed.population)
        )
    ]
    split: Literal["test", "validation"] = "test" if evaluator.owned else "validation"
    return make_results(split, Measured.concat(parts).values(), evaluator.measures)


def _split_clients(clients: int, at_once: int) -> Iterator[list[int]]:
    """Yield groups that are no larger than a round's cohort, so that memory suffices."""
    for first in range(0, clients, at_once):
        yield [*range(first, min(first + at_once, clients))]


def _measure_group(
    model: Model, fed: Federation, evaluator: Evaluator, round: int, clients: list[int]
) -> Measured:
    """Measure the models of some clients after their training."""
    request = Request("train", round, clients, model, [], [], {}, InMemory(), sharing=False)
    result = train_locally(prepare_group(request, fed), fed, request).result
    samples: Sequence[Tensor] = evaluator.owned or evaluator.validation
    data = evaluator.test if evaluator.owned else evaluator.train
    return evaluator.measure(result.model, [samples[client] for client in clients], data)


def check_fine_tuning(training: Training, owned: Sequence[Tensor]) -> None:
    """Refuse fine-tuning whose result could not be measured."""
    require(
        not training.fine_tune or bool(owned) or training.validation > 0,
        f"fine_tune = {training.fine_tune} tests every client on its own samples, but validation = "
        "0 and no test samples belong to clients: hold out some samples, or leave out fine_tune",
    )
