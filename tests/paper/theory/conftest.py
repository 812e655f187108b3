import pytest

from fedfm.paper.theory.checks import check_theory


@pytest.fixture(scope="session")
def found(tmp_path_factory):
    """The whole report, computed once."""
    return check_theory(tmp_path_factory.mktemp("theory"))
