"""A part of the conformance suite: every method in one federation, and every planted mistake.

The whole suite takes longer: `make verify`.
"""

from pathlib import Path

import pytest

from fedfm.methods import PIECES
from fedfm.verify import CHECKS, MISTAKES
from fedfm.verify.suite import pieces_to_check, run_check

DOCUMENT = Path(__file__).parents[2] / "docs/conformance.md"
TABLE = DOCUMENT.read_text().partition("<!-- mistakes -->")[2].partition("<!-- end -->")[0]
ROWS = [line.strip("| ").split(" | ") for line in TABLE.splitlines() if line]
CAUGHT_BY = {(method, mistake): check for method, mistake, check in ROWS}
"""The check that catches a mistake, by method and mistake: the documented table."""
SETTINGS = {label: piece for name in PIECES for label, piece in pieces_to_check(name).items()}
QUICK = ("textbook: batch norm", "ledger")


@pytest.mark.parametrize("check", QUICK)
@pytest.mark.parametrize("label", SETTINGS)
def test_every_method_passes(label, check):
    row = run_check(label, CHECKS[check], (SETTINGS[label],))
    assert row
    assert row.passed, row


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: f"{each.method}: {each.what}")
def test_the_documented_check_catches_a_planted_mistake(mistake):
    check = CHECKS[CAUGHT_BY[mistake.method, mistake.what]]
    with mistake.within():
        row = run_check(mistake.method, check, (mistake.piece,))
    assert row
    assert not row.passed
