"""The library against the textbook: several rounds, partial participation, unequal steps."""

from dataclasses import replace
from functools import partial

import torch

from fedfm.engine.networks import copy_model
from fedfm.methods import FedFM, FedFMLite, FedProx, Model
from fedfm.rounds.federation import Federation
from fedfm.rounds.round import run_round
from fedfm.verify.checks import Mismatch, check, known_name, only, same_model
from fedfm.verify.oracles import METHODS, Oracle, has_oracle, method_oracle, oracle
from fedfm.verify.textbook_ledger import round_bill
from fedfm.verify.worlds import CLASSES, FEATURES, Pieces, World, cohort_of, schedule

PULL = FedProx(mu=0.3)
MATCHING = FedFM(strength=1.0, start_round=0)
LITE = FedFMLite(strength=1.0, start_round=0, models_every=2)

WORLDS = {
    "plain SGD": World(momentum=0.0, weight_decay=0.0),
    "momentum": World("cnn"),
    "batch norm": World("cnn with batch norm"),
    "a failed client": World(broken=1),
    "float32": World(dtype=torch.float32, lr=0.001, momentum=0.5, weight_decay=0.0),
}


def agree(world: World, fed: Federation, theirs: Oracle, begin: int, rounds: int) -> None:
    """Play rounds on both sides and compare the models after each.

    A client whose data are broken trains in the library alone, which has to leave it out.
    """
    state = replace(world.start(fed), round=begin)
    tolerance = 1e-9 if world.dtype is torch.float64 else 1e-4
    for _ in range(rounds):
        cohort = cohort_of(fed, world.data, state.round)
        theirs.round([client for client in cohort if client["data"][0].isfinite().all()])
        state, _ = run_round(state, fed)
        expected: Model = copy_model(theirs.model)
        same_model(state.model, expected, tolerance, f"round {state.round}: ")


def agrees(world: World, pieces: Pieces) -> None:
    """A method against its textbook version, from before T_s on."""
    fed = world.federation(pieces)
    begin, _, _, rounds = schedule(pieces, 4 if world.dtype is torch.float64 else 2)
    agree(world, fed, oracle(pieces, world, fed), begin, rounds)


for _name, _world in WORLDS.items():
    check(f"textbook: {_name}", f"it is the textbook's method: {_name}", has_oracle)(
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
    agree(world, fed, theirs, 0, 4)


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
    agrees(World(), (*pieces, MATCHING))


@check(
    "textbook: with FedFM-Lite",
    "so it is with FedFM-Lite and models every second round",
    only("fedavg", "fedavgm", "fedprox"),
)
def with_lite(pieces: Pieces) -> None:
    """The method composed with FedFM-Lite: clients go on from their own models."""
    agrees(World(), (*pieces, LITE))


@check("ledger", "every message of a round is counted, and what a client holds", has_oracle)
def counted(pieces: Pieces) -> None:
    """The ledger of rounds from before T_s on against a count by hand."""
    ((piece,), world) = pieces, World("cnn with batch norm")
    fed, (begin, _, every, rounds) = world.federation(pieces), schedule(pieces)
    state, visited = replace(world.start(fed), round=begin), set[int]()
    for t in range(begin, begin + rounds):
        visited = set() if t % every == 0 else visited
        cohort = set(fed.cohort(t))
        there = len(cohort), len(cohort - visited)
        bill = round_bill(world.module, CLASSES, FEATURES, piece.name, vars(piece), t, *there)
        state, log = run_round(state, fed)
        found = {**log.traffic.as_dict(), "held": log.held}
        if found != vars(bill):
            raise Mismatch(f"round {t + 1}: counted {found}, by hand {vars(bill)}")
        visited |= cohort
