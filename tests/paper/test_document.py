"""The document of the reproduction: from results alone, and nothing that was not run left out."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedfm.grid.recipe import expand_cells
from fedfm.grid.repeats import AGAIN
from fedfm.grid.store import Store
from fedfm.paper.catalogue import list_recipe_names, load_recipe
from fedfm.paper.costs import list_claims, render_costs
from fedfm.paper.document import Document, make_document
from fedfm.paper.evidence import Evidence
from fedfm.paper.images import render_images
from fedfm.paper.plan import load_plan
from fedfm.paper.protocol import render_protocol
from fedfm.paper.render import render_document, write_document
from fedfm.paper.stages import UNTRAINED
from tests.grid.results import CONFIG, result, store_of, write_rounds
from tools.headline import BEGIN, END, load_document, render_headline, renew

ROOT = Path(__file__).parent.parent.parent
WORDS = ("--with", "data.toml")
MAIN = {"FedAvg": (66.0, 67.0, 68.0), "FedFM": (72.0, 73.0, 74.0)}


def main(method: str, partition: str, seed: int, accuracy: float):
    cell = {"method": method, "data": "CIFAR-10", "partition": partition}
    config = CONFIG | {"method": {method: {}}}
    return result(cell, seed, accuracy, recipe="main", config=config, clock=60.0, together=3)


@pytest.fixture
def made(tmp_path, monkeypatch) -> Document:
    """Two methods under NIID-1 with three seeds, and two points of Fig. 7."""
    monkeypatch.chdir(tmp_path)
    summaries = [
        main(method, "NIID-1", seed, accuracy)
        for method, accuracies in MAIN.items()
        for seed, accuracy in enumerate(accuracies)
    ]
    summaries += [
        result({"method": method}, 0, accuracy, recipe="lite", config=CONFIG | {"method": {m: {}}})
        for m, method, accuracy in (
            ("fedavg", "FedAvg", 66.0),
            ("fedfm-lite", "FedFM-Lite, a = 5", 70.0),
        )
    ]
    store = store_of(Path("results"), summaries)
    (store.folder / summaries[0].folder / "machine.json").write_text('{"name": "NVIDIA H200"}')
    return make_document(Path("docs/reproduction.md"), store.folder, (), WORDS)


def row(made: Document, *starts: str) -> str:
    """The first line with a link's target that begins with these cells."""
    begin = f"</a>{' | '.join(starts)} |"
    return next(each for each in render_document(made).splitlines() if begin in each)


def test_a_cell_has_the_papers_number_ours_the_difference_runs_time_and_command(made):
    runs = " ".join(f"[{n}](../results/runs/FedFM-CIFAR-10-NIID-1-{n})" for n in range(3))
    assert row(made, "FedFM", "CIFAR-10", "NIID-1") == (
        '| <a id="main-fedfm-cifar-10-niid-1"></a>FedFM | CIFAR-10 | NIID-1 | 72.89 ± 0.22 | '
        f"73.00 ± 1.00 | +0.11 | {runs} | 3 min | "
        "`fedfm table main --only FedFM --only CIFAR-10 --only NIID-1` |"
    )
    assert "--seeds 1`" in row(made, "FedFM-Lite, a = 5")
    assert "followed by `--with data.toml --results again`" in render_document(made)


def test_every_cell_is_there_and_says_if_it_was_not_run(made):
    whole = re.sub("<a id=.*?></a>", "", render_document(made)).replace("\\", "")
    assert "| 67.33 ± 0.49 | not run |  |  |" in row(made, "FedProto")
    for name in (name for name in list_recipe_names() if not name.startswith("field")):
        recipe = load_recipe(name)
        assert f"## {recipe.paper}: {recipe.title} (`{name}`)" in whole
        for cell in expand_cells(recipe) if recipe.output not in UNTRAINED else ():
            assert f"| {' | '.join(cell.labels.values())} |" in whole


def test_a_cell_that_tables_share_is_counted_once(tmp_path):
    """FedFM under NIID-1 is a cell of nine tables."""
    cells = expand_cells(load_recipe("main"))
    config = next(c.resolved for c in cells if c.title == "FedFM / CIFAR-10 / NIID-1").as_toml()
    labels = {"method": "FedFM", "data": "CIFAR-10", "partition": "NIID-1"}
    store_of(tmp_path, [result(labels, 0, 72.0, recipe="main", config=config)])
    inventory = make_document(Path("d.md"), tmp_path, (), ()).inventory
    done, papers = inventory.count()
    every = [job.digest for part in load_plan().parts for job in inventory.list_jobs(part)]
    assert done == 1
    assert papers + inventory.count(ours=True)[1] == len(set(every)) < len(every)


def test_what_was_not_run_says_what_it_takes(made):
    section = render_document(made).split("## What is not measured")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    assert any(line.startswith("| Table II, CINIC-10") and "not at hand" in line for line in lines)
    assert any("`clients` | 32 | 96 | about twenty hours" in line for line in lines)
    assert any(line.startswith("| Table VI | `anchors` | 3 | 9 |") for line in lines)


def test_the_paragraph_on_jpeg_images_compares_runs_that_differ_in_nothing_else(tmp_path):
    def run(folder: str, seed: int, accuracy: float, **changes):
        config = CONFIG | {"data": {"name": "folder", "path": folder}} | changes
        return result({"method": "FedAvg"}, seed, accuracy, config=config, rounds=100)

    exact = store_of(tmp_path / "exact", [run("exact", seed, 70.0 + seed) for seed in range(2)])
    other = {"partition": CONFIG["partition"] | {"kind": "niid2"}}
    before = [run("jpeg", 0, 69.0), run("jpeg", 1, 69.6), run("jpeg", 0, 1.0, **other)]
    jpeg = store_of(tmp_path / "jpeg", before)
    plan = load_plan()
    text = render_images(*(Evidence.of(plan, store.folder) for store in (exact, jpeg)))
    assert "After 100 rounds, 2 pairs of runs" in text
    assert "70.50 percent on exact pixels and 69.30 on JPEG images" in text
    assert "+1.20 points (standard deviation over the pairs: 0.28)" in text
    nothing = render_images(Evidence.of(plan, tmp_path / "none"), Evidence.of(plan, jpeg.folder))
    assert "Not measured yet" in nothing


def test_how_runs_were_made_and_what_was_chosen_is_disclosed(tmp_path):
    """From data.toml, the stored choice, and the runs themselves."""
    tried = {"FedDyn, alpha = 0.01": 0.70, "FedDyn, alpha = 0.1": 0.68}
    runs = [
        result({"partition": where, "setting": label}, 0, 60.0, recipe="tune", val_accuracy=value)
        for label, value in tried.items()
        for where in ("NIID-1", "NIID-2")
    ]
    store_of(tmp_path, [replace(run, device="cuda") for run in runs])
    (tmp_path / "data.toml").write_text("[data.cifar10]\nmean = [1.5]\nstd = [2.0]\n")
    (tmp_path / "tune").mkdir()
    (tmp_path / "tune/chosen.toml").write_text("[method.feddyn]\nalpha = 0.01\n")
    evidence = Evidence.of(load_plan(), tmp_path)
    text = " ".join(render_protocol(evidence, evidence).split())
    assert "100 rounds (80 on CIFAR-100 with ResNet50)" in text
    assert "bf16 products in the network" in text
    assert "`data.cifar10.mean = [1.5]`" in text
    assert "alpha = 0.01 (70.00), alpha = 0.1 (68.00), alpha = 0.3 (not run)" in text
    assert "| alpha = 0.01 | alpha = 0.01 |" in text
    assert "| not chosen yet | not chosen yet |" in text


def test_costs_beside_the_papers():
    text = render_costs()
    assert (
        "| MOON | 33,545 (33,546) | 11,182 (11,182) | 71,116 (71,115) | 23,705 | 3.00 (3)" in text
    )
    assert "| FedFM | 478 (478) | 478 (478) |" in text
    assert [row[-1] for row in list_claims()] == ["holds"] * 4


def test_runs_that_were_made_twice_are_compared_round_by_round(made):
    """FedFM, seed 0, of four rounds with two; FedAvg, seed 1, again with other numbers."""
    short = CONFIG | {"method": {"FedFM": {}}, "training": CONFIG["training"] | {"rounds": 2}}
    tried = result({"setting": "short"}, 0, 36.0, recipe="tune", config=short, rounds=2)
    store = Store(made.results)
    store.append([tried])
    write_rounds(Store(made.results), 4)
    other = replace(main("FedAvg", "NIID-1", 1, 66.5), finished="2026-02-03T04:05:06")
    store_of(made.results / AGAIN, [other])
    cut = made.results / tried.folder / "rounds.jsonl"
    longest = made.results / main("FedFM", "NIID-1", 0, 0.0).folder / "rounds.jsonl"
    cut.write_text("".join(longest.read_text().splitlines(keepends=True)[:2]))
    section = render_document(made).split("## Runs made twice")[1].split("##")[0]
    assert [line.strip("| ").split(" | ") for line in section.splitlines()[6:] if line] == [
        [
            "main FedAvg / CIFAR-10 / NIID-1, seed 1 (2026-01-01 00:00)",
            "main FedAvg / CIFAR-10 / NIID-1, seed 1 (2026-02-03 04:05)",
            "4",
            "round 1",
        ],
        [
            "main FedFM / CIFAR-10 / NIID-1, seed 0 (2026-01-01 00:00)",
            "tune short, seed 0 (2026-01-01 00:00)",
            "2",
            "none",
        ],
    ]


def test_without_a_run_made_twice_nothing_is_said_of_any(made):
    assert "## Runs made twice" not in render_document(made)


def test_pictures_lie_beside_it_and_the_discussion_is_kept(made):
    single = result({"method": "FedFM (CG)", "beta": "0.5"}, 0, 72.0, recipe="guiding")
    Store(made.results).append([single])
    made = replace(made, exact=Evidence.of(made.plan, made.results))
    paths = write_document(made)  # one point of Fig. 8b is no curve
    assert paths == [Path("docs/reproduction.md"), Path("docs/reproduction-lite.png")]
    assert "Not written yet." in paths[0].read_text()
    assert "(reproduction-lite.png)" in paths[0].read_text()
    assert "reproduction-lambda.png" not in paths[0].read_text()
    text = "It is *{main: FedFM / CIFAR-10 / NIID-1}*.\n\nIt is {main: MOON / CIFAR-10 / NIID-1}."
    Path("docs/reproduction-discussion.md").write_text(text)
    write_document(made)
    link = '[73.00 ± 1.00](#main-fedfm-cifar-10-niid-1 "FedFM / CIFAR-10 / NIID-1")'
    assert f"## Discussion\n\nIt is *{link}*.\n\n## " in paths[0].read_text()


def test_the_headline_has_the_main_table_and_what_less_communication_gives(made):
    accuracy, floats, _ = made.tables["lite"].columns
    row = ("FedFM-Lite, a = 5",)
    entries = made.tables["lite"].entries
    (run,) = entries[row, floats].runs
    thrifty = replace(run, totals=run.totals | {"floats_up": run.totals["floats_up"] // 5})
    for column in (accuracy, floats):
        entries[row, column] = replace(entries[row, column], runs=(thrifty,))
    headline = render_headline(made, Path())
    assert "| FedFM | **73.00** ± 1.00 (72.89) | not run |" in headline
    assert "| MOON | not run | not run |" in headline
    assert "CIFAR-100," not in headline
    assert "on exact pixels" in headline
    assert "6 runs, 6 min on one NVIDIA H200" in headline
    assert "](docs/reproduction-lite.png)" in headline
    assert "](docs/reproduction.md)" in headline
    assert "of FedAvg's traffic: 70.00 % with 20 % (a = 5, n=1).\n" in headline


def test_the_headline_says_which_images_it_is_from(made):
    """Those on JPEG images only as long as more cells have been run on them."""
    nothing = Evidence.of(made.plan, Path("nothing"))
    headline = render_headline(replace(made, exact=nothing, jpeg=made.exact), Path())
    assert "| FedFM | **73.00** ± 1.00 (72.89) |" in headline
    assert "on JPEG images of CIFAR-10 (fewer cells of this table have been run" in headline
    assert "Its accuracy on JPEG images, with" in headline
    for fewer in (nothing, made.exact):
        assert "JPEG" not in render_headline(replace(made, jpeg=fewer), Path())


def test_the_headline_is_renewed_between_its_markers():
    old = f"# Title\n{BEGIN}old\n{END}\nMore.\n"
    assert renew(old, "new\n") == f"# Title\n{BEGIN}new\n{END}\nMore.\n"


def test_the_committed_document_is_what_the_committed_results_give(monkeypatch):
    monkeypatch.chdir(ROOT)
    again = load_document(Path("docs/reproduction.md"))
    assert render_document(again) == again.path.read_text()
