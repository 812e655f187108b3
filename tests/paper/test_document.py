"""The document of the reproduction: from results alone, and nothing that was not run left out."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedfm.grid.recipe import expand_cells
from fedfm.grid.repeats import AGAIN
from fedfm.grid.store import Store
from fedfm.paper.catalogue import load_recipe
from fedfm.paper.document import Document, make_document, render_document, write_document
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
        result({"method": method}, 0, accuracy, recipe="lite", config={"lite": method})
        for method, accuracy in (("FedAvg", 66.0), ("FedFM-Lite, a = 5", 70.0))
    ]
    store = store_of(Path("results"), summaries)
    (store.folder / summaries[0].folder / "machine.json").write_text('{"name": "NVIDIA H200"}')
    return make_document(Path("docs/reproduction.md"), store.folder, (), WORDS)


def row(made: Document, *starts: str) -> str:
    """The line that begins with these cells."""
    begin = f"| {' | '.join(starts)} |"
    (line,) = [each for each in render_document(made).splitlines() if each.startswith(begin)]
    return line


def test_a_cell_has_the_papers_number_ours_the_difference_seeds_time_and_command(made):
    assert row(made, "FedFM", "CIFAR-10", "NIID-1") == (
        "| FedFM | CIFAR-10 | NIID-1 | 72.89 ± 0.22 | 73.00 ± 1.00 | +0.11 | 3 | 3 min | "
        "`fedfm table main --only FedFM --only CIFAR-10 --only NIID-1 --with data.toml "
        "--results again` |"
    )
    assert "--seeds 1 " in row(made, "FedFM-Lite, a = 5")


def test_every_cell_is_there_and_says_if_it_was_not_run(made):
    whole = render_document(made)
    assert "| 67.33 ± 0.49 | not run |  | 0 |" in row(made, "FedProto")
    for name in ("lite", "quality", "lambda", "missing", "epochs", "participation", "tune"):
        for cell in expand_cells(load_recipe(name)):
            assert f"| {' | '.join(cell.labels.values())} |" in whole.replace("\\", "")
    assert "CINIC-10" not in whole
    assert "4 of 252 cells have been run, 8 runs in all, 6 min on one NVIDIA H200" in whole


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
    paths = write_document(made)
    assert paths == [Path("docs/reproduction.md"), Path("docs/reproduction-lite.png")]
    assert "Not written yet." in paths[0].read_text()
    assert "(reproduction-lite.png)" in paths[0].read_text()
    assert "reproduction-lambda.png" not in paths[0].read_text()
    Path("docs/reproduction-discussion.md").write_text("It holds, since *we* looked.\n")
    write_document(made)
    assert "## Discussion\n\nIt holds, since *we* looked.\n" in paths[0].read_text()


def test_the_headline_has_the_main_table_and_what_less_communication_gives(made):
    accuracy, floats = made.tables["lite"].columns
    row = ("FedFM-Lite, a = 5",)
    entries = made.tables["lite"].entries
    (run,) = entries[row, floats].runs
    thrifty = replace(run, totals=run.totals | {"floats_up": run.totals["floats_up"] // 5})
    for column in (accuracy, floats):
        entries[row, column] = replace(entries[row, column], runs=(thrifty,))
    headline = render_headline(made, Path())
    assert "| FedFM | **73.00** ± 1.00 (72.89) | not run |" in headline
    assert "| MOON | not run | not run |" in headline
    assert "6 runs, 6 min on one NVIDIA H200" in headline
    assert "](docs/reproduction-lite.png)" in headline
    assert "](docs/reproduction.md)" in headline
    assert "reaches 70.00 % with 20 % of the traffic (FedFM-Lite, a = 5, n=1).\n" in headline


def test_the_headline_is_renewed_between_its_markers():
    old = f"# Title\n{BEGIN}old\n{END}\nMore.\n"
    assert renew(old, "new\n") == f"# Title\n{BEGIN}new\n{END}\nMore.\n"


def test_the_committed_document_is_what_the_committed_results_give(monkeypatch):
    monkeypatch.chdir(ROOT)
    again = load_document(Path("docs/reproduction.md"))
    assert render_document(again) == again.path.read_text()
