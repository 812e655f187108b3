"""The library against the textbook: several rounds, partial participation, unequal steps."""

from functools import partial

import torch

from fedfm.engine.networks import copy_model
from fedfm.methods import FedFM, FedProx, Model
from fedfm.rounds.federation import Federation
from fedfm.rounds.round import run_round
from fedfm.verify.checks import check, known_name, only, same_model
from fedfm.verify.oracles import METHODS, Matching, Oracle, has_oracle, method_oracle, oracle
from fedfm.verify.worlds import Pieces, World, cohort_of, rounds_for

PULL = FedProx(mu=0.3)
MATCHING = FedFM(strength=1.0, start_round=0)

WORLDS = {
    "plain SGD": World(momentum=0.0, weight_decay=0.0),
    "momentum": World("cnn"),
    "batch norm": World("cnn with batch norm"),
    "float32": World(dtype=torch.float32, lr=0.01, momentum=0.5, weight_decay=0.0),
}


def agree(world: World, fed: Federation, theirs: Oracle, rounds: int) -> None:
    """Play rounds on both sides and compare the models after each."""
    state = world.start(fed)
    tolerance = 1e-9 if world.dtype is torch.float64 else 1e-4
    for _ in range(rounds):
        theirs.round(cohort_of(fed, world.data, state.round))
        state, _ = run_round(state, fed)
        expected: Model = copy_model(theirs.model)
        same_model(state.model, expected, tolerance, f"round {state.round}: ")


def agrees(world: World, pieces: Pieces) -> None:
    """A method against its textbook version."""
    fed = world.federation(pieces)
    rounds = rounds_for(pieces, 4 if world.dtype is torch.float64 else 2)
    agree(world, fed, oracle(pieces, world, fed), rounds)


for _name, _world in WORLDS.items():
    check(f"textbook: {_name}", f"it is the textbook's method, {_name}", has_oracle)(
        partial(agrees, _world)
    )


@check(
    "textbook: with a pull",
    "with FedProx on top, the normaliser knows the pull",
    only("fednova"),
)
def with_a_pull(pieces: Pieces) -> None:
    """FedNova with FedProx, which shortens the clients' way."""
    world = World()
    fed = world.federation((*pieces, PULL))
    theirs = method_oracle(pieces[0], world, fed, mu=PULL.mu)
    agree(world, fed, theirs, rounds_for(pieces))


def can_match(pieces: Pieces) -> bool:
    """A method of the textbook that has no anchors of its own."""
    return known_name(pieces) in METHODS and "anchors" not in pieces[0].claims


@check(
    "textbook: with FedFM",
    "with feature matching on top it is its own maths plus the matching gradient",
    can_match,
)
def with_matching(pieces: Pieces) -> None:
    """The method composed with FedFM."""
    world = World()
    fed = world.federation((*pieces, MATCHING))
    theirs = Matching(method_oracle(pieces[0], world, fed), MATCHING)
    agree(world, fed, theirs, rounds_for(pieces))
