"""The document of the reproduction: from results alone, and nothing that was not run left out."""

import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fedfm.grid.recipe import cells
from fedfm.grid.repeats import AGAIN, beginnings
from fedfm.grid.store import Store
from fedfm.paper.catalogue import load_recipe
from fedfm.paper.document import Document, document, text, write
from fedfm.paper.headline import BEGIN, END, headline, write_headline
from tests.grid.results import CONFIG, result, store_of, write_rounds

ROOT = Path(__file__).parent.parent.parent
WORDS = ("--with", "data.toml")
MAIN = {"FedAvg": (66.0, 67.0, 68.0), "FedFM": (72.0, 73.0, 74.0)}


def main(method: str, partition: str, seed: int, accuracy: float):
    cell = {"method": method, "data": "CIFAR-10", "partition": partition}
    config = CONFIG | {"method": {method: {}}}
    return result(cell, seed, accuracy, recipe="main", config=config, clock=60.0, together=3)


@pytest.fixture
def made(tmp_path, monkeypatch) -> Document:
    """Two methods under NIID-1 with three seeds, and two points of Fig. 6."""
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
    return document(Path("docs/reproduction.md"), store.folder, (), WORDS)


def row(made: Document, *starts: str) -> str:
    """The line that begins with these cells."""
    begin = f"| {' | '.join(starts)} |"
    (line,) = [each for each in text(made).splitlines() if each.startswith(begin)]
    return line


def test_a_cell_has_the_papers_number_ours_the_difference_seeds_time_and_command(made):
    assert row(made, "FedFM", "CIFAR-10", "NIID-1") == (
        "| FedFM | CIFAR-10 | NIID-1 | 72.89 ± 0.22 | 73.00 ± 1.00 | +0.11 | 3 | 3 min | "
        "`fedfm table main --only FedFM --only CIFAR-10 --only NIID-1 --with data.toml "
        "--results again` |"
    )
    assert "--seeds 1 " in row(made, "FedFM-Lite, a = 5")


def test_every_cell_is_there_and_says_if_it_was_not_run(made):
    whole = text(made)
    assert "| 67.33 ± 0.49 | not run |  | 0 |" in row(made, "FedProto")
    for name in ("lite", "quality", "lambda", "missing", "epochs", "participation", "tune"):
        for cell in cells(load_recipe(name)):
            assert f"| {' | '.join(cell.labels.values())} |" in whole.replace("\\", "")
    assert "CINIC-10" not in whole
    assert "4 of 250 cells have been run, 8 runs in all, 6 min on one NVIDIA H200" in whole


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
    rows = [each.row for each in beginnings(made.results)]
    assert rows == [
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
    assert f"| {' | '.join(rows[1])} |" in text(made)


def test_without_a_run_made_twice_nothing_is_said_of_any(made):
    assert "## Runs made twice" not in text(made)


def test_pictures_lie_beside_it_and_the_discussion_is_kept(made):
    paths = write(made)
    assert paths == [Path("docs/reproduction.md"), Path("docs/reproduction-lite.png")]
    assert "Not written yet." in paths[0].read_text()
    assert "(reproduction-lite.png)" in paths[0].read_text()
    assert "reproduction-lambda.png" not in paths[0].read_text()
    Path("docs/reproduction-discussion.md").write_text("It holds, since *we* looked.\n")
    write(made)
    assert "## Discussion\n\nIt holds, since *we* looked.\n" in paths[0].read_text()


def test_the_headline_is_put_before_the_first_code_and_then_replaced(made):
    readme = Path("README.md")
    readme.write_text("# Title\n\nAbout.\n\n```\nmake demo\n```\n\nMore.\n")
    write(made)
    assert write_headline(made, readme)
    first = readme.read_text()
    assert first.index("About.") < first.index(BEGIN) < first.index(END) < first.index("make demo")
    assert "| FedFM | **73.00** ± 1.00 (72.89) | not run |" in first
    assert "6 runs, 6 min on one NVIDIA H200" in first
    assert "Not run yet: FedAvgM, FedProx, SCAFFOLD, FedDyn, FedNova, MOON." in first
    assert "| MOON" not in first
    assert "](docs/reproduction-lite.png)" in first
    assert "Accuracy for a part of" not in first  # both send the same
    assert "](docs/reproduction.md)" in first
    assert write_headline(made, readme)
    assert readme.read_text() == first


def test_the_headline_tells_what_less_communication_gives(made):
    accuracy, floats = made.tables["lite"].columns
    row = ("FedFM-Lite, a = 5",)
    entries = made.tables["lite"].entries
    (run,) = entries[row, floats].runs
    thrifty = replace(run, totals=run.totals | {"floats_up": run.totals["floats_up"] // 5})
    for column in (accuracy, floats):
        entries[row, column] = replace(entries[row, column], runs=(thrifty,))
    write(made)
    assert "floats: 70.00 % for 20 % (FedFM-Lite, a = 5; n=1).\n" in headline(
        made, Path("README.md")
    )


def test_without_fedfm_there_is_no_headline(tmp_path):
    store_of(tmp_path, [main("FedAvg", "NIID-1", 0, 66.0)])
    made = document(tmp_path / "document.md", tmp_path, (), ())
    (tmp_path / "README.md").write_text("# Title\n")
    assert not write_headline(made, tmp_path / "README.md")
    assert (tmp_path / "README.md").read_text() == "# Title\n"


def test_the_committed_document_is_what_the_committed_results_give(tmp_path, monkeypatch):
    from fedfm.grid.settings import settings_in

    committed = ROOT / "docs/reproduction.md"
    assert committed.exists() == (ROOT / "results").exists()
    if not committed.exists():
        return
    found = re.search(r"Generated by `fedfm reproduce (.*)`", committed.read_text())
    assert found
    options = shlex.split(found[1])
    pairs = list(zip(options[1::2], options[2::2], strict=True))
    given = {name: Path(value) for name, value in pairs if name in ("--results", "--document")}
    words = [word for pair in pairs if pair[0] in ("--with", "--set") for word in pair]
    shutil.copytree(ROOT / given["--results"], tmp_path / given["--results"])
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    monkeypatch.chdir(tmp_path)
    changes = settings_in(Path(value) for name, value in pairs if name == "--with")
    changes += [value for name, value in pairs if name == "--set"]
    again = document(given["--document"], given["--results"], changes, words)
    assert text(again) == committed.read_text()
