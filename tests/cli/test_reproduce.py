"""`fedfm reproduce`, and what `fedfm table` has for machines that are taken away."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from fedfm.grid.recipe import expand_cells
from fedfm.grid.store import Store
from fedfm.paper.catalogue import FOLDER, list_recipe_names, load_recipe
from fedfm.paper.plan import Claim, ReproductionPlan, ReproductionStep, Section, load_plan
from fedfm.paper.stages import Stages
from tests.cli.tools import sets
from tests.grid.results import result, store_of

SHORT = sets("executor=stacked", "rounds=2", "epochs=1", "batch_size=32")


def use_plan(monkeypatch, *steps: ReproductionStep) -> None:
    parts = tuple(Section(recipe) for recipe in dict.fromkeys(step.recipe for step in steps))
    plan = ReproductionPlan(parts, steps, ())
    monkeypatch.setattr("fedfm.paper.plan.load_plan", lambda: plan)


def list_recipes(folder: str) -> list[str]:
    return sorted({each.recipe for each in Store(Path(folder)).summaries()})


def test_steps_run_in_order_and_use_what_earlier_ones_choose(command, monkeypatch):
    """What a machine brought home is not run again there."""
    steps = (("anchors", False), ("tune", False), ("proto", True))
    use_plan(monkeypatch, *(ReproductionStep(name, seeds=1, tuned=t) for name, t in steps))
    answer = command("reproduce", "--quick", *SHORT, "--collect", "home.tgz")
    assert answer.code == 0, answer.err
    order = [
        answer.err.index(each) for each in ("FedFM (uniform), seed 0 ...", "FedProx, mu = 0.01")
    ]
    assert order == sorted(order)
    chosen = tomllib.loads(Path("results/tune/chosen-quick.toml").read_text())["method"]
    assert chosen.keys() == {"fedprox", "fedavgm"}
    assert "FedProto, seed 0: done" in answer.err
    assert command("merge", "home.tgz", "--into", "home").code == 0
    assert list_recipes("home") == ["anchors", "proto", "tune"]
    again = command("reproduce", "--quick", *SHORT, "--results", "home")
    assert again.code == 0, again.err
    assert "done" not in again.err


def test_tuned_steps_wait_until_something_is_chosen(command, monkeypatch):
    steps = (ReproductionStep("proto", seeds=1, tuned=True), ReproductionStep("tune", seeds=1))
    use_plan(monkeypatch, *steps)
    answer = command("reproduce", "--quick", *SHORT)
    assert "proto waits" in answer.err
    assert list_recipes("results") == ["tune"]
    given = ("--set", "feddyn.alpha=0.1", "--results", "given")
    assert "waits" not in command("reproduce", "--quick", *SHORT, *given).err
    assert list_recipes("given") == ["proto", "tune"]


def test_a_row_with_a_choice_of_its_own_waits_for_it(tmp_path):
    """Fig. 8b needs what `tune` chooses for all, and what `tune-l2` chooses for one row."""
    step = ReproductionStep("guiding", tuned=True)
    plan = ReproductionPlan((Section("guiding"),), (step,), ())
    stages = Stages(plan, tmp_path, False, ("method.fedfm.strength=50.0",))
    assert list(stages) == []
    (tmp_path / "tune-l2").mkdir()
    (tmp_path / "tune-l2/chosen.toml").write_text(
        '[only."FedFM (L2, tuned)".method.fedfm]\nstrength = 0.1\n'
    )
    (jobs,) = stages
    tuned = {"method": "FedFM (L2, tuned)", "beta": "0.5"}
    (strength,) = [job.config.method["fedfm"]["strength"] for job in jobs if tuned in job.labels]
    assert strength == 0.1


def test_items_of_the_plan_can_be_chosen(command, monkeypatch):
    steps = (ReproductionStep("anchors", item=1, seeds=1), ReproductionStep("lite", item=2))
    use_plan(monkeypatch, *steps)
    assert command("reproduce", "--quick", "--item", "1", *SHORT).code == 0
    assert list_recipes("results") == ["anchors"]
    answer = command("reproduce", "--item", "3")
    assert (answer.code, "one of 1, 2, not 3" in answer.err) == (2, True)


def test_what_is_drawn_without_runs_comes_home_too(command, monkeypatch):
    use_plan(monkeypatch, ReproductionStep("anchors", seeds=1), ReproductionStep("partitions"))
    monkeypatch.setattr("fedfm.paper.catalogue.FOLDER", write_small_recipes(Path("recipes")))
    answer = command("reproduce", *SHORT, "--collect", "home.tgz")
    assert answer.code == 0, answer.err
    assert command("merge", "home.tgz", "--into", "home").code == 0
    rows = json.loads(Path("home/partitions/drawn.json").read_text())
    assert [row["picture"] for row in rows] == ["NIID-1.png", "NIID-2.png", "NIID-3.png"]
    assert all((Path("home/partitions") / row["picture"]).exists() for row in rows)


def write_small_recipes(folder: Path) -> Path:
    """The recipes, about the digits instead of CIFAR-10."""
    shutil.copytree(str(FOLDER), folder)
    for path in folder.glob("*.toml"):
        text = path.read_text().replace('data.name = "cifar10"', 'data.name = "digits"')
        path.write_text(text.replace('model.name = "resnet18"', 'model.name = "cnn"'))
    return folder


def test_seeds_are_added_where_one_leaves_a_claim_undecided(tmp_path):
    """Of two claims about FedProto: FedFM is five points better, MOON half a point."""
    accuracies = {"FedProto": 67.0, "FedFM": 72.0, "MOON": 67.5, "SCAFFOLD": 70.0}
    claims = tuple(
        Claim(name, "proto", {"method": [name]}, {"method": ["FedProto"]})
        for name in ("FedFM", "MOON")
    )
    cells = {cell.labels["method"]: cell for cell in expand_cells(load_recipe("proto"))}
    store_of(
        tmp_path,
        [
            result(
                {"method": name}, 0, value, recipe="proto", config=cells[name].resolved.as_toml()
            )
            for name, value in accuracies.items()
        ],
    )
    step = ReproductionStep("proto", seeds=3, undecided=True)
    stages = Stages(ReproductionPlan((Section("proto"),), (step,), claims), tmp_path, False, ())
    (jobs,) = stages
    assert {job.labels[0]["method"]: job.seeds for job in jobs} == {
        "MOON": (1, 2),
        "FedProto": (1, 2),
    }


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
    shown = {part.recipe for part in plan.parts}
    assert {step.recipe for step in plan.steps} == shown - {"clients"}, "ResNet18 stands in for it"
    assert shown == {name for name in list_recipe_names() if not name.startswith("field")}


def test_the_plan_has_the_order_and_the_seeds_of_the_reproduction():
    steps = [(step.recipe, step.seeds) for step in load_plan().steps if not step.undecided]
    assert steps[:6] == [("tune", 1), ("quality", 3), ("main", 3), *[("main", 1)] * 3]
    rest = "lite anchors proto modularity missing missing lambda tune-l2 guiding tsne partitions"
    rest += " motivation clients-resnet18 baselines epochs participation"
    assert [recipe for recipe, _ in steps[6:]] == rest.split()
    assert all(seeds == 1 for _, seeds in steps[6:])
    items = [step.item for step in load_plan().steps]
    assert items == sorted(items)
    assert set(items) == set(range(1, 10))
