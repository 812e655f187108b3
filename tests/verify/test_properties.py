"""Properties of every method in federations that hypothesis makes up."""

from dataclasses import dataclass, fields, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedfm.data.batches import BatchPlan
from fedfm.methods import PIECES, FedAvg, Piece
from fedfm.rounds.federation import Federation
from fedfm.rounds.state import to_tree
from fedfm.verify.checks import same
from fedfm.verify.generic import STRENGTHS, reloaded
from fedfm.verify.worlds import World, played, rounds_for

FEW = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
METHODS = pytest.mark.parametrize("name", PIECES)
WORLDS = st.builds(
    World,
    network=st.sampled_from(["mlp", "cnn with batch norm"]),
    sizes=st.lists(st.integers(3, 12), min_size=2, max_size=5).map(tuple),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    weight_decay=st.sampled_from([0.0, 1e-3]),
    epochs=st.integers(1, 2),
    batch_size=st.integers(2, 6),
    participation=st.sampled_from([0.4, 0.75, 1.0]),
    lr=st.just(0.02),
)


def piece_of(name: str) -> Piece:
    """The piece at a moderate strength, so that rounding is all that may differ."""
    kind = PIECES[name]
    known = {field.name for field in fields(kind)}
    return kind(**{key: value for key, value in {"strength": 1.0}.items() if key in known})


@METHODS
@FEW
@given(world=WORLDS)
def test_splitting_a_cohort_into_cohorts_of_one_changes_nothing(name, world):
    pieces = (piece_of(name),)
    together, apart = (replace(world, executor=e).play(pieces, 2) for e in ("stacked", "loop"))
    same(to_tree(together), to_tree(apart), 1e-8)


@METHODS
@FEW
@given(world=WORLDS, stop=st.integers(0, 3))
def test_a_run_resumed_at_any_round_ends_the_same(name, world, stop):
    pieces = (piece_of(name),)
    fed = world.federation(pieces)
    begin = world.start(fed)
    middle = played(begin, fed, stop)
    resumed = reloaded(middle, world.start(world.federation(pieces)))
    same(to_tree(played(resumed, fed, 3 - stop)), to_tree(played(middle, fed, 3 - stop)))


@dataclass(frozen=True, kw_only=True)
class Renumbered(Federation):
    """Another federation's clients, all of them, under other numbers."""

    original: Federation
    order: tuple[int, ...]

    def plan(self, round: int, client: int) -> BatchPlan:
        """The plan of the client that has this number now."""
        return self.original.plan(round, self.order[client])


@METHODS
@FEW
@given(world=WORLDS, draw=st.data())
def test_renumbering_the_clients_changes_nothing(name, world, draw):
    world = replace(world, participation=1.0)
    fed = world.federation((piece_of(name),))
    order = tuple(draw.draw(st.permutations(range(len(world.sizes)))))
    samples = [fed.samples[client] for client in order]
    moved = Renumbered(**vars(fed) | {"samples": samples}, original=fed, order=order)
    ends = [played(world.start(fed), each, 2).model._asdict() for each in (fed, moved)]
    same(ends[0], ends[1], 1e-8)


@pytest.mark.parametrize(
    "name", [n for n, kind in PIECES.items() if {f.name for f in fields(kind)} & set(STRENGTHS)]
)
@FEW
@given(world=WORLDS)
def test_zero_strength_is_fedavg(name, world):
    kind = PIECES[name]
    zero = kind(**{f.name: 0.0 for f in fields(kind) if f.name in STRENGTHS})
    rounds, fed = rounds_for((zero,), 2), world.federation((zero,))
    awake = world.start(fed).round
    silent, plain = (
        played(replace(world.start(each), round=awake), each, rounds)
        for each in (fed, world.federation((FedAvg(),)))
    )
    same(silent.model._asdict(), plain.model._asdict())
