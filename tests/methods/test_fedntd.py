"""FedNTD: its divergence by hand, its frozen teacher, its limits."""

import pytest
import torch

from fedfm import UserError
from fedfm.methods import Batch, FedNTD
from fedfm.rounds.round import run_round
from fedfm.verify.fixtures import SmallFederation, start
from tests.methods.equal import assert_fedavg


def make_batch(classes=4, size=3) -> Batch:
    rng = torch.Generator().manual_seed(5)
    theirs, ours = torch.randn(2, 2, size, classes, generator=rng, dtype=torch.float64)
    labels = torch.randint(classes, (2, size), generator=rng)
    mask = torch.ones_like(labels, dtype=torch.bool)
    views = {"received": theirs}
    return Batch(ours, ours.requires_grad_(), labels, mask, view_logits=views)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_loss_is_the_divergence_over_other_classes(temperature):
    batch = make_batch()
    found = FedNTD(strength=0.3, temperature=temperature).loss(batch, {})
    for k in range(2):
        total = 0.0
        for ours, theirs, label in zip(
            batch.logits[k], batch.view_logits["received"][k], batch.labels[k], strict=True
        ):
            others = [c for c in range(4) if c != label]
            p, q = ((x[others] / temperature).softmax(0) for x in (theirs, ours))
            total += (p * (p / q).log()).sum().item()
        assert found[k].item() == pytest.approx(0.3 * temperature**2 * total / 3)


def test_the_true_class_has_no_gradient():
    batch = make_batch()
    (slope,) = torch.autograd.grad(FedNTD().loss(batch, {}).sum(), batch.logits)
    true = slope.gather(-1, batch.labels.unsqueeze(-1))
    assert torch.equal(true, torch.zeros_like(true))
    assert slope.abs().sum() > 0


def test_with_two_classes_nothing_is_left_to_distil():
    assert torch.equal(FedNTD().loss(make_batch(2), {}), torch.zeros(2, dtype=torch.float64))


def test_a_first_step_from_the_received_model_is_fedavgs():
    """Both models agree there, so the divergence and its gradient vanish."""
    assert_fedavg(SmallFederation(epochs=1, batch_size=100, keep_last=True), FedNTD(), 1, 1e-12)


def test_strength_0_is_fedavg():
    assert_fedavg(SmallFederation("tiny cnn with batch norm"), FedNTD(strength=0.0))


def test_the_received_model_runs_in_evaluation_mode():
    """With batch norm in training mode, the first step's teacher would agree with the client."""
    small = SmallFederation("tiny cnn with batch norm", epochs=1, batch_size=100, keep_last=True)
    fed = small.make_federation((FedNTD(),))
    _, log = run_round(start(fed), fed)
    assert log.terms["fedntd"] > 1e-6


@pytest.mark.parametrize("settings", [{"strength": -1.0}, {"temperature": 0.0}])
def test_settings_outside_their_range_are_refused(settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        FedNTD(**settings)
