"""Clipping bounds what a client can change; noise is as strong and as independent as said."""

import math
import re

import pytest
import scipy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedfm.core import trees
from fedfm.core.errors import UserError
from fedfm.core.trees import Tree
from fedfm.privacy import Privacy, add_noise, clip, keyed_normals, secret_normals

NEVER = 1e-7
"""A chance so small that a sound test of secret noise never meets it."""


def answers(clients: int, scale: float = 1.0) -> Tree:
    made = torch.Generator().manual_seed(clients)
    return {
        "model": {"params": {"w": scale * torch.randn(clients, 3, 4, generator=made)}},
        "up": {"fedavg": {}, "fednova": {"a": scale * torch.rand(clients, generator=made)}},
        "count": torch.randint(0, 9, (clients, 5), generator=made),
    }


def vectors(tree: Tree) -> torch.Tensor:
    """Answers [S, ...] as vectors [S, N] in float64."""
    return torch.cat([leaf.reshape(len(leaf), -1).double() for leaf in trees.leaves(tree)], dim=1)


def test_a_long_answer_is_scaled_to_the_norm_and_a_short_one_stays():
    tree = answers(4)
    lengths = vectors(tree).norm(dim=1)
    norm = float(lengths.sort().values[1:3].mean())
    result = vectors(clip(tree, norm))
    for before, after, length in zip(vectors(tree), result, lengths, strict=True):
        if length <= norm:
            assert torch.equal(after, before)
        else:
            assert after.norm() <= norm
            torch.testing.assert_close(after, before * (norm / length), rtol=1e-6, atol=0)


def test_integers_are_part_of_the_vector_and_empty_branches_stay():
    tree = {"count": torch.tensor([[3, 4]]), "holders": torch.zeros(1, 2, dtype=torch.uint8)}
    result = clip(tree | {"fedavg": {}}, 1.0)
    assert list(result) == ["count", "holders", "fedavg"]
    torch.testing.assert_close(result["count"], torch.tensor([[0.6, 0.8]]))
    assert result["holders"].dtype == torch.float32
    assert clip({"fedavg": {}}, 1.0) == {"fedavg": {}}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_answer_that_is_not_finite_stays_so_and_harms_no_other(bad):
    tree = answers(3)
    tree["up"]["fednova"]["a"][1] = bad
    result = clip(tree, 1.0)
    assert trees.is_finite(result).tolist() == [True, False, True]
    assert vectors(result)[1].isnan().all()
    noisy = add_noise(result, 1.0, keyed_normals(0, 0, range(3), "update"))
    assert trees.is_finite(noisy).tolist() == [True, False, True]


def test_a_length_beyond_float64_does_not_pass_as_zero():
    assert clip({"w": torch.full((1, 2), 1e300, dtype=torch.float64)}, 1.0)["w"].isnan().all()


values = st.floats(-(2.0**99), 2.0**99, width=32)


@settings(deadline=None)
@given(
    arrays.arrays("float32", st.tuples(st.integers(1, 5), st.integers(1, 9)), elements=values),
    st.floats(1e-3, 1e3),
    st.integers(0, 4),
)
def test_one_client_more_or_less_changes_the_sum_by_the_norm_at_most(matrix, norm, leaver):
    tree = {"w": torch.from_numpy(matrix), "count": torch.arange(len(matrix)).unsqueeze(1)}
    others = torch.arange(len(matrix)) != leaver % len(matrix)
    with_all = vectors(clip(tree, norm)).sum(0)
    without = vectors(clip(trees.rows(tree, others), norm))
    if len(matrix) > 1:
        change = with_all - without.sum(0)
        room = 1e-13 * norm * len(matrix)
        assert change.norm() <= norm + room
    assert (vectors(clip(tree, norm)).norm(dim=1) <= norm).all()


def variance_is(squares: float, count: int, std: float) -> bool:
    """Whether a sum of squares of `count` draws is one of N(0, std^2): a chi-square test."""
    chance = scipy.stats.chi2(count).cdf(squares / std**2)
    return bool(NEVER < chance < 1 - NEVER)


@pytest.mark.parametrize("secret", [True, False])
@pytest.mark.parametrize(("fewest", "colluders"), [(1, 1), (4, 0), (4, 1), (10, 3)])
def test_a_sum_has_the_noise_that_is_promised(secret, fewest, colluders):
    privacy = Privacy(clip=3.0, noise=0.7, anchor_clip=5.0, anchor_noise=2.0, colluders=colluders)
    zeros = {"w": torch.zeros(fewest, 200, 250), "b": torch.zeros(fewest, 50_000)}
    normals = [secret_normals] * fewest if secret else keyed_normals(1, 2, range(fewest), "update")
    unknown = max(1, fewest - colluders)
    for noisy, std in (
        (privacy.update(zeros, fewest, normals), 0.7 * 3.0),
        (privacy.report(zeros, fewest, normals), 2.0 * 5.0),
    ):
        total = vectors(noisy)[:unknown].sum(0)
        squares = float(total.square().sum())
        assert variance_is(squares, len(total), std)
        assert not variance_is(squares, len(total), 1.03 * std)
        assert not variance_is(squares, len(total), 0.97 * std)


def test_noise_is_added_to_the_answer_and_lies_on_a_grid():
    tree = clip(answers(2), 1.0)
    noisy = add_noise(tree, 1e-4, [secret_normals] * 2)
    assert float((vectors(noisy) - vectors(tree)).abs().max()) < 1e-3
    assert not torch.equal(vectors(noisy), vectors(tree))
    steps = vectors(noisy) / (2.0 ** math.floor(math.log2(1e-4)) / 1024)
    assert torch.equal(steps, steps.round())
    assert noisy["up"]["fedavg"] == {}


def test_what_leaves_a_client_is_clipped_first():
    privacy, long = Privacy(clip=2.0, noise=0.0, anchor_clip=3.0, anchor_noise=0.0), answers(2, 1e6)
    for sent, norm in (
        (privacy.update(long, 5, [secret_normals] * 2), 2.0),
        (privacy.report(long, 5, [secret_normals] * 2), 3.0),
    ):
        assert vectors(sent).norm(dim=1).tolist() == pytest.approx([norm, norm], rel=1e-6)


def test_no_noise_leaves_the_answer_as_it_is():
    tree = clip(answers(2), 1.0)
    assert torch.equal(vectors(add_noise(tree, 0.0, [secret_normals] * 2)), vectors(tree))


def test_keyed_noise_depends_on_neither_packing_nor_order():
    tree = answers(3)
    noisy = add_noise(tree, 1.0, keyed_normals(7, 5, [4, 0, 9], "update"))
    turned = dict(reversed(tree.items()))
    again = add_noise(turned, 1.0, keyed_normals(7, 5, [4, 0, 9], "update"))
    alone = add_noise(trees.rows(tree, slice(2, 3)), 1.0, keyed_normals(7, 5, [9], "update"))
    for path, leaf in trees.flatten(noisy).items():
        assert torch.equal(leaf, trees.flatten(again)[path])
        assert torch.equal(leaf[2:], trees.flatten(alone)[path])


def test_every_client_needs_a_source():
    with pytest.raises(AssertionError):
        add_noise(answers(3), 1.0, [secret_normals])


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip": 0.0},
        {"clip": math.inf},
        {"clip": math.nan},
        {"anchor_clip": -1.0},
        {"noise": -0.1},
        {"noise": math.nan},
        {"anchor_noise": math.inf},
        {"delta": 0.0},
        {"delta": 1.0},
        {"colluders": -1},
    ],
    ids=str,
)
def test_values_out_of_range_are_refused_by_name(wrong):
    [(key, value)] = wrong.items()
    with pytest.raises(UserError, match=rf"^privacy: {key}\b.*{re.escape(str(value))}$"):
        Privacy(**wrong)
