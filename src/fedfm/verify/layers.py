"""The library against the textbook where the network's layers are special: FedWS."""

import copy
from dataclasses import replace

from torch import nn

from fedfm.engine.networks import copy_model
from fedfm.rounds.round import run_round
from fedfm.verify.checks import check, only, same_model
from fedfm.verify.fixtures import RHO, Pieces, SmallFederation, start
from fedfm.verify.textbook.standardised import StandardisedConvolution
from fedfm.verify.textbook_federation import cohort_of, make_method

STANDARDISED = SmallFederation("tiny cnn with standardised filters", lr=0.05)


@check(
    "textbook: standardised convolutions",
    "with `model.standardise` every round equals FedWS's, in both executors",
    only("fedavg"),
)
def agree_with_standardised(pieces: Pieces) -> None:
    """Compare with the textbook's network, whose convolutions have the same weights."""
    for executor in ("loop", "stacked"):
        world = replace(STANDARDISED, executor=executor)
        fed, theirs = world.make_federation(pieces), make_method(pieces, world)
        theirs.model = replace_convolutions(copy.deepcopy(world.module))
        state = start(fed)
        for t in range(4):
            theirs.round(cohort_of(fed, world.data, t))
            state, _ = run_round(state, fed)
            where = f"{executor}, round {t + 1}: "
            same_model(state.model, copy_model(theirs.model), 1e-9, where)


def replace_convolutions(module: nn.Module) -> nn.Module:
    """Let the textbook's convolutions take the place of the library's, with their weights."""
    for parent in list(module.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, nn.Conv2d):
                setattr(parent, name, StandardisedConvolution(layer, RHO))
    return module
