"""The matching losses and anchors, against their formulas and at their edges."""

import pytest
import torch
import torch.nn.functional as F

from fedfm.core.errors import UserError
from fedfm.methods import Batch, FedAvg, FedFM, FedFMLite, compose
from fedfm.verify import textbook

CLASSES, WIDTH = 5, 7


def batch(clients=2, size=6, seed=0, dtype=torch.float64) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    features = torch.randn(clients, size, WIDTH, generator=rng, dtype=dtype).requires_grad_()
    labels = torch.randint(CLASSES, (clients, size), generator=rng)
    logits = torch.zeros(clients, size, CLASSES, dtype=dtype)
    return Batch(features, logits, labels, torch.ones_like(labels, dtype=torch.bool))


def anchors(seen: set[int], seed=1) -> tuple[dict[int, torch.Tensor], dict[str, torch.Tensor]]:
    rng = torch.Generator().manual_seed(seed)
    raw = torch.randn(CLASSES, WIDTH, generator=rng, dtype=torch.float64)
    mask = torch.tensor([c in seen for c in range(CLASSES)])
    state = {"anchors": torch.where(mask.unsqueeze(1), raw, 0.0), "seen": mask}
    return {c: raw[c] for c in seen}, state


def losses_and_gradients(piece: FedFM, given: Batch, state) -> tuple[torch.Tensor, torch.Tensor]:
    shared = {name: value.unsqueeze(0) for name, value in state.items()}
    loss = piece.loss(given, piece.prepare({}, None, shared))  # type: ignore[arg-type]  # no model is looked at
    return loss, torch.autograd.grad(loss.sum(), given.features)[0]


@pytest.mark.parametrize("guide", ["cg", "l2"])
@pytest.mark.parametrize("seen", [{0, 1, 2, 3, 4}, {0, 2}, {3}])
def test_losses_and_gradients_are_the_textbooks_for_every_client(guide, seen):
    given, (known, state) = batch(), anchors(seen)
    piece = FedFM(strength=3.0, temperature=0.2, guide=guide)
    loss, gradient = losses_and_gradients(piece, given, state)
    for k in range(2):
        features = given.features[k].detach().clone().requires_grad_()
        if guide == "cg":
            expected = 3 * textbook.cg_loss(features, given.labels[k], known, 0.2)
        else:
            expected = 3 * textbook.l2_loss(features, given.labels[k], known)
        torch.testing.assert_close(loss[k], expected)
        if expected.requires_grad:
            slope = torch.autograd.grad(expected, features)[0]
            torch.testing.assert_close(gradient[k], slope)


@pytest.mark.parametrize("guide", ["cg", "l2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_any_anchor_the_loss_and_its_gradient_are_zero(guide, dtype):
    given = batch(dtype=dtype)
    state = {"anchors": torch.zeros(CLASSES, WIDTH, dtype=dtype), "seen": torch.zeros(CLASSES) > 0}
    loss, gradient = losses_and_gradients(FedFM(guide=guide), given, state)
    assert torch.equal(loss, torch.zeros(2, dtype=dtype))
    assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("guide", ["cg", "l2"])
def test_a_batch_of_one_has_the_loss_of_its_sample(guide):
    given, (_, state) = batch(size=1), anchors({0, 1, 2, 3, 4})
    loss, _ = losses_and_gradients(FedFM(guide=guide), given, state)
    assert loss.shape == (2,)
    assert torch.isfinite(loss).all()


def test_cg_is_cross_entropy_of_cosines_when_all_classes_have_anchors():
    given, (_, state) = batch(), anchors({0, 1, 2, 3, 4})
    cosines = F.normalize(given.features, dim=-1) @ F.normalize(state["anchors"], dim=-1).T
    loss, _ = losses_and_gradients(FedFM(strength=1.0, temperature=0.1), given, state)
    for k in range(2):
        torch.testing.assert_close(loss[k], F.cross_entropy(cosines[k] / 0.1, given.labels[k]))


def test_scaling_features_or_anchors_does_not_change_the_loss():
    given, (_, state) = batch(), anchors({0, 1, 2, 3, 4})
    larger = given._replace(features=given.features * 10)
    longer = {"anchors": state["anchors"] * 5, "seen": state["seen"]}
    loss, _ = losses_and_gradients(FedFM(), given, state)
    torch.testing.assert_close(losses_and_gradients(FedFM(), larger, longer)[0], loss)


def totals(piece: FedFM, sums, counts):
    report = piece.report({"sum": torch.stack(sums), "count": torch.stack(counts)})
    return {name: value.sum(0) for name, value in report.items()}


def test_an_absent_class_keeps_its_anchor_and_an_unseen_one_has_none():
    for kind in ("weighted", "uniform"):
        piece = FedFM(anchors=kind)
        state = {"anchors": torch.zeros(3, 2), "seen": torch.tensor([True, True, False])}
        state["anchors"][:2] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        counts = [torch.tensor([2, 0, 0]), torch.tensor([6, 0, 0])]
        sums = [torch.zeros(3, 2), torch.zeros(3, 2)]
        sums[0][0], sums[1][0] = torch.tensor([4.0, 8.0]), torch.tensor([24.0, 0.0])
        new = piece.absorb(state, totals(piece, sums, counts), 2)
        expected = [3.5, 1.0] if kind == "weighted" else [3.0, 2.0]
        assert new["anchors"][0].tolist() == expected
        assert new["anchors"][1].tolist() == [3.0, 4.0]
        assert new["seen"].tolist() == [True, True, False]


def test_uniform_anchors_take_the_previous_one_for_a_client_without_the_class():
    piece = FedFM(anchors="uniform")
    state = {"anchors": torch.full((1, 2), 10.0), "seen": torch.tensor([True])}
    counts = [torch.tensor([4]), torch.tensor([0])]
    sums = [torch.tensor([[8.0, 0.0]]), torch.zeros(1, 2)]
    new = piece.absorb(state, totals(piece, sums, counts), 2)
    assert new["anchors"].tolist() == [[(2.0 + 10.0) / 2, (0.0 + 10.0) / 2]]


def test_uniform_anchors_send_no_counts():
    counts = torch.tensor([[5, 0, 17]])
    sent = FedFM(anchors="uniform").report({"sum": torch.ones(1, 3, 2), "count": counts})
    assert sent.keys() == {"mean", "holders"}
    assert sent["holders"].tolist() == [[1, 0, 1]]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (FedFM, {"strength": -1.0}),
        (FedFM, {"temperature": 0.0}),
        (FedFM, {"guide": "cosine"}),
        (FedFM, {"anchors": "median"}),
        (FedFM, {"start_round": -1}),
        (FedFMLite, {"models_every": 0}),
        (FedFMLite, {"strength": -1.0}),
    ],
)
def test_values_out_of_range_are_refused(kind, options):
    with pytest.raises(UserError, match=next(iter(options)).split("_")[0]):
        kind(**options)


def test_pieces_that_claim_the_same_role_contradict_each_other():
    with pytest.raises(UserError, match="anchors"):
        compose([FedFM(), FedFMLite()])
    with pytest.raises(UserError, match="fedavg"):
        compose([FedAvg(), FedAvg()])
    with pytest.raises(UserError):
        compose([])
    assert compose([FedAvg(), FedFM()]).name == "fedavg+fedfm"


def test_steady_rounds_start_a_cycle_after_every_piece_is_at_work():
    assert compose(FedAvg()).steady_round == 0
    assert compose(FedFM(start_round=20)).steady_round == 20
    assert compose(FedFMLite(start_round=20, models_every=5)).steady_round == 20
    assert compose(FedFMLite(start_round=12, models_every=5)).steady_round == 15
