import pytest

from fedfm.paper.theory.checks import report


@pytest.fixture(scope="session")
def found(tmp_path_factory):
    """The whole report, computed once."""
    return report(tmp_path_factory.mktemp("theory"))
