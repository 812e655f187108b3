"""What holds for every method, also for one that has no textbook."""

import copy
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace

import torch
from safetensors.torch import load

from fedfm.core.checkpoint import to_bytes
from fedfm.core.errors import UserError
from fedfm.core.ledger import Traffic
from fedfm.core.trees import flatten, unflatten
from fedfm.data.batches import BatchPlan
from fedfm.methods import FedAvg, Piece, compose
from fedfm.methods.contract import overrides
from fedfm.rounds.costs import measure_cost
from fedfm.rounds.federation import Federation
from fedfm.rounds.round import run_round
from fedfm.rounds.state import State, from_tree, to_facts, to_tree
from fedfm.verify.checks import Mismatch, check, is_federated, same, same_model
from fedfm.verify.fixtures import (
    CLASSES,
    Pieces,
    SmallFederation,
    play_rounds,
    rounds_for,
    start,
    start_steady,
)
from fedfm.verify.separate_clients import separate_clients

ORDER = (2, 0, 3, 1)
STRENGTHS = ("mu", "strength", "beta")
"""Fields that switch a piece off where they are 0."""
BESIDE = "calibration"
"""A weight of FedFM's that its strength does not multiply; it is 0, too, where that is."""


@check("finite", "every client's training, message and state is finite")
def check_finite(pieces: Pieces) -> None:
    """Let no client fail, and no tensor of the state have a NaN."""
    fed = SmallFederation().make_federation(pieces)
    state = start_steady(fed)
    for _ in range(rounds_for(pieces)):
        state, log = run_round(state, fed)
        if log.failed:
            raise Mismatch(f"clients {log.failed} failed in round {state.round}")
    for name, leaf in flatten(to_tree(state)).items():
        if leaf.is_floating_point() and not leaf.isfinite().all():
            raise Mismatch(f"{name} is not finite")


@check("cohorts of one", "training S clients together equals training each of them alone")
def train_alone(pieces: Pieces) -> None:
    """Compare hooks that see all clients at once with hooks that see one."""
    rounds, network = rounds_for(pieces, 3), "tiny cnn with batch norm"
    together = SmallFederation(network).play(pieces, rounds)
    single = tuple(separate_clients(piece) for piece in copy.deepcopy(pieces))
    apart = SmallFederation(network, executor="loop").play(single, rounds)
    same(to_tree(together), to_tree(apart), 1e-9)


@dataclass(frozen=True, kw_only=True)
class Renumbered(Federation):
    """The clients of another federation under other numbers: k is its client order[k]."""

    original: Federation
    order: tuple[int, ...]

    def cohort(self, round: int) -> list[int]:
        """Return the same clients."""
        return sorted(map(self.order.index, self.original.cohort(round)))

    def plan(self, round: int, client: int, epochs: int | None = None) -> BatchPlan:
        """Return the same batches."""
        return self.original.plan(round, self.order[client], epochs)


def renumber(fed: Federation, order: tuple[int, ...] = ORDER) -> Federation:
    """Return the federation with its clients in another order."""
    samples = [fed.samples[client] for client in order]
    return Renumbered(**vars(fed) | {"samples": samples}, original=fed, order=order)


@check("renumbering", "the clients' numbers do not matter", is_federated)
def compare_renumbered(pieces: Pieces) -> None:
    """Play with the same clients in another order."""
    small, rounds = SmallFederation(), rounds_for(pieces)
    plain = small.make_federation(pieces)
    moved = renumber(small.make_federation(copy.deepcopy(pieces)))
    ours, expected = (play_rounds(start_steady(fed), fed, rounds) for fed in (moved, plain))
    same_model(ours.model, expected.model, 1e-9)


@check("resume", "a run resumed from its saved state, at any round, ends as if it never stopped")
def resume(pieces: Pieces) -> None:
    """Save after every round and continue with fresh pieces."""
    small, rounds = SmallFederation("tiny cnn with batch norm"), rounds_for(pieces, 3)
    fresh = copy.deepcopy(pieces)
    fed = small.make_federation(pieces)
    straight = [start_steady(fed)]
    for _ in range(rounds):
        straight.append(play_rounds(straight[-1], fed, 1))
    for done, state in enumerate(straight):
        again = small.make_federation(copy.deepcopy(fresh))
        end = play_rounds(reload(state, start_steady(again)), again, rounds - done)
        same(to_tree(end), to_tree(straight[-1]), where=f"resumed after round {done}: ")


def reload(state: State, start: State) -> State:
    """Write the state to bytes and read it again."""
    tree = unflatten(load(to_bytes(to_tree(state))))
    return from_tree(tree, to_facts(state), start)


@check("pure", "a round does not change the state it was given, and repeats with equal results")
def repeat_round(pieces: Pieces) -> None:
    """Play one round twice from one state."""
    fed = SmallFederation("tiny cnn with batch norm").make_federation(pieces)
    state = play_rounds(start_steady(fed), fed, 1)
    before = to_bytes(to_tree(state))
    first, second = play_rounds(state, fed, 1), play_rounds(state, fed, 1)
    if to_bytes(to_tree(state)) != before:
        raise Mismatch("the round changed its input state")
    same(to_tree(first), to_tree(second), where="repeated: ")


@check("costs", "the costs predicted from shapes equal those of real rounds")
def compare_costs(pieces: Pieces) -> None:
    """Compare shapes on the meta device with the ledger."""
    small = SmallFederation("tiny cnn with batch norm", dtype=torch.float32, participation=1.0)
    fed = small.make_federation(pieces)
    first = 1 if fed.method.keeps_models else 0
    state, traffic = play_rounds(start_steady(fed), fed, first), Traffic()
    rounds = fed.method.share_every
    for _ in range(rounds):
        state, log = run_round(state, fed)
        traffic += log.traffic
    cost = measure_cost(fed.method, small.module, CLASSES, fed.task.features).as_dict()
    for name, sent in traffic.as_dict().items():
        clients = 1 if name == "handshakes" else len(fed.samples)
        if sent != cost[name] * clients * rounds:
            raise Mismatch(f"{name}: {sent} sent, {cost[name] * clients * rounds:.0f} predicted")
    if log.held != cost["memory"]:
        raise Mismatch(f"memory: {log.held} floats held, {cost['memory']} predicted")


def switched_off(piece: Piece) -> dict[str, Piece]:
    """Return the piece with each strength at 0, by its name, where the piece takes a 0."""
    names = {field.name for field in fields(piece)} if is_dataclass(piece) else set()
    off = {}
    for name in names.intersection(STRENGTHS):
        with suppress(UserError):
            off[name] = replace(piece, **dict.fromkeys({name, BESIDE} & names, 0.0))
    return off


def can_be_off(pieces: Pieces) -> bool:
    """Return whether this is one piece that shares models in every round and can be switched off.

    A piece that moves the start, or perturbs, changes more than its strength says.
    """
    method, (piece, *more) = compose(pieces), pieces
    quiet = not (more or method.moves_start or overrides(piece, "perturb"))
    return quiet and method.share_every == 1 and bool(switched_off(piece))


@check("zero strength", "at strength 0 (mu, lambda, beta) it equals FedAvg, bit by bit", can_be_off)
def switch_off(pieces: Pieces) -> None:
    """Set each strength to 0, from the first round in which the piece takes part."""
    small = SmallFederation("tiny cnn with batch norm")
    plain = small.make_federation((FedAvg(),))
    for name, off in switched_off(pieces[0]).items():
        fed = small.make_federation((off,))
        state = start_steady(fed)
        expected = play_rounds(start(plain, state.round), plain, 3)
        same_model(play_rounds(state, fed, 3).model, expected.model, where=f"{name} = 0: ")


def sleeps(pieces: Pieces) -> bool:
    """Return whether the method begins as FedAvg."""
    return compose(pieces).share_every == 1 and all(piece.first_round > 0 for piece in pieces)


@check("asleep", "before its first round it equals FedAvg and sends nothing more", sleeps)
def compare_asleep(pieces: Pieces) -> None:
    """Compare the rounds before the first one, three at most: models and traffic."""
    small, ends = SmallFederation(), []
    rounds = min(3, *(piece.first_round for piece in pieces))
    for method in (pieces, (FedAvg(),)):
        fed = small.make_federation(method)
        state, sent = start(fed), Traffic()
        for _ in range(rounds):
            state, log = run_round(state, fed)
            sent += log.traffic
        ends.append((state.model, sent))
    same_model(ends[0][0], ends[1][0])
    if ends[0][1] != ends[1][1]:
        raise Mismatch("it sends more than FedAvg")
