"""`fedfm verify --theory`."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fedfm.cli.app import app


@pytest.fixture
def verify(found, monkeypatch):
    def call(*options, report=found):
        monkeypatch.setattr("fedfm.paper.theory.checks.check_theory", lambda out: report)
        return CliRunner().invoke(app, ["verify", *options])

    return call


def test_it_prints_the_table_and_where_the_picture_is(verify, found):
    shown = verify("--theory")
    assert shown.exit_code == 0
    assert all(name in shown.output for name in ("Lemma 2", "Theorem 1", "Corollary 1", "picture"))
    assert json.loads(verify("--theory", "--format", "json").output) == found.as_dict()


def test_a_broken_bound_is_exit_code_1(verify, found):
    broken = replace(found, fixed=[replace(each, average=10.0) for each in found.fixed])
    shown = verify("--theory", report=broken)
    assert shown.exit_code == 1
    assert "NO" in shown.output


@pytest.mark.parametrize("options", [("--out", "x"), ("--theory", "fedfm")])
def test_options_that_do_not_go_together(verify, options):
    assert "--theory" in str(verify(*options).exception)
