"""Lemma 2 in every round of real runs, and a check that can fail."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedfm.methods import FedProto
from fedfm.paper.theory.lemma import compute_digits_updates
from tests.paper.theory.conftest import ROUNDS


@dataclass(frozen=True)
class Overshooting(FedProto):
    """Goes on past the class means, to further away than the old anchors were."""

    def absorb(self, server, total, clients):
        new = super().absorb(server, total, clients)
        if not bool(server["seen"].any()):
            return new
        return new | {"anchors": torch.lerp(server["anchors"], new["anchors"], 2.5)}


@pytest.mark.parametrize("run", ["all clients", "BatchNorm", "3 of 10 clients"])
def test_new_anchors_lower_phi_in_every_round_by_what_class_means_must(found, run):
    updates = found.anchors[run]
    assert [each.round for each in updates] == list(range(1, 1 + ROUNDS))
    assert all(each.holds and each.exact for each in updates)
    assert all(each.decrease > 0 for each in updates)
    assert updates[-1].after < updates[0].before, "the run should train"


def test_the_check_fails_for_anchors_beyond_the_class_means():
    updates = compute_digits_updates(Overshooting(strength=0.1), rounds=3)
    assert not any(each.holds or each.exact for each in updates)


def test_uniform_anchors_are_not_the_optimum():
    uniform = compute_digits_updates(FedProto(strength=0.1, anchors="uniform"), rounds=3)
    assert not any(each.exact for each in uniform)


def test_the_strength_scales_what_anchors_can_change():
    (update,) = compute_digits_updates(FedProto(strength=0.0), rounds=1)
    assert update.before == update.after
    assert update.predicted == 0


def test_lemma_1_needs_bounded_features():
    """f(w) = w + sin w is Lipschitz and smooth, but (f - a)^2 is curved without limit."""
    w = np.pi * (2 * np.arange(5) ** 4 + 1.5)
    curvature = 2 * (1 + np.cos(w)) ** 2 - 2 * (w + np.sin(w)) * np.sin(w)
    assert (np.abs(np.stack([1 + np.cos(w), np.sin(w)])) <= 2).all()
    assert np.allclose(curvature, 2 * w)
