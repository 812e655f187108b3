"""What holds for every method, also for one that has no textbook."""

import copy
from dataclasses import dataclass, fields, is_dataclass, replace

import torch
from safetensors.torch import load

from fedfm.core.checkpoint import to_bytes
from fedfm.core.errors import UserError
from fedfm.core.ledger import Traffic
from fedfm.core.trees import flatten, unflatten
from fedfm.data.batches import BatchPlan
from fedfm.methods import FedAvg, Piece, compose
from fedfm.rounds import costs
from fedfm.rounds.federation import Federation
from fedfm.rounds.round import run_round
from fedfm.rounds.state import State, from_tree, initial_state, to_facts, to_tree
from fedfm.verify.alone import alone
from fedfm.verify.checks import Mismatch, check, same, same_model
from fedfm.verify.worlds import CLASSES, SHAPE, Pieces, World, played, rounds_for

ORDER = (2, 0, 3, 1)
STRENGTHS = ("mu", "strength", "beta")
"""Fields that switch a piece off where they are 0."""


@check("finite", "every client's training, message and state is finite")
def finite(pieces: Pieces) -> None:
    """No client is left out, and no tensor of the state has a NaN."""
    world = World()
    fed = world.federation(pieces)
    state = world.start(fed)
    for _ in range(rounds_for(pieces)):
        state, log = run_round(state, fed)
        if log.failed:
            raise Mismatch(f"clients {log.failed} failed in round {state.round}")
    for name, leaf in flatten(to_tree(state)).items():
        if leaf.is_floating_point() and not leaf.isfinite().all():
            raise Mismatch(f"{name} is not finite")


@check("cohorts of one", "training S clients together is training each of them alone")
def cohorts_of_one(pieces: Pieces) -> None:
    """Hooks that see all clients at once against hooks that see one."""
    rounds, network = rounds_for(pieces, 3), "cnn with batch norm"
    together = World(network).play(pieces, rounds)
    single = tuple(alone(piece) for piece in copy.deepcopy(pieces))
    apart = World(network, executor="loop").play(single, rounds)
    same(to_tree(together), to_tree(apart), 1e-9)


@dataclass(frozen=True, kw_only=True)
class Renumbered(Federation):
    """The clients of another federation under other numbers: k is its client ORDER[k]."""

    original: Federation

    def cohort(self, round: int) -> list[int]:
        """The same clients."""
        return sorted(map(ORDER.index, self.original.cohort(round)))

    def plan(self, round: int, client: int) -> BatchPlan:
        """The same batches."""
        return self.original.plan(round, ORDER[client])


def renumbered(fed: Federation) -> Federation:
    """The federation with its clients in the order `ORDER`."""
    moved = [fed.samples[client] for client in ORDER]
    return Renumbered(**vars(fed) | {"samples": moved}, original=fed)


@check("renumbering", "the clients' numbers do not matter")
def renumbering(pieces: Pieces) -> None:
    """The same clients in another order."""
    world, rounds = World(), rounds_for(pieces)
    plain = world.federation(pieces)
    moved = renumbered(world.federation(copy.deepcopy(pieces)))
    ours = played(world.start(moved), moved, rounds)
    same_model(ours.model, played(world.start(plain), plain, rounds).model, 1e-9)


@check("resume", "a run resumed from its saved state, at any round, goes on as if it never stopped")
def resume(pieces: Pieces) -> None:
    """Save after every round and go on with fresh pieces."""
    world, rounds = World("cnn with batch norm"), rounds_for(pieces, 3)
    fresh = copy.deepcopy(pieces)
    fed = world.federation(pieces)
    straight = [world.start(fed)]
    for _ in range(rounds):
        straight.append(played(straight[-1], fed, 1))
    for done, state in enumerate(straight):
        again = world.federation(copy.deepcopy(fresh))
        end = played(reloaded(state, world.start(again)), again, rounds - done)
        same(to_tree(end), to_tree(straight[-1]), where=f"resumed after round {done}: ")


def reloaded(state: State, start: State) -> State:
    """The state written to bytes and read again."""
    tree = unflatten(load(to_bytes(to_tree(state))))
    return from_tree(tree, to_facts(state), start)


@check("pure", "a round leaves the state it was given alone, and gives the same twice")
def pure(pieces: Pieces) -> None:
    """One round twice from one state."""
    world = World("cnn with batch norm")
    fed = world.federation(pieces)
    state = played(world.start(fed), fed, 1)
    before = to_bytes(to_tree(state))
    first, second = played(state, fed, 1), played(state, fed, 1)
    if to_bytes(to_tree(state)) != before:
        raise Mismatch("the round changed its input state")
    same(to_tree(first), to_tree(second), where="played twice: ")


@check("costs", "the costs predicted from shapes are those of real rounds")
def predicted_costs(pieces: Pieces) -> None:
    """Shapes on the meta device against the ledger."""
    world = World("cnn with batch norm", dtype=torch.float32, participation=1.0)
    fed = world.federation(pieces)
    state, traffic, rounds = world.start(fed), Traffic(), fed.method.share_every
    for _ in range(rounds):
        state, log = run_round(state, fed)
        traffic += log.traffic
    found = costs.measure_cost(fed.method, world.module, SHAPE, CLASSES).as_dict()
    for name, sum_ in traffic.as_dict().items():
        clients = 1 if name == "handshakes" else len(fed.samples)
        if sum_ != found[name] * clients * rounds:
            raise Mismatch(f"{name}: {sum_} sent, {found[name] * clients * rounds:.0f} predicted")
    if log.held != found["memory"]:
        raise Mismatch(f"memory: {log.held} floats held, {found['memory']} predicted")


def strengths(piece: Piece) -> list[str]:
    """The fields of a piece that switch it off."""
    found = [field.name for field in fields(piece)] if is_dataclass(piece) else []
    return [name for name in found if name in STRENGTHS]


def can_be_off(pieces: Pieces) -> bool:
    """A single piece that shares models in every round and has a strength."""
    return len(pieces) == 1 and compose(pieces).share_every == 1 and bool(strengths(pieces[0]))


@check("zero strength", "at strength 0 (mu, lambda, beta) it is FedAvg, bit by bit", can_be_off)
def zero_strength(pieces: Pieces) -> None:
    """Each strength in turn, from the first round in which the piece is awake."""
    world = World("cnn with batch norm")
    plain = world.federation((FedAvg(),))
    for name in strengths(pieces[0]):
        try:
            off = replace(pieces[0], **{name: 0.0})
        except UserError:
            continue
        fed = world.federation((off,))
        start = world.start(fed)
        expected = played(replace(world.start(plain), round=start.round), plain, 3)
        same_model(played(start, fed, 3).model, expected.model, where=f"{name} = 0: ")


def sleeps(pieces: Pieces) -> bool:
    """A method that begins as FedAvg."""
    return compose(pieces).share_every == 1 and all(piece.first_round > 0 for piece in pieces)


@check("asleep", "before its first round it is FedAvg and sends nothing more", sleeps)
def asleep(pieces: Pieces) -> None:
    """The rounds before the first one, three at most, models and traffic."""
    world, ends = World(), []
    rounds = min(3, *(piece.first_round for piece in pieces))
    for method in (pieces, (FedAvg(),)):
        fed = world.federation(method)
        state, sent = initial_state(world.start(fed).model, fed.method, fed.task), Traffic()
        for _ in range(rounds):
            state, log = run_round(state, fed)
            sent += log.traffic
        ends.append((state.model, sent))
    same_model(ends[0][0], ends[1][0])
    if ends[0][1] != ends[1][1]:
        raise Mismatch("it sends more than FedAvg")
