"""Means and covariances from sums: by hand, pooled, and in the paper's own form."""

import copy

import pytest
import torch
from torch import Tensor

from fedfm.verify.fixtures import SmallFederation, split_samples
from fedfm.verify.textbook.statistics import add_sums, class_sums, mixture, mixture_of_clients

WORLD = SmallFederation("tiny cnn with batch norm", sizes=(13, 6, 3, 9, 2))


def test_one_feature_by_hand():
    """Samples 0, 2 and 4 at two clients: mean 2, covariance (4 + 0 + 4) / 2."""

    def sums(*z: float) -> dict[int, tuple[int, Tensor, Tensor]]:
        column = torch.tensor(z)
        return {7: (len(z), column.sum().view(1), (column**2).sum().view(1, 1))}

    mean, covariance = mixture(add_sums([sums(0.0, 2.0), sums(4.0)]))[7]
    assert (mean.item(), covariance.item()) == (2, 4)


def test_a_single_sample_has_no_covariance():
    mean, covariance = mixture({0: (1, torch.tensor([3.0]), torch.tensor([[9.0]]))})[0]
    assert (mean.item(), covariance.item()) == (3, 0)


def features_of_all() -> tuple[Tensor, Tensor]:
    split = WORLD.data.train
    with torch.no_grad():
        return copy.deepcopy(WORLD.module).eval()(split.inputs)[0], split.labels


def test_sums_of_clients_have_the_moments_of_the_pooled_samples():
    split, (features, labels) = WORLD.data.train, features_of_all()
    parts = [(split.inputs[i], split.labels[i]) for i in split_samples(WORLD.sizes)]
    found = mixture(add_sums([class_sums(WORLD.module, *part) for part in parts]))
    assert sorted(found) == sorted(set(labels.tolist()))
    for c, (mean, covariance) in found.items():
        own = features[labels == c]
        torch.testing.assert_close(mean, own.mean(0), rtol=0, atol=1e-12)
        expected = torch.cov(own.T, correction=min(1, len(own) - 1))
        torch.testing.assert_close(covariance, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("biased", [False, True])
def test_the_papers_form_is_the_same_unless_clients_divide_by_n(biased):
    features, labels = features_of_all()
    own = features[labels == 0]
    assert len(own) > 4
    parts = [own[:1], own[1:3], own[3:]]
    statistics = []
    for part in parts:
        spread = (part - part.mean(0)).T @ (part - part.mean(0))
        divisor = len(part) if biased else max(len(part) - 1, 1)
        statistics.append((len(part), part.mean(0), spread / divisor))
    mean, covariance = mixture_of_clients(statistics)
    torch.testing.assert_close(mean, own.mean(0), rtol=0, atol=1e-12)
    assert torch.allclose(covariance, torch.cov(own.T), rtol=0, atol=1e-12) is not biased
