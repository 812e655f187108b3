"""The transformer for token ids."""

import pytest
import torch

from fedfm import models
from fedfm.core.errors import UserError
from fedfm.models import Transformer


def make(**options) -> Transformer:
    torch.manual_seed(0)
    return Transformer((6,), 3, vocabulary=20, **{"width": 8, "heads": 2, **options})


def test_padding_changes_nothing():
    model = make().eval()
    ids = torch.tensor([[5, 9, 2, 0, 0, 0], [1, 0, 0, 0, 0, 0]])
    before = model(ids)
    with torch.no_grad():
        model.tokens.weight[0] += 100
        model.positions.weight[3:] += 100
    for ours, theirs in zip(model(ids), before, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_order_of_words_matters_and_samples_do_not_mix():
    model = make().eval()
    ids = torch.tensor([[5, 9, 2, 4, 0, 0], [9, 5, 2, 4, 0, 0], [7, 7, 7, 7, 7, 7]])
    features, logits = model(ids)
    assert (features.shape, logits.shape) == ((3, 8), (3, 3))
    assert not torch.allclose(features[0], features[1])
    for row, alone in enumerate(ids):
        torch.testing.assert_close(model(alone[None])[0][0], features[row])


def test_a_text_without_words_has_finite_features():
    features, logits = make().eval()(torch.zeros(2, 6, dtype=torch.int64))
    assert bool(features.isfinite().all())
    assert bool(logits.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_every_parameter_is_trained_in_either_precision(dtype):
    model = make().double()
    features, logits = model(torch.arange(1, 13).view(2, 6).to(dtype))
    assert features.dtype == torch.float64
    torch.autograd.backward(logits.square().sum())
    assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())


def test_the_data_give_the_vocabulary_which_is_no_option():
    assert models.option_names("transformer") == ["width", "layers", "heads", "dropout", "head"]
    model = models.build("transformer", shape=(6,), classes=3, vocabulary=20, layers=1)
    assert model.get_parameter("tokens.weight").shape == (20, 64)
    assert models.feature_dim(model) == 64
    assert models.feature_dim(model, torch.zeros(1, 6, dtype=torch.int64)) == 64


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((6,), {}, "for token ids.*'text'"),
        ((1, 8, 8), {"vocabulary": 20}, r"\(T,\), not \(1, 8, 8\)"),
        ((6,), {"vocabulary": 20, "width": 10}, "width = 10.*4 heads"),
        ((6,), {"vocabulary": 20, "layers": 0}, "layers = 0"),
        ((6,), {"vocabulary": 20, "dropout": 1.0}, "dropout = 1.0"),
    ],
)
def test_what_it_cannot_be_is_refused(shape, options, message):
    with pytest.raises(UserError, match=message):
        models.build("transformer", shape=shape, classes=2, **options)


@pytest.mark.parametrize("ids", [torch.tensor([[0, 1], [20, 1]]), torch.tensor([[0, -1]])])
def test_ids_outside_of_an_embedding_are_refused_in_a_line(ids):
    model = Transformer((2,), 2, vocabulary=20)
    with pytest.raises(UserError, match=r"ids run from -?\d+ to \d+.*outside") as problem:
        models.check_model(model, ids, 2)
    assert "\n" not in str(problem.value)


def test_a_network_for_numbers_says_that_these_are_ids():
    with pytest.raises(UserError, match=r"MLP does not take inputs of shape \(4,\) of int64"):
        models.check_model(models.MLP((4,), 2), torch.ones(1, 4, dtype=torch.int64), 2)
