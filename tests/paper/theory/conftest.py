import pytest

from fedfm.paper.theory.checks import check_theory


@pytest.fixture(scope="session")
def found(tmp_path_factory, compute_once):
    """The whole report, computed once."""
    return compute_once("theory", lambda: check_theory(tmp_path_factory.mktemp("theory")))
