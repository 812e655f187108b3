"""The library against the textbook where the head is special: FedETF and CCVR."""

import copy
from dataclasses import replace
from unittest.mock import patch

import torch
from torch import Tensor, nn

from fedfm.core.rng import generator
from fedfm.core.trees import Tree
from fedfm.engine.networks import copy_model
from fedfm.methods import Model, ccvr
from fedfm.rounds.round import run_round
from fedfm.verify.checks import check, only, same, same_model
from fedfm.verify.compare_textbook import compare_traffic
from fedfm.verify.fixtures import (
    CLASSES,
    FEATURES,
    Pieces,
    SmallFederation,
    play_rounds,
    split_samples,
    start,
)
from fedfm.verify.textbook.ledger import count_conclusion, count_round
from fedfm.verify.textbook.loop import FedAvg
from fedfm.verify.textbook.simplex import SimplexNet
from fedfm.verify.textbook.statistics import (
    add_sums,
    class_sums,
    drawn_features,
    mixture,
    retrained_head,
)
from fedfm.verify.textbook_federation import cohort_of, make_method

AMPLE = SmallFederation("tiny cnn with batch norm", sizes=(43, 26, 19, 30))
"""Every class has more samples than features, so that roots of covariances are well conditioned."""
SIMPLEX, LAST = (
    SmallFederation("tiny mlp with a simplex"),
    SmallFederation("tiny cnn with batch norm"),
)
NAMES = {"head.projection.": "projection.", "head.simplex.": ""}
"""What parameters of the library's simplex head begin with, and those of the textbook's."""


@check(
    "textbook: with a simplex head",
    "with `model.head = simplex` every round equals FedETF's",
    only("balancedsoftmax"),
)
def agree_with_simplex(pieces: Pieces) -> None:
    """Compare with the textbook's network, which has the same body and projection."""
    fed, theirs = SIMPLEX.make_federation(pieces), make_method(pieces, SIMPLEX)
    theirs.model = with_simplex(copy.deepcopy(SIMPLEX.module))
    state = start(fed)
    for t in range(4):
        theirs.round(cohort_of(fed, SIMPLEX.data, t))
        state, log = run_round(state, fed)
        same_model(rename(state.model), copy_model(theirs.model), 1e-9, f"round {t + 1}: ")
        expected = count_round(theirs.model, CLASSES, FEATURES, pieces[0].name, {}, t, *[3] * 3)
        compare_traffic(log, expected, f"round {t + 1}: ")


def with_simplex(module: nn.Module) -> SimplexNet:
    """Return the textbook's network with the body and the projection of the library's."""
    body, projection = module.get_submodule("body"), module.get_submodule("head.projection")
    assert isinstance(projection, nn.Linear)
    return SimplexNet(body, projection, torch.eye(CLASSES, dtype=SIMPLEX.dtype))


def rename(model: Model) -> Model:
    """Return the model with the textbook's names."""
    params = {}
    for name, leaf in model.params.items():
        begin = next((ours for ours in NAMES if name.startswith(ours)), "")
        params[NAMES.get(begin, "") + name.removeprefix(begin)] = leaf
    return model._replace(params=params)


@check(
    "textbook: class statistics",
    "the last round has the moments of all samples by class, and changes the head alone",
    only("ccvr"),
)
def compare_statistics(pieces: Pieces) -> None:
    """Compare the moments that features are drawn from, the rest of the model, and the ledger."""
    fed, theirs = replace(LAST.make_federation(pieces), rounds=3), make_method(pieces, LAST)
    for t in range(2):
        theirs.round(cohort_of(fed, LAST.data, t))
    state, statistics, compute = play_rounds(start(fed), fed, 2), list[Tree](), ccvr.class_moments

    def record(total: Tree) -> tuple[Tensor, Tensor]:
        mean, covariance = compute(total)
        statistics.extend({"mean": mean[c], "covariance": covariance[c]} for c in range(CLASSES))
        return mean, covariance

    with patch.object(ccvr, "class_moments", record):
        state, log = run_round(state, fed)
    for c, (mean, covariance) in pool_statistics(theirs).items():
        same(statistics[c], {"mean": mean, "covariance": covariance}, 1e-9, f"class {c}: ")
    same_model(remove_head(state.model), remove_head(copy_model(theirs.model)), 1e-9)
    compare_traffic(log, count_conclusion(LAST.module, CLASSES, FEATURES, len(LAST.sizes)))


@check(
    "textbook: redrawn features",
    "the last round trains the head by SGD on features drawn from each class's normal distribution",
    only("ccvr"),
)
def compare_redrawn(pieces: Pieces) -> None:
    """Compare the whole model after the last round, given the same random numbers."""
    fed, theirs = replace(AMPLE.make_federation(pieces), rounds=2), make_method(pieces, AMPLE)
    theirs.round(cohort_of(fed, AMPLE.data, 0))
    state = play_rounds(start(fed), fed, 2)
    expected, settings = copy.deepcopy(theirs.model), vars(pieces[0])
    head, random = expected.get_submodule("head"), generator(fed.seed, "conclusion", 0)
    assert isinstance(head, nn.Linear)
    normal = torch.from_numpy(random.standard_normal((CLASSES, settings["samples"], FEATURES)))
    moments = pool_statistics(theirs, AMPLE)
    drawn = {c: drawn_features(*moments[c], normal[c]) for c in sorted(moments)}
    labels = torch.tensor([c for c, features in drawn.items() for _ in features])
    orders = [random.permutation(len(labels)).tolist() for _ in range(settings["epochs"])]
    features, how = torch.cat([*drawn.values()]), (64, settings["lr"], 0.9)
    setattr(expected, "head", retrained_head(head, features, labels, orders, *how))  # noqa: B010
    same_model(state.model, copy_model(expected), 1e-9)


def pool_statistics(
    theirs: FedAvg, small: SmallFederation = LAST
) -> dict[int, tuple[Tensor, Tensor]]:
    """Return mean and covariance of each class of all clients' features, by the textbook."""
    split = small.data.train
    parts = [split.subset(samples) for samples in split_samples(small.sizes)]
    return mixture(add_sums([class_sums(theirs.model, p.inputs, p.labels) for p in parts]))


def remove_head(model: Model) -> Model:
    """Return the model without its last layer."""
    body = {name: leaf for name, leaf in model.params.items() if not name.startswith("head.")}
    return model._replace(params=body)
