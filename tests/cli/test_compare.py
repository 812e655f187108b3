"""`fedfm compare`, and `fedfm table` for recipes whose settings another one chooses."""

from pathlib import Path

import pytest

from fedfm.grid.store import Store
from fedfm.paper.comparison.plan import ComparisonStep
from tests.cli.tools import sets

SHORT = sets("executor=stacked", "rounds=2", "epochs=1", "batch_size=32")


@pytest.fixture
def small(monkeypatch) -> None:
    """A plan of four steps; the third waits for the second."""
    steps = [
        ComparisonStep("field-tune"),
        ComparisonStep("field"),
        ComparisonStep("field", seeds=(1,), best=1, always=("FedFM",)),
        ComparisonStep("field-matching", best=1),
    ]
    monkeypatch.setattr("fedfm.paper.comparison.plan.load_steps", lambda: steps)


def test_the_steps_run_in_order_and_the_same_command_goes_on(command, small):
    first = command("compare", "--quick", *SHORT, "--collect", "home.tgz")
    assert first.code == 0, first.err
    assert "step 1, field-tune, seed 0: 4 runs to do" in first.err
    assert "step 2, field, seed 0: 9 runs to do" in first.err, "two settings have been tried"
    assert "step 3, field, the best 1, FedFM, seed 1: " in first.err
    runs = Store(Path("results")).summaries()
    second = command("compare", "--quick", *SHORT)
    assert second.err.count(": 0 runs to do") == 4
    assert len(Store(Path("results")).summaries()) == len(runs)
    assert command("merge", "home.tgz", "--into", "home").code == 0
    assert len(Store(Path("home")).summaries()) == len(runs)


def test_what_the_budget_does_not_allow_is_named_with_the_command_that_goes_on(command, small):
    answer = command("compare", "--quick", *SHORT, "--budget", "0.001s")
    assert answer.code == 0
    assert "step 3, field, the best 1, FedFM, seed 1: waits" not in answer.err, "it stopped before"
    assert "missing: " in answer.err
    assert "  fedfm compare --quick --set executor=stacked" in answer.err


def test_the_document_is_written_without_running(command):
    answer = command("compare", "--no-run", "--document", "docs/c.md", *sets("data.name=folder"))
    assert answer.code == 0, answer.err
    assert answer.out == "wrote docs/c.md\n"
    assert "--set data.name=folder --results results" in Path("docs/c.md").read_text()
    assert not Path("results").exists()


def test_the_reduced_comparison_prints_a_table(command):
    answer = command("table", "field", "--quick", "--seeds", "1", *SHORT)
    assert answer.code == 0, answer.err
    for method in ("FedAvg", "SCAFFOLD", "FedSMOO", "FedETF", "FedFM-Lite"):
        assert f"│ {method} " in answer.out
    assert "REDUCED" in answer.out


def test_methods_that_wait_for_their_settings_are_named(command):
    answer = command("table", "field", "--only", "FedDyn", "--budget", "1s")
    assert answer.code == 0, answer.err
    assert "fedfm table field-tune must first choose settings: FedDyn\n" in answer.err
    assert not Path("results/runs").exists()


def test_a_document_of_reduced_runs_is_refused(command):
    answer = command("compare", "--quick", "--document", "d.md")
    assert answer.code == 2
    assert "--quick" in answer.err
