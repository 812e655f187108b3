"""Properties of every method in federations that hypothesis makes up."""

from dataclasses import fields, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedfm.methods import PIECES, FedAvg, Piece
from fedfm.rounds.state import to_tree
from fedfm.verify.checks import same, same_model
from fedfm.verify.every_method import STRENGTHS, can_be_off, reload, renumber
from fedfm.verify.fixtures import SmallFederation, play_rounds, rounds_for, start, start_steady

FEW = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
METHODS = pytest.mark.parametrize("name", PIECES)
SMALL_FEDERATIONS = st.builds(
    SmallFederation,
    network=st.sampled_from(["tiny mlp", "tiny cnn with batch norm"]),
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
@given(small=SMALL_FEDERATIONS)
def test_splitting_a_cohort_into_cohorts_of_one_changes_nothing(name, small):
    pieces = (piece_of(name),)
    together, apart = (replace(small, executor=e).play(pieces, 2) for e in ("stacked", "loop"))
    same(to_tree(together), to_tree(apart), 1e-8)


@METHODS
@FEW
@given(small=SMALL_FEDERATIONS, stop=st.integers(0, 3))
def test_a_run_resumed_at_any_round_ends_the_same(name, small, stop):
    pieces = (piece_of(name),)
    fed = small.make_federation(pieces)
    middle = play_rounds(start_steady(fed), fed, stop)
    resumed = reload(middle, start_steady(small.make_federation(pieces)))
    ends = [play_rounds(state, fed, 3 - stop) for state in (resumed, middle)]
    same(to_tree(ends[0]), to_tree(ends[1]))


@pytest.mark.parametrize("name", [n for n, kind in PIECES.items() if not kind.pools_data])
@FEW
@given(small=SMALL_FEDERATIONS, draw=st.data())
def test_renumbering_the_clients_changes_nothing(name, small, draw):
    small = replace(small, participation=1.0)
    fed = small.make_federation((piece_of(name),))
    moved = renumber(fed, tuple(draw.draw(st.permutations(range(len(small.sizes))))))
    ends = [play_rounds(start_steady(fed), each, 2).model for each in (fed, moved)]
    same_model(ends[0], ends[1], 1e-8)


@pytest.mark.parametrize("name", [n for n, kind in PIECES.items() if can_be_off((kind(),))])
@FEW
@given(small=SMALL_FEDERATIONS)
def test_zero_strength_is_fedavg(name, small):
    kind = PIECES[name]
    zero = kind(**{f.name: 0.0 for f in fields(kind) if f.name in STRENGTHS})
    rounds, fed = rounds_for((zero,), 2), small.make_federation((zero,))
    silent, plain = (
        play_rounds(start(each, fed.method.steady_round), each, rounds).model
        for each in (fed, small.make_federation((FedAvg(),)))
    )
    same_model(silent, plain)
