"""FedSpeed and FedSMOO: by hand on quadratics, their limits, what is sent and held."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from fedfm import FedFM, UserError, compose
from fedfm.core.trees import Tree, flatten, tree_map
from fedfm.engine import graphs
from fedfm.engine.cohort import CohortPart
from fedfm.engine.networks import copy_model
from fedfm.methods import (
    Batch,
    FedAvg,
    FedDyn,
    FedFMLite,
    FedPer,
    FedSAM,
    FedSMOO,
    FedSpeed,
    LocalRun,
    Model,
    Piece,
    Scaffold,
)
from fedfm.rounds.costs import measure_cost
from fedfm.rounds.round import run_round
from fedfm.rounds.state import to_tree
from fedfm.verify.checks import same, same_model
from fedfm.verify.every_method import reload
from fedfm.verify.fixtures import CLASSES, FEATURES, SmallFederation, play_rounds, start
from fedfm.verify.quadratics import (
    STEPS,
    flatten_model,
    make_problem,
    make_systems,
    train_quadratic,
)

NORM = SmallFederation("tiny cnn with batch norm")
ALL = replace(NORM, participation=1.0)
LR, PULL, RADIUS = 0.1, 0.4, 0.3


def test_fedspeed_on_quadratics_by_hand():
    mix, (curvatures, rights) = 0.7, make_systems()
    x = flatten_model(copy_model(make_problem()[0]))
    drifts = [torch.zeros_like(x) for _ in STEPS]
    for _ in range(3):
        sent = []
        for i, (a, b, steps) in enumerate(zip(curvatures, rights, STEPS, strict=True)):
            y = x
            for _ in range(steps):
                first = a @ y - b
                second = a @ (y + RADIUS * first / first.norm()) - b
                quasi = (1 - mix) * first + mix * second
                y = y - LR * (quasi - drifts[i] + PULL * (y - x))
            drifts[i] = drifts[i] - PULL * (y - x)
            sent.append(y - drifts[i] / PULL)
        x = torch.stack(sent).mean(0)
    ours = train_quadratic((FedSpeed(strength=PULL, radius=RADIUS, mix=mix),), 3, LR)
    same({"V": ours}, {"V": x}, 1e-11)


def test_fedsmoo_on_quadratics_by_hand():
    curvatures, rights = make_systems()
    x = flatten_model(copy_model(make_problem()[0]))
    nothing = torch.zeros_like(x)
    drifts, duals = [nothing] * len(STEPS), [nothing] * len(STEPS)
    drift, common = nothing, nothing
    for _ in range(3):
        ends, sent = [], []
        for i, (a, b, steps) in enumerate(zip(curvatures, rights, STEPS, strict=True)):
            y, e = x, nothing
            for _ in range(steps):
                ahead = a @ y - b - duals[i] - common
                e = RADIUS * ahead / ahead.norm()
                duals[i] = duals[i] + e - common
                y = y - LR * (a @ (y + e) - b - drifts[i] + PULL * (y - x))
            drifts[i] = drifts[i] - PULL * (y - x)
            ends.append(y)
            sent.append(duals[i] - e)
        drift = drift - PULL * (torch.stack(ends).mean(0) - x)
        x = torch.stack(ends).mean(0) - drift / PULL
        mean = torch.stack(sent).mean(0)
        common = RADIUS * mean / mean.norm()
    ours = train_quadratic((FedSMOO(alpha=PULL, radius=RADIUS),), 3, LR)
    same({"V": ours}, {"V": x}, 1e-11)


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_with_radius_zero_fedsmoo_is_feddyn(executor):
    small = replace(NORM, executor=executor)
    ours, plain = (
        small.play((piece,), 3).model for piece in (FedSMOO(radius=0.0, alpha=0.2), FedDyn(0.2))
    )
    same_model(ours, plain)


@pytest.mark.parametrize(
    ("ours", "others"),
    [
        (FedSpeed(strength=0.2, radius=0.0), (FedDyn(alpha=0.2),)),
        (FedSpeed(strength=0.2, mix=0.0), (FedDyn(alpha=0.2),)),
        (FedSpeed(strength=0.2, radius=0.3), (FedSAM(radius=0.3), FedDyn(alpha=0.2))),
    ],
)
def test_with_all_clients_in_every_round_the_mean_of_amended_models_is_feddyns(ours, others):
    same_model(ALL.play((ours,), 3).model, ALL.play(others, 3).model, 1e-12)


def test_with_some_of_the_clients_it_is_not():
    ours, plain = (NORM.play((p,), 3).model for p in (FedSpeed(0.2, radius=0.0), FedDyn(0.2)))
    assert any(not torch.allclose(leaf, plain.params[name]) for name, leaf in ours.params.items())


@pytest.mark.parametrize("other", [(), (FedFM(strength=1.0, start_round=0),)])
@pytest.mark.parametrize("piece", [FedSpeed(mix=0.5), FedSMOO()], ids=lambda piece: piece.name)
def test_every_executor_and_a_resumed_run_end_the_same(piece, other):
    pieces = (piece, *other)
    feds = [replace(NORM, executor=e).make_federation(pieces) for e in ("stacked", "loop")]
    stacked, loop = (play_rounds(start(fed), fed, 4) for fed in feds)
    same(to_tree(stacked), to_tree(loop), 1e-9)
    halfway = reload(play_rounds(start(feds[0]), feds[0], 2), start(feds[0]))
    same(to_tree(play_rounds(halfway, feds[0], 2)), to_tree(stacked))


@pytest.mark.parametrize(
    ("piece", "memory", "up", "down"), [(FedSpeed(), 3, 1, 1), (FedSMOO(), 6, 2, 2)]
)
def test_costs_in_multiples_of_the_model(piece, memory, up, down):
    ours, plain = (
        measure_cost(compose(each), NORM.module, CLASSES, FEATURES) for each in (piece, FedAvg())
    )
    costs = (ours.memory, ours.floats_up, ours.floats_down)
    assert costs == tuple(times * plain.memory for times in (memory, up, down))


@pytest.mark.parametrize("piece", [FedSpeed(), FedSMOO()], ids=lambda piece: piece.name)
@pytest.mark.parametrize(
    "other", [FedSAM(), FedDyn(), Scaffold(), FedPer(), FedFMLite(models_every=2)]
)
def test_contradictions_are_refused(piece, other):
    with pytest.raises(UserError, match=piece.name) as refusal:
        compose([piece, other])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        (FedSpeed, "strength", 0.0),
        (FedSpeed, "mix", 1.5),
        (FedSpeed, "radius", -1.0),
        (FedSMOO, "alpha", 0.0),
        (FedSMOO, "radius", -1.0),
    ],
)
def test_settings_outside_their_range_are_refused(kind, key, value):
    with pytest.raises(UserError, match=f"{kind.name}: {key}"):
        kind(**{key: value})


# --- Values that change in every step -------------------------------------------------------------


@dataclass(frozen=True)
class Counting(Piece):
    """Counts steps and adds up gradients; later steps are corrected by more."""

    name = "counting"
    moves = frozenset({"sum", "count"})

    def client_state(self, task):
        return {"steps": torch.zeros((), device=task.device)}

    def prepare(self, client: Tree, received: Model, down: Tree) -> Tree:
        zeros = tree_map(torch.zeros_like, received.params)
        return {"sum": zeros, "count": torch.zeros(1), "unmoved": torch.ones(1)}

    def advance(self, held: Tree, grads: Tree, offset: Tree) -> Tree:
        assert offset == {}
        return {"sum": tree_map(torch.add, held["sum"], grads), "count": held["count"] + 1}

    def correct(self, grads: Tree, params: Tree, held: Tree) -> Tree:
        return tree_map(lambda g, s: g + 0.1 * s, grads, held["sum"])

    def finish(self, client: Tree, run: LocalRun, down: Tree) -> tuple[Tree, Tree]:
        assert run.moved.keys() == self.moves
        return {}, {"steps": client["steps"] + run.moved["count"]}

    def loss(self, batch: Batch, held: Tree) -> Tensor | None:
        return None


@pytest.mark.parametrize("executor", ["loop", "stacked", "threads", "graph"])
def test_held_values_change_in_every_step_and_reach_the_end(executor, monkeypatch):
    """The graph executor runs uncaptured here: what it folds must not be frozen all the same."""
    monkeypatch.setattr(
        graphs,
        "capture_step",
        lambda part, block, pool: lambda *batch: CohortPart(part.cohort, block.rows)(*batch),
    )
    small = replace(ALL, executor=executor, momentum=0.5)
    fed = small.make_federation((Counting(),))
    state = play_rounds(start(fed), fed, 2)
    steps = [fed.training.count_steps(size) for size in small.sizes]
    counted = [float(state.clients.get(client)["counting"]["steps"]) for client in range(4)]
    assert counted == [2 * count for count in steps]
    plain = replace(small, executor="loop").make_federation((Counting(),))
    same(to_tree(state), to_tree(play_rounds(start(plain), plain, 2)), 1e-9)


def test_values_of_another_form_are_refused():
    class Wrong(Counting):
        def advance(self, held, grads, offset):
            return {"count": held["count"]}

    fed = SmallFederation().make_federation((Wrong(),))
    with pytest.raises(UserError, match=r"Wrong\.advance.*sum"):
        run_round(start(fed), fed)


def test_a_change_of_another_form_is_refused():
    class Wrong(FedSpeed):
        def amend(self, change, client):
            return {}

    fed = SmallFederation().make_federation((Wrong(),))
    with pytest.raises(UserError, match=r"Wrong\.amend"):
        run_round(start(fed), fed)


def test_clients_send_amended_changes_alone():
    fed = ALL.make_federation((FedSpeed(strength=0.5),))
    state, log = run_round(start(fed), fed)
    other = ALL.make_federation((FedAvg(),))
    plain, counted = run_round(start(other), other)
    assert log.traffic == counted.traffic
    assert flatten(state.model.params).keys() == flatten(plain.model.params).keys()
