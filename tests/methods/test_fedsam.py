"""FedSAM and MoFedSAM: the second pass by hand, its limits, what it leaves alone."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedfm import FedFM, UserError, compose, models
from fedfm.core.trees import Tree, tree_map
from fedfm.engine.networks import copy_model
from fedfm.methods import (
    Ditto,
    FedAvg,
    FedCM,
    FedDyn,
    FedPer,
    FedProx,
    FedRep,
    FedSAM,
    MoFedSAM,
    Moon,
    Piece,
    Scaffold,
)
from fedfm.optim import Adam, Clipping
from fedfm.rounds.costs import measure_cost
from fedfm.rounds.round import run_round
from fedfm.rounds.state import to_tree
from fedfm.verify.checks import same, same_model
from fedfm.verify.fixtures import (
    CLASSES,
    FEATURES,
    TINY,
    SmallFederation,
    make_federation,
    make_images,
    play_rounds,
    start,
)
from fedfm.verify.quadratics import (
    SIZES,
    STEPS,
    flatten_model,
    make_problem,
    make_systems,
    train_quadratic,
)

NORM = SmallFederation("tiny cnn with batch norm")
FM = FedFM(strength=1.0, start_round=0)
COMPOSED: dict[str, tuple[Piece, ...]] = {
    "fedfm": (FM,),
    "fedprox+fedfm": (FedProx(mu=0.3), FM),
    "scaffold": (Scaffold(),),
    "feddyn": (FedDyn(),),
    "moon": (Moon(mu=2.0),),
    "fedper": (FedPer(),),
    "fedrep": (FedRep(head_epochs=1),),
    "ditto": (Ditto(),),
}


@pytest.mark.parametrize("adaptive", [0.0, 0.2])
def test_two_rounds_on_quadratics_by_hand(adaptive):
    lr, radius, (curvatures, rights) = 0.1, 0.3, make_systems()
    shares = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)
    x = flatten_model(copy_model(make_problem()[0]))
    for _ in range(2):
        ends = []
        for a, b, steps in zip(curvatures, rights, STEPS, strict=True):
            y = x
            for _ in range(steps):
                g = a @ y - b
                t = y.abs() + adaptive if adaptive else torch.ones_like(y)
                e = radius * t * t * g / (t * g).norm()
                y = y - lr * (a @ (y + e) - b)
            ends.append(y)
        x = torch.einsum("i,iab->ab", shares, torch.stack(ends))
    ours = train_quadratic((FedSAM(radius=radius, adaptive=adaptive),), 2, lr)
    same({"V": ours}, {"V": x}, 1e-11)


@pytest.mark.parametrize("executor", ["loop", "stacked"])
@pytest.mark.parametrize(
    ("ours", "limit"),
    [(FedSAM(radius=0.0), FedAvg()), (MoFedSAM(radius=0.0, alpha=0.3), FedCM(alpha=0.3))],
    ids=["fedsam", "mofedsam"],
)
def test_with_radius_zero_nothing_is_perturbed_to_the_last_bit(ours, limit, executor):
    small = replace(NORM, executor=executor)
    same_model(small.play((ours,), 3).model, small.play((limit,), 3).model)


def test_mofedsam_is_fedsam_with_fedcm():
    ours = NORM.play((MoFedSAM(radius=0.2, alpha=0.3),), 3).model
    same_model(ours, NORM.play((FedSAM(radius=0.2), FedCM(alpha=0.3)), 3).model, 1e-12)


def test_with_alpha_one_mofedsam_is_fedsam():
    ours, plain = (
        NORM.play((piece,), 3).model for piece in (MoFedSAM(alpha=1.0), FedSAM(radius=0.1))
    )
    same_model(ours, plain, 1e-12)


def test_running_statistics_are_those_of_the_first_pass():
    """With a single step they do not depend on the radius, whereas the parameters do."""
    small = SmallFederation("tiny cnn with batch norm", epochs=1, batch_size=100)
    wide, plain = (small.play((piece,), 1).model for piece in (FedSAM(radius=5.0), FedAvg()))
    same(wide.buffers, plain.buffers)
    assert any(not torch.equal(leaf, plain.params[name]) for name, leaf in wide.params.items())


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_both_passes_drop_the_same_activations(executor):
    body = nn.Sequential(nn.Flatten(), nn.Linear(16, FEATURES), nn.Tanh(), nn.Dropout(0.5))
    network = models.BodyAndHead(body, nn.Linear(FEATURES, CLASSES)).double()
    data = make_images(shape=TINY, dtype=torch.float64)
    ends = []
    for piece in (FedSAM(radius=0.0), FedAvg()):
        fed = make_federation(network, data, piece, executor=executor)
        ends.append(play_rounds(start(fed), fed, 2).model)
    same_model(ends[0], ends[1])


def test_weight_decay_is_no_part_of_the_offset():
    """The offsets of the first step are the same, however large the decay."""
    offsets: list[Tree] = []

    class Watching(FedSAM):
        def perturb(self, grads, params, held):
            offsets.append(super().perturb(grads, params, held))
            return offsets[-1]

    for decay in (0.0, 10.0):
        small = SmallFederation(epochs=1, batch_size=100, weight_decay=decay)
        small.play((Watching(),), 1)
    half = len(offsets) // 2
    for plain, decayed in zip(offsets[:half], offsets[half:], strict=True):
        same(plain, decayed)


@pytest.mark.parametrize("name", COMPOSED)
def test_compositions_are_the_same_in_every_executor(name):
    pieces = (FedSAM(radius=0.2), *COMPOSED[name])
    ours, loop = (
        play_rounds(start(fed), fed, 3)
        for fed in (replace(NORM, executor=e).make_federation(pieces) for e in ("stacked", "loop"))
    )
    same(to_tree(ours), to_tree(loop), 1e-9)


@pytest.mark.parametrize("clipping", [None, Clipping(0.5), Clipping(0.5, first=True)])
@pytest.mark.parametrize("optimizer", [None, Adam(0.003)])
def test_every_optimizer_and_clipping(optimizer, clipping):
    states = []
    for executor in ("loop", "stacked"):
        fed = replace(NORM, executor=executor).make_federation((FedSAM(), FM))
        training = replace(fed.training, clipping=clipping)
        training = replace(training, optimizer=optimizer) if optimizer else training
        fed = replace(fed, training=training)
        states.append(play_rounds(start(fed), fed, 2))
    same(to_tree(states[0]), to_tree(states[1]), 1e-9)


def test_a_stage_moves_only_what_it_trains():
    seen = []

    class Watching(FedSAM):
        def perturb(self, grads, params, held):
            seen.append((frozenset(grads), frozenset(params)))
            return super().perturb(grads, params, held)

    NORM.play((Watching(), FedRep(head_epochs=1)), 1)
    heads = frozenset({"head.weight", "head.bias"})
    body = frozenset(name for name, _ in NORM.module.named_parameters()) - heads
    assert seen == [(part, part) for part in (heads, body) for _ in range(seen.count((part, part)))]
    assert {grads for grads, _ in seen} == {heads, body}


def test_a_gradient_of_zero_does_not_move():
    grads = {"w": torch.zeros(2, 3), "b": torch.tensor([[0.0], [4.0]])}
    offset = FedSAM(radius=0.5).perturb(grads, grads, {})
    assert offset["b"].tolist() == [[0.0], [0.5]]
    assert not offset["w"].any()


def test_the_moved_model_is_memory_and_nothing_more_is_sent():
    ours, plain = (
        measure_cost(compose(piece), NORM.module, CLASSES, FEATURES)
        for piece in (FedSAM(), FedAvg())
    )
    assert ours == replace(plain, method="fedsam", memory=2 * plain.memory)


class Single(Piece):
    """Allows one pass only."""

    name = "single"
    single_pass = True


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ((MoFedSAM(),), "fedsam and mofedsam cannot be combined: both perturb"),
        ((Single(),), "single and fedsam cannot be combined"),
        ((FedCM(), Scaffold()), "client drift correction"),
    ],
)
def test_contradictions_are_refused(others, words):
    with pytest.raises(UserError, match=words) as refusal:
        compose([FedSAM(), *others])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda self, grads, params, held: None, "nothing"),
        (lambda self, grads, params, held: {"other": torch.ones(1)}, "other"),
        (lambda self, grads, params, held: tree_map(torch.sum, grads), r"tensor \[\]"),
    ],
)
def test_an_offset_of_another_form_is_refused(wrong, words):
    piece = type("Wrong", (FedSAM,), {"perturb": wrong})()
    fed = SmallFederation().make_federation((piece,))
    with pytest.raises(UserError, match=rf"Wrong\.perturb.*{words}"):
        run_round(start(fed), fed)


@pytest.mark.parametrize("kind", [FedSAM, MoFedSAM])
@pytest.mark.parametrize("key", ["radius", "adaptive"])
def test_settings_outside_their_range_are_refused(kind, key):
    with pytest.raises(UserError, match=f"{kind.name}: {key}"):
        kind(**{key: -0.1})
