"""Local fine-tuning: what each client gets if it trains the reported model on its own samples."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fedfm.config.training import Training, cohort_size
from fedfm.core.client_states import InMemory
from fedfm.core.errors import require
from fedfm.engine.evaluation import Evaluator, SummedStatistics, Values
from fedfm.methods.base import Model
from fedfm.methods.composition import Method
from fedfm.rounds.federation import Federation
from fedfm.rounds.group import prepare_group
from fedfm.rounds.messages import Request
from fedfm.rounds.shared_round import choose_cohort
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
        fed, method=Method(()), privacy=None, training=replace(fed.training, epochs=epochs)
    )
    local_cohort = choose_cohort(range(fed.population), fed)
    at_once = -(-cohort_size(fed.participation, fed.population) // fed.processes.size)
    parts = [
        _measure_group(
            model, plain, evaluator.alone(), round, local_cohort[first : first + at_once]
        )
        for first in range(
            0, len(local_cohort), at_once
        )  # like a round's cohort, so that memory suffices
    ]
    values = fed.processes.add(
        _place(SummedStatistics.concat(parts).values(), local_cohort, fed.population)
    )
    split: Literal["test", "validation"] = "test" if evaluator.owned else "validation"
    return make_results(split, values, evaluator.measures)


def _place(values: Values, clients: list[int], population: int) -> Values:
    """Return values [S] of some clients at their places among all [N]; the others have zeros."""
    places = torch.tensor(clients)
    return {
        name: value.new_zeros(population).index_copy(0, places.to(value.device), value)
        for name, value in values.items()
    }


def _measure_group(
    model: Model, fed: Federation, evaluator: Evaluator, round: int, clients: list[int]
) -> SummedStatistics:
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
