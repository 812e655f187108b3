from functools import partial

import pytest

from fedfm.paper.theory import checks

ROUNDS = 4
"""Of the runs on the digits; `fedfm verify --theory` has more."""


@pytest.fixture(scope="session")
def found(tmp_path_factory, compute_once):
    """The whole report, computed once, with fewer rounds on the digits."""
    shorter = partial(checks.compute_digits_updates, rounds=ROUNDS)

    def check():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checks, "compute_digits_updates", shorter)
            return checks.check_theory(tmp_path_factory.mktemp("theory"))

    return compute_once("theory", check)
