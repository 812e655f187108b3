"""Epsilon is what the theory says, by three independent ways of computing it."""

import math
import re
import sys
import tomllib
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfm.config import parse
from fedfm.core.errors import UserError
from fedfm.deploy.checks import check_deployable
from fedfm.privacy import (
    Privacy,
    compute_epsilon,
    compute_epsilon_alone,
    describe_epsilon,
    noise_for,
)
from tests.test_docs import ROOT, blocks, run_blocks

if TYPE_CHECKING:
    import dp_accounting

ROUNDS = [(1, 0), (0, 1), (1, 1), (100, 80), (10_000, 0), (10_000, 10_000)]


def textbook(sigma: float, delta: float) -> float:
    """The smallest epsilon of a Gaussian mechanism: Theorem 8 of Balle and Wang, 2018."""
    norm = scipy.stats.norm

    def excess(epsilon: float) -> float:
        first = norm.cdf(1 / (2 * sigma) - epsilon * sigma)
        second = math.exp(epsilon + norm.logcdf(-1 / (2 * sigma) - epsilon * sigma))
        return first - second - delta

    return float(scipy.optimize.brentq(excess, 0, 500, xtol=1e-12)) if excess(0) > 0 else 0.0


@pytest.mark.parametrize(("rounds", "anchor_rounds"), ROUNDS)
@pytest.mark.parametrize("once", [0.3, 1.0, 7.0, 1e6])
def test_epsilon_is_the_closed_form_of_one_mechanism(rounds, anchor_rounds, once):
    both = math.sqrt(2) * once
    privacy = Privacy(
        noise=both * math.sqrt(max(rounds, 1)), anchor_noise=both * math.sqrt(max(anchor_rounds, 1))
    )
    whole = once if rounds and anchor_rounds else both
    epsilon = compute_epsilon(privacy, rounds, anchor_rounds)
    assert epsilon.value == pytest.approx(textbook(whole, 1e-5), rel=1e-8)


def composed(privacy: Privacy, rounds: int, anchor_rounds: int) -> "dp_accounting.ComposedDpEvent":
    import dp_accounting  # takes a second: only where these tests run

    updates = dp_accounting.GaussianDpEvent(privacy.noise)
    reports = dp_accounting.GaussianDpEvent(privacy.anchor_noise)
    return dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SelfComposedDpEvent(updates, rounds),
            dp_accounting.SelfComposedDpEvent(reports, anchor_rounds),
        ]
    )


@pytest.mark.parametrize(("rounds", "noise"), [(1, 1.0), (50, 10.0), (10_000, 200.0)])
@pytest.mark.parametrize("name", ["ADD_OR_REMOVE_ONE", "REPLACE_SPECIAL"])
def test_the_accountants_that_compose_numerically_agree(rounds, noise, name):
    from dp_accounting import NeighboringRelation, pld, rdp

    relation = NeighboringRelation[name]
    privacy = Privacy(noise=noise, anchor_noise=0.8 * noise)
    event, ours = composed(privacy, rounds, rounds), compute_epsilon(privacy, rounds, rounds).value
    losses = pld.PLDAccountant(relation).compose(event).get_epsilon(1e-5)
    moments = rdp.RdpAccountant(neighboring_relation=relation).compose(event).get_epsilon(1e-5)
    assert losses == pytest.approx(ours, rel=1e-4)
    assert ours < moments < 1.15 * ours


@settings(deadline=None)
@given(
    st.floats(0.01, 100), st.sampled_from([1e-8, 1e-5, 1e-3]), st.integers(1, 10_000),
    st.integers(0, 10_000),
)  # fmt: skip
def test_the_noise_for_an_epsilon_spends_it(epsilon, delta, rounds, anchor_rounds):
    noise = noise_for(epsilon, delta, rounds, anchor_rounds)
    privacy = Privacy(noise=noise, anchor_noise=noise, delta=delta)
    assert compute_epsilon(privacy, rounds, anchor_rounds).value == pytest.approx(epsilon, rel=1e-6)


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(0, 20), st.floats(0.5, 50))
def test_a_single_answer_shows_what_its_own_share_of_noise_hides(fewest, colluders, noise):
    privacy = Privacy(noise=noise, anchor_noise=noise, colluders=colluders)
    own = Privacy(noise=privacy.update_std(fewest), anchor_noise=privacy.report_std(fewest))
    alone = compute_epsilon_alone(privacy, fewest, 3, 2)
    assert alone.value == pytest.approx(compute_epsilon(own, 3, 2).value, rel=1e-6)
    assert alone.value >= compute_epsilon(privacy, 3, 2).value * (1 - 1e-9)


def test_nothing_sent_costs_nothing_and_no_noise_everything():
    silent = Privacy(noise=0.0, anchor_noise=2.0)
    assert compute_epsilon(silent, 0, 0).value == 0
    assert compute_epsilon(silent, 1, 0).value == math.inf
    assert compute_epsilon_alone(silent, 5, 1).value == math.inf
    assert compute_epsilon(silent, 0, 3).value == pytest.approx(textbook(2 / math.sqrt(3), 1e-5))
    assert compute_epsilon(Privacy(noise=1e-200), 1).value == math.inf


def test_the_line_for_humans_rounds_up_and_says_under_what():
    privacy = Privacy(noise=10.0, anchor_noise=10.0)
    line = describe_epsilon(compute_epsilon(privacy, 100, 80))
    assert line == (
        "(6.18, 1e-05)-differentially private per client, under: 100 updates and 80 reports of a "
        "client; against whoever sees only sums over clients, 1 of whom may collude"
    )
    assert "a client's own answers" in describe_epsilon(compute_epsilon_alone(privacy, 10, 100, 80))
    assert describe_epsilon(compute_epsilon(Privacy(noise=0.0), 1)).startswith(
        "not differentially private"
    )
    shown = float(re.findall(r"\((\d+\.\d+),", line)[0])
    assert 0 <= shown - compute_epsilon(privacy, 100, 80).value < 0.01


@pytest.mark.parametrize(
    ("epsilon", "delta", "rounds", "pattern"),
    [
        (0.0, 1e-5, 1, r"epsilon.*\b0\.0$"),
        (math.nan, 1e-5, 1, "epsilon.*nan$"),
        (1.0, 0.0, 1, r"delta.*\b0\.0$"),
        (1, 0.1, -1, "rounds.*0"),
    ],
)
def test_the_noise_for_nonsense_is_refused(epsilon, delta, rounds, pattern):
    with pytest.raises(UserError, match=pattern):
        noise_for(epsilon, delta, rounds)


def test_negative_rounds_are_refused():
    with pytest.raises(UserError, match=r"rounds.*0"):
        compute_epsilon(Privacy(), -1)


def test_without_the_package_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    for ask in (lambda: compute_epsilon(Privacy(), 1), lambda: noise_for(1.0, 1e-5, 1)):
        with pytest.raises(UserError, match=r"pip install '\.\[privacy\]'"):
            ask()


def test_the_documented_section_has_every_key_and_its_default():
    section, deployment = blocks(ROOT / "docs/privacy.md", "toml")
    assert tomllib.loads(section) == {"privacy": asdict(Privacy())}
    whole = parse(tomllib.loads(f"{section}\n[data]\nname = 'digits'\n[deployment]\n{deployment}"))
    check_deployable(whole)


def test_the_documents_examples_print_what_it_shows(capsys):
    document = ROOT / "docs/privacy.md"
    said = run_blocks(document, capsys)
    assert said == "".join(blocks(document, "text"))
