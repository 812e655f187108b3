import pytest

from fedfm.verify import Report, verify_all


@pytest.fixture(scope="session")
def report() -> Report:
    """Every registered method and every planted mistake, run once."""
    return verify_all()
