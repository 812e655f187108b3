"""Whether a client's answer can be true: counts, weights, scores, and the size of its update."""

import math

import torch

from fedfm.config import Config
from fedfm.core import trees
from fedfm.core.errors import require
from fedfm.core.trees import Tree
from fedfm.deploy.events import Limited, emit
from fedfm.deploy.packets import Packet
from fedfm.deploy.server.expected import weigh
from fedfm.deploy.updates import limit_update
from fedfm.methods.base import Model, Piece
from fedfm.metrics import Metric
from fedfm.metrics.measures import Measures
from fedfm.run.client_results import to_sums

CLOSE = 1e-4
"""The relative error that rounding may cause in what the server computes again."""
ANY_MODEL = Model({"weight": torch.zeros(1)}, {})
"""A model for weights that depend on samples and steps only."""


class AnswerChecks:
    """Checks answers that the server can read, one by one."""

    def __init__(self, config: Config) -> None:
        self.config, self.method, self.measures = config, config.composed, config.measures

    def check(self, client: int, question: Packet, answer: Tree) -> Tree:
        """Return a client's answer with a bounded update; refuse what cannot be true."""
        if "moments" in answer:
            _check_moments(answer)
        if self.config.privacy is None:
            self._check_counts(answer)
        if "weight" in answer:
            self._check_weight(answer, question.facts["round"])
        if "scores" in answer:
            most = self.config.deployment.max_samples
            check_scores(answer["scores"], self.measures, clients=1, most=most)
        answer, what = limit_update(answer, self.config.deployment)
        if what:
            emit(Limited(client, what))
        return answer

    def check_total(self, total: Tree, clients: int) -> None:
        """Refuse a secure sum over clients that cannot be true."""
        for name in total.keys() & {"samples", "weight"}:
            require(float(total[name]) > 0, f"the sum of '{name}' is not positive")
        if self.config.privacy is None:
            self._check_reports(total.get("reports", {}), math.inf)
        if "scores" in total:
            most = self.config.deployment.max_samples
            check_scores(total["scores"], self.measures, clients, most)

    def _check_counts(self, answer: Tree) -> None:
        """Refuse counts of samples that are negative, or more than the client may have."""
        most = float(self.config.deployment.max_samples)
        if "samples" in answer:
            samples = float(answer["samples"])
            require(
                samples == round(samples) and 1 <= samples <= most,
                f"it says that it has {samples:g} samples, deployment.max_samples is {most:g}",
            )
            most = samples
        self._check_reports(answer.get("reports", {}), most)

    def _check_reports(self, reports: Tree, most: float) -> None:
        """Refuse counts of classes that are negative, or more than there are samples."""
        for piece in self.method.pieces:
            for name in piece.counted & reports.get(piece.name, {}).keys():
                counts = reports[piece.name][name]
                fine = bool((counts >= 0).all()) and float(counts.sum()) <= most * (1 + CLOSE)
                require(fine, f"'{name}' of {piece.name} cannot be counts of its samples")

    def _check_weight(self, answer: Tree, round: int) -> None:
        """Refuse a weight other than the one that the method gives to its number of samples."""
        samples, weight = float(answer["samples"]), float(answer["weight"])
        require(weight > 0, f"its weight is {weight:g}; it must be positive")
        if self.config.privacy is not None:
            require(samples == weight == 1, "with [privacy] every client has the weight 1")
        elif not any(map(_weighs_by_itself, self.method.pieces)):
            expected = weigh(self.config, ANY_MODEL, int(samples), samples, round)
            fine = math.isclose(weight, expected, rel_tol=CLOSE)
            require(fine, f"its weight is {weight:g}, but {samples:g} samples give {expected:g}")


def _weighs_by_itself(piece: Piece) -> bool:
    """Return whether a piece of the user's computes weights, perhaps from what it has learned."""
    hook = type(piece).weights
    return hook is not Piece.weights and not hook.__module__.startswith("fedfm.")


def _check_moments(answer: Tree) -> None:
    """Refuse moments that no inputs have (in the units of `compact`)."""
    moments = answer["moments"]
    count, sums, squares = (moments[key].double() for key in ("count", "sum", "square"))
    least = sums.square() / count.clamp(min=1) * (1 - CLOSE)
    fine = math.isclose(float(count), float(answer["samples"]), rel_tol=CLOSE)
    require(fine and bool((squares >= least).all()), "its sums of inputs are impossible")


def check_scores(scores: Tree, measures: Measures, clients: int, most: int) -> None:
    """Refuse evaluations of a model, summed over `clients` clients, that no samples give.

    `most` is the largest number of test samples of a client.
    """
    samples = float(scores["test"][measures.metrics[0].name]["samples"])
    fine = 0 <= samples <= most * clients
    require(fine, f"{samples:g} test samples, but deployment.max_samples is {most:g}")
    measures.check(trees.share(scores["test"]))
    for split in ("validation", "clients"):
        for metric in measures.numbers if split in scores else ():
            require(
                _is_sum(scores[split][metric.name], metric, clients),
                f"{metric.name} ('{split}') is not between {metric.low:g} and {metric.high:g}",
            )
    if clients == 1:
        summed = [metric for metric in measures.numbers if metric not in measures.exact]
        values = measures.values(trees.share(scores["test"]), summed)
        for name, wanted in to_sums(values).items():
            same = all(
                torch.isclose(scores["clients"][name][key].double(), leaf.double(), rtol=CLOSE)
                for key, leaf in wanted.items()
            )
            require(same, f"{name} is not what its statistics give")


def _is_sum(sums: Tree, metric: Metric, clients: int) -> bool:
    """Return whether sums over clients (see `to_sums`) can be those of values in the range."""
    count, total, squares = (float(sums[key]) for key in ("clients", "sum", "squares"))
    if not 0 <= count <= clients or (not count and (total or squares)):
        return False
    if not count:
        return True
    mean, square = torch.tensor([total / count]).double(), squares / count
    slack = CLOSE * (1 + float(mean.square()))
    bound = max(metric.low**2, metric.high**2)
    fits = float(mean.square()) - slack <= square <= bound + slack
    return bool(metric.is_in_range(mean)) and fits
