"""`fedfm reproduce`, and what `fedfm table` has for machines that are taken away."""

from pathlib import Path

import pytest

from fedfm.grid.store import Store
from fedfm.paper.plan import ReproductionPlan, ReproductionStep, Section, load_plan
from tests.cli.tools import sets

SHORT = sets("executor=stacked", "rounds=2", "epochs=1", "batch_size=32")


@pytest.fixture
def small(monkeypatch) -> None:
    """A plan of three steps, of which the last waits for the second."""
    steps = (
        ReproductionStep("anchors", seeds=1),
        ReproductionStep("tune", seeds=1),
        ReproductionStep("proto", seeds=1, tuned=True),
    )
    plan = ReproductionPlan((Section("anchors"), Section("tune"), Section("proto")), steps, ())
    monkeypatch.setattr("fedfm.paper.plan.load_plan", lambda: plan)


def test_steps_run_in_order_and_those_about_tuned_methods_wait(command, small):
    first = command("reproduce", "--quick", *SHORT, "--collect", "home.tgz")
    assert first.code == 0, first.err
    assert "step 3, proto, needs tuned settings: give --with results/tune/chosen.toml" in first.err
    assert first.err.index("FedFM (uniform), seed 0 ...") < first.err.index("FedProx, mu = 0.01")
    answer = command("table", "tune", "--quick", "--seeds", "1", *SHORT)
    assert "choice in results/tune/chosen-quick.toml" in answer.err
    assert command("merge", "home.tgz", "--into", "home").code == 0
    options = ("--with", "results/tune/chosen-quick.toml", "--results", "home")
    second = command("reproduce", "--quick", *SHORT, *options)
    assert second.code == 0, second.err
    assert "FedProto, seed 0: done" in second.err
    assert "FedProx" not in second.err, "what was brought home is not run again"
    recipes = [each.recipe for each in Store(Path("home")).summaries()]
    assert sorted(set(recipes)) == ["anchors", "proto", "tune"]


def test_the_documents_are_written_without_running(command):
    arguments = ("--no-run", "--document", "docs/reproduction.md")
    answer = command("reproduce", *arguments, *sets("data.name=folder"))
    assert answer.code == 0, answer.err
    assert answer.out == "wrote docs/reproduction.md\n"
    assert "--set data.name=folder --results again" in Path("docs/reproduction.md").read_text()
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--quick", "--document", "d.md"), "--quick"),
        (("--with", "no.toml"), "there is no file no.toml"),
    ],
)
def test_mistakes_are_explained(command, arguments, said):
    answer = command("reproduce", *arguments)
    assert answer.code == 2
    assert said in answer.err


def test_a_repeated_cell_is_compared_when_it_is_merged(command):
    cell = ("table", "anchors", "--quick", "--seeds", "1", "--only", "FedAvg", *SHORT)
    command(*cell)
    command(*cell, "--results", "again")
    answer = command("merge", "again", "--into", "results")
    assert "again: added 0 results and 0 run folders to results" in answer.out
    assert "again: 1 run existed already, 1 of them with the same rounds" in answer.out


def test_the_plan_is_about_cells_that_there_are():
    plan = load_plan()
    for step in (*plan.steps, *plan.parts):
        assert step.jobs(False, 1, ()), step
        assert step.jobs(True, 1, ()), step
    assert {step.recipe for step in plan.steps} == {part.recipe for part in plan.parts}
