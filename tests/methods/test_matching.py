"""The matching losses and anchors, against their formulas and at their edges."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedfm import Training, simulate
from fedfm.core.errors import UserError
from fedfm.methods import Batch, FedAvg, FedFM, FedFMLite, compose
from fedfm.rounds.round import run_round
from fedfm.verify import fixtures
from fedfm.verify.checks import same_model
from fedfm.verify.fixtures import SmallFederation, start
from fedfm.verify.textbook import parts
from tests.methods.test_personal import TwoOutputs

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
            expected = 3 * parts.cg_loss(features, given.labels[k], known, 0.2)
        else:
            expected = 3 * parts.l2_loss(features, given.labels[k], known)
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
        (FedFM, {"warm_up": -1}),
        (FedFM, {"moving_average": 1.0}),
        (FedFM, {"margin": -0.1}),
        (FedFM, {"margin": 0.1, "guide": "l2"}),
        (FedFM, {"calibration": -1.0}),
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


def with_options(**options) -> FedFM:
    return FedFM(strength=2.0, start_round=0, **options)


def test_a_margin_is_taken_from_the_own_similarity_alone():
    given, (_, state) = batch(), anchors({0, 1, 2, 4})
    loss, _ = losses_and_gradients(with_options(temperature=0.2, margin=0.3), given, state)
    cosines = F.normalize(given.features, dim=-1) @ F.normalize(state["anchors"], dim=-1).T
    for k in range(2):
        each = []
        for cosine, label in zip(cosines[k].detach(), given.labels[k].tolist(), strict=True):
            if label == 3:
                continue
            cosine[label] -= 0.3
            each.append(-(cosine[[0, 1, 2, 4]] / 0.2).log_softmax(0)[[0, 1, 2, 9, 3][label]])
        torch.testing.assert_close(loss[k].detach(), 2 * torch.stack(each).mean())


def test_a_warm_up_grows_to_the_whole_strength():
    piece, fed = (
        with_options(warm_up=4),
        SmallFederation().make_federation((with_options(warm_up=4),)),
    )
    given, (_, state) = batch(), anchors({0, 1, 2, 3, 4})
    whole = losses_and_gradients(with_options(), given, state)[0]
    server = piece.server_state(fed.task)
    for share in (0.25, 0.5, 0.75, 1.0, 1.0):
        counts = {"sum": torch.zeros(CLASSES, fed.task.features), "count": torch.zeros(CLASSES)}
        server = piece.absorb(server, counts, 2)
        rounds = server["rounds"].unsqueeze(0)
        down = {name: value.unsqueeze(0) for name, value in state.items()}
        held = piece.prepare({}, fed.task.model, down | {"rounds": rounds})
        torch.testing.assert_close(piece.loss(given, held), share * whole)


@pytest.mark.parametrize("kind", [FedFM, FedFMLite])
def test_the_first_round_of_matching_has_the_first_share(kind):
    """FedFM-Lite takes its anchors a round earlier, and no share of the strength with them."""
    terms = []
    for warm_up in (0, 2):
        piece = kind(strength=1.0, start_round=1, warm_up=warm_up)
        fed = SmallFederation().make_federation((piece,))
        state, logs = start(fed), []
        for _ in range(2):
            state, log = run_round(state, fed)
            logs.append(log)
        terms.append(logs[1].terms[piece.name])
    assert terms[1] < 0.75 * terms[0]


def test_moving_averages_begin_with_the_first_mean():
    piece = with_options(moving_average=0.75)
    state = {"anchors": torch.zeros(3, 1), "seen": torch.tensor([True, False, True])}
    state["anchors"][:] = torch.tensor([[4.0], [0.0], [5.0]])
    total = {"sum": torch.tensor([[16.0], [6.0], [0.0]]), "count": torch.tensor([2, 3, 0])}
    new = piece.absorb(state, total, 1)
    assert new["anchors"].flatten().tolist() == [5.0, 2.0, 5.0]
    assert new["seen"].tolist() == [True, True, True]


def test_calibration_is_the_heads_cross_entropy_on_anchors():
    given, (_, state) = batch(), anchors({0, 2})
    weights = torch.randn(2, CLASSES, WIDTH, dtype=torch.float64, requires_grad=True)
    given = given._replace(classify=lambda features: features @ weights.mT)
    plain, _ = losses_and_gradients(with_options(), given, state)
    loss, _ = losses_and_gradients(with_options(calibration=0.5), given, state)
    for k in range(2):
        logits = state["anchors"][[0, 2]] @ weights[k].T
        expected = 0.5 * F.cross_entropy(logits, torch.tensor([0, 2]))
        torch.testing.assert_close(loss[k] - plain[k], expected)
    slope = torch.autograd.grad(loss[0], weights)[0]
    assert slope[0].abs().sum() > 0
    assert torch.equal(slope[1], torch.zeros_like(slope[1]))


class Scaled(nn.Module):
    """A network with a free parameter, which is mapped over clients."""

    head_name = "head"

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 6), nn.Linear(6, fixtures.CLASSES)
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.body(x.flatten(1)).tanh() * self.scale
        return features, self.head(features)


@pytest.mark.parametrize("network", [lambda: fixtures.make_network("mlp"), Scaled])
def test_the_head_is_the_same_in_every_executor(network):
    """Whether the network is stacked by its layers or mapped over clients."""
    module, piece = network().double(), with_options(calibration=3.0)
    ends = []
    for executor in ("loop", "stacked"):
        data = fixtures.make_images(dtype=torch.float64)
        fed = fixtures.make_federation(module, data, piece, executor=executor)
        ends.append(fixtures.play_rounds(start(fed), fed, 2).model)
    same_model(ends[0], ends[1], 1e-9)


def test_calibration_needs_a_head():
    headless = torch.nn.Sequential(torch.nn.Flatten(), TwoOutputs())
    few = Training(clients=3, rounds=1, epochs=1)
    with pytest.raises(UserError, match=r"calibration.*head"):
        simulate(headless, "digits", with_options(calibration=1.0), training=few)
