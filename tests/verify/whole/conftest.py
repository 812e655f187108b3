"""The whole conformance suite: `make verify`."""

import pytest

from fedfm.verify import Report, verify_all


@pytest.fixture(scope="session")
def report(compute_once) -> Report:
    """Every registered method and every planted mistake, run once."""
    found: Report = compute_once("conformance", verify_all)
    return found
