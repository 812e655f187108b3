"""The suite is green for what the library ships, and notices every mistake planted in it."""

import pytest

from fedfm.methods import PIECES
from fedfm.verify import CHECKS, MISTAKES
from fedfm.verify.checks import is_federated
from fedfm.verify.compare_textbook import ADAPTIVE, AFTERWARDS, FEW, LOSSES, SMALL_FEDERATIONS
from fedfm.verify.document import update_tables
from fedfm.verify.suite import pieces_to_check
from tests.verify.test_suite import DOCUMENT

GENERIC = {"finite", "cohorts of one", "renumbering", "resume", "pure", "costs"}


@pytest.mark.parametrize("name", PIECES)
def test_every_registered_method_passes_every_check_that_applies(report, name):
    for label in pieces_to_check(name):
        rows = [row for row in report.rows if row.method == label]
        assert [row for row in rows if not row.passed] == []
        several = is_federated((PIECES[name](),))
        assert {row.check for row in rows} >= GENERIC - (set() if several else {"renumbering"})


@pytest.mark.parametrize("name", PIECES)
def test_every_registered_method_has_a_textbook_and_a_planted_mistake(report, name):
    checks = {row.check for row in report.rows if row.method == name}
    several, simple = is_federated((PIECES[name](),)), name in LOSSES + ADAPTIVE + AFTERWARDS
    names = (
        set(FEW)
        if simple
        else {n for n in SMALL_FEDERATIONS if several or SMALL_FEDERATIONS[n].broken is None}
    )
    assert {f"textbook: {name}" for name in names} <= checks
    assert any(mistake.method == name for mistake in MISTAKES)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: f"{each.method}: {each.what}")
def test_every_planted_mistake_is_caught(report, mistake):
    caught = {(each.method, each.mistake): each.by for each in report.mistakes}
    assert caught[mistake.method, mistake.what]


def test_every_check_applies_to_some_method(report):
    assert {row.check for row in report.rows} == set(CHECKS)


def test_the_documented_tables_are_what_the_suite_finds(report):
    text = DOCUMENT.read_text()
    assert all(check in text for check in CHECKS)
    updated = update_tables(text, report)
    assert updated == text, "run python -m fedfm.verify.document docs/conformance.md"


def test_a_report_says_what_failed_and_what_survived(report):
    assert report.passed
    assert report.verdict().endswith(f"{len(MISTAKES)} of {len(MISTAKES)} planted mistakes caught")
    assert "fedfm-lite" in str(report)
