"""FedLC, FedRS and balanced softmax: losses by hand, absent classes, what they refuse."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fedfm import FedAvg, Training, UserError, compose, simulate
from fedfm.engine.objective import Objective
from fedfm.methods import BalancedSoftmax, Batch, FedLC, FedRS, Piece
from fedfm.rounds.round import run_round
from fedfm.verify.fixtures import SmallFederation, start
from tests.methods.equal import assert_fedavg

COUNTS = torch.tensor([[4.0, 1.0, 0.0], [0.0, 9.0, 0.0]], dtype=torch.float64)
LABELS = torch.tensor([[0, 1, 0], [1, 1, 1]])
PIECES = [FedLC(), FedLC(exclude_true=False), FedRS(), BalancedSoftmax()]


def logits() -> torch.Tensor:
    rng = torch.Generator().manual_seed(3)
    return torch.randn(2, 3, 3, generator=rng, dtype=torch.float64).requires_grad_()


def loss_of(piece: Piece, given: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    mask = torch.ones_like(LABELS, dtype=torch.bool)
    batch = Batch(torch.zeros(2, 3, 4, dtype=given.dtype), given, LABELS, mask)
    held = {piece.name: piece.use_counts(COUNTS.to(given))}
    task = {} if weights is None else {"task loss": {"weights": weights}}
    return Objective([piece], held | task).loss(batch, {})[0]


def by_hand(adjusted: torch.Tensor, held: list[int], label: int, exclude: bool) -> torch.Tensor:
    """-log of exp z_y over the sum of exp z_c, in the order of the formula."""
    others = [c for c in held if c != label or not exclude]
    if not others:
        return torch.zeros((), dtype=adjusted.dtype)
    return -(adjusted[label].exp() / sum(adjusted[c].exp() for c in others)).log()


@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize("strength", [0.3, 1.0])
def test_fedlc_is_its_formula(strength, exclude):
    given = logits()
    found = loss_of(FedLC(strength, exclude), given)
    for k, held in enumerate([[0, 1], [1]]):
        shifted = given[k].detach() - strength * COUNTS[k] ** -0.25
        rows = zip(shifted, LABELS[k].tolist(), strict=True)
        expected = torch.stack([by_hand(row, held, label, exclude) for row, label in rows]).mean()
        torch.testing.assert_close(found[k].detach(), expected)


def test_fedlc_may_be_negative_without_the_true_class():
    sure = torch.tensor([[[9.0, 0.0, 0.0]] * 3] * 2)
    assert loss_of(FedLC(), sure)[0] > -9
    certain = torch.tensor([[[9.0, 0.0, 0.0], [0.0, 9.0, 0.0], [9.0, 0.0, 0.0]]] * 2)
    assert loss_of(FedLC(), certain)[0] < 0


def test_balanced_softmax_is_its_formula():
    given = logits()
    found = loss_of(BalancedSoftmax(), given)
    weights = COUNTS.unsqueeze(1) * given.detach().exp()
    shares = weights / weights.sum(-1, keepdim=True)
    expected = -shares.gather(-1, LABELS.unsqueeze(-1)).squeeze(-1).log().mean(1)
    torch.testing.assert_close(found.detach(), expected)


def test_fedrs_scales_absent_classes_alone():
    given = logits()
    scale = torch.tensor([[1, 1, 0.25], [0.25, 1, 0.25]], dtype=torch.float64)
    expected = [F.cross_entropy(given[k] * scale[k], LABELS[k]) for k in range(2)]
    torch.testing.assert_close(loss_of(FedRS(alpha=0.25), given), torch.stack(expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("piece", PIECES, ids=repr)
def test_gradients_with_absent_classes_are_finite_and_right(piece, dtype):
    given = logits().detach().to(dtype).requires_grad_()
    (slope,) = torch.autograd.grad(loss_of(piece, given).sum(), given)
    assert slope.isfinite().all()
    if piece.drops_classes:
        assert torch.equal(slope[0, :, 2], torch.zeros(3, dtype=dtype))  # the class is absent
        assert torch.equal(slope[1], torch.zeros(3, 3, dtype=dtype))  # there is one class alone
    else:
        assert (slope[0, :, 2] > 0).all()
    step = 1e-6
    if dtype is torch.float64:
        moved = given.detach().clone()
        moved[0, 1, 0] += step
        rise = (loss_of(piece, moved) - loss_of(piece, given))[0] / step
        torch.testing.assert_close(rise.detach(), slope[0, 1, 0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("piece", PIECES, ids=repr)
def test_class_weights_with_absent_classes(piece):
    """Balanced weights are 0 where counts are 0, which must not meet an infinite logit."""
    weights = torch.where(COUNTS > 0, COUNTS.sum(1, keepdim=True) / (3 * COUNTS), 0.0)
    given = logits()
    loss = loss_of(piece, given, weights=weights)
    assert loss.isfinite().all()
    assert torch.autograd.grad(loss.sum(), given)[0].isfinite().all()


@pytest.mark.parametrize("piece", [FedRS(alpha=1.0), FedLC(strength=0.0, exclude_true=False)])
def test_without_effect_they_are_fedavg(piece):
    assert_fedavg(SmallFederation("tiny cnn with batch norm"), piece)


def test_balanced_softmax_of_equal_counts_is_cross_entropy():
    given, piece = logits(), BalancedSoftmax()
    shifted = given + piece.use_counts(torch.full((2, 3), 7.0))["shift"].unsqueeze(1)
    ours = [F.cross_entropy(each.flatten(0, 1), LABELS.flatten()) for each in (shifted, given)]
    torch.testing.assert_close(*ours)


def test_counts_are_a_clients_own_and_of_its_training_samples():
    """A client's loss does not change with the other clients' data."""
    small = SmallFederation(participation=1.0)
    fed = small.make_federation((BalancedSoftmax(),))
    _, whole = run_round(start(fed), fed)
    held = fed.count_classes([1])
    assert held.dtype is torch.float64
    assert held.sum() == len(fed.samples[1])
    fewer = replace(fed, samples=[fed.samples[1]] * 4)
    assert torch.equal(fewer.count_classes([1]), held)
    assert not whole.failed


def test_data_without_labels_are_refused():
    fed = SmallFederation().make_federation((FedAvg(),))
    assert replace(fed, labels=None).labels is None
    with pytest.raises(UserError, match=r"fedrs.*class counts.*no labels"):
        replace(fed, method=compose(FedRS()), labels=None)


def test_two_pieces_do_not_both_adjust_the_logits():
    with pytest.raises(UserError, match=r"fedlc and fedrs .*logits"):
        compose([FedLC(), FedRS()])


@pytest.mark.parametrize("piece", [FedLC(), BalancedSoftmax()])
def test_label_smoothing_over_absent_classes_is_refused(piece):
    smoothed = Training(clients=3, rounds=1, epochs=1, label_smoothing=0.1)
    with pytest.raises(UserError, match=rf"{piece.name}.*label_smoothing"):
        simulate("mlp", "digits", piece, training=smoothed)
    result = simulate("mlp", "digits", FedRS(), training=smoothed, executor="loop")
    assert result.rounds[0].failed == 0


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(FedLC, {"strength": -1.0}), (FedLC, {"strength": 0.0}), (FedRS, {"alpha": 1.5})],
)
def test_settings_outside_their_range_are_refused(kind, settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        kind(**settings)
