from functools import partial

import pytest

from fedfm.paper.theory.checks import check_theory
from fedfm.paper.theory.lemma import compute_digits_updates

ROUNDS, REPEATS = 4, 16
"""Rounds of the runs on the digits, repeats of those with noise: fewer than the command's."""


@pytest.fixture(scope="session")
def found(tmp_path_factory, compute_once):
    """The whole report, computed once, with fewer rounds and repeats."""
    shorter = partial(compute_digits_updates, rounds=ROUNDS)

    def check():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fedfm.paper.theory.checks.compute_digits_updates", shorter)
            patch.setattr("fedfm.paper.theory.convergence.REPEATS", REPEATS)
            return check_theory(tmp_path_factory.mktemp("theory"))

    return compute_once("theory", check)
