"""What the server expects of one client: the form of its answer, and its typical weight."""

from dataclasses import replace

import torch

from fedfm.config import Config
from fedfm.core.client_states import InMemory
from fedfm.core.trees import Tree, to_device
from fedfm.methods.base import LocalRun, Model, Task
from fedfm.methods.composition import Method
from fedfm.privacy.privacy_mechanism import PrivacyMechanism
from fedfm.rounds.clients import answer_measure, answer_train
from fedfm.rounds.costs import make_single_client
from fedfm.rounds.federation import LocalTraining
from fedfm.rounds.group import prepare_group
from fedfm.rounds.messages import Request, Sums
from fedfm.rounds.stages import train_locally
from fedfm.run.client_results import to_sums


def expect_answer(
    request: Request, method: Method, task: Task, privacy: PrivacyMechanism | None = None
) -> Sums:
    """Return one client's answer to `request` with all tensors on the meta device."""
    model = request.model.map(lambda tree: to_device(tree, "meta"))
    fed = make_single_client(method, replace(task, model=model), privacy)
    down = to_device(request.down, "meta")
    blank = request._replace(cohort=[0], model=model, down=down, kept=InMemory())
    group = prepare_group(blank, fed)
    if request.kind == "measure":
        sums = answer_measure(group, fed, blank)
        return sums._replace(total={"reports": sums.total})
    return answer_train(group, fed, blank, train_locally(group, fed, blank))


def expect_scores(config: Config, task: Task) -> Tree:
    """Return one client's evaluation of a model, with zeros: see `Runtime.evaluate`."""
    measures, none = config.measures, torch.zeros(1, dtype=torch.float64)
    sums = to_sums({metric.name: none for metric in measures.numbers})
    validation = {"validation": sums} if config.training.validation else {}
    return validation | {"clients": sums, "test": measures.try_out(task.classes, task.features)}


def expect_weight(config: Config, model: Model, samples: float) -> float:
    """Return the weight of a client with this many samples if they are the unit of weights."""
    size = max(1, round(samples * (1 - config.training.validation)))
    return weigh(config, model, size, counted=1.0, round=0)


def weigh(config: Config, model: Model, size: int, counted: float, round: int) -> float:
    """Return the method's weight of a client whose `size` training samples count as `counted`."""
    training, method = config.training, config.composed
    steps = LocalTraining.from_config(training).count_steps(size)
    samples, factors = torch.tensor([counted]), training.schedule.factors(round, steps)
    how = training.make_optimizer(), method.pull, samples, factors
    run = LocalRun(model, model, torch.tensor([steps]), *how)
    weight = samples
    for piece in method.pieces:
        weight = piece.weights(weight, run)
    return float(weight)
