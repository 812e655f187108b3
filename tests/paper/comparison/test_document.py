"""The document of the comparison: true with no run, with some, and with all of them."""

import json
import re
import shlex
from pathlib import Path

import pytest

from fedfm.grid.store import Store, Summary, read_rounds, read_summary
from fedfm.paper.catalogue import load_recipe, read_settings
from fedfm.paper.comparison.document import (
    ComparisonDocument,
    make_document,
    render_document,
    write_document,
)
from fedfm.paper.comparison.plan import ComparisonStep, load_steps
from tests.paper.comparison.tiny import HELD_OUT, TINY, made_up, run_step

ROOT = Path(__file__).parents[3]
METHODS = [*load_recipe("field").axes["method"]]
SETTINGS = [*load_recipe("field-tune").axes["setting"]]


def made(results: Path, overrides: tuple[str, ...] = ()) -> ComparisonDocument:
    return make_document(results.parent / "docs" / "comparison.md", results, overrides, ())


def line(document: str, *starts: str) -> str:
    """The only line that begins with these cells."""
    begin = f"| {' | '.join(starts)} |"
    (found,) = [each for each in document.splitlines() if each.startswith(begin)]
    return found


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    """Everything of the first four steps, made up: FedSAM is the best, one seed for most."""
    results: Path = tmp_path_factory.mktemp("compared") / "results"
    published, tune, first, more = load_steps()[:4]
    accuracies = {method: 70.0 + n for n, method in enumerate(METHODS)} | {"FedSAM": 85.0}
    made_up(published, results, dict.fromkeys(load_recipe("field-published").axes["method"], 79.0))
    made_up(tune, results, {label: 50.0 + n % 3 for n, label in enumerate(SETTINGS)})
    made_up(first, results, accuracies)
    made_up(more, results, accuracies)
    return results


@pytest.fixture(scope="module")
def whole(compared) -> str:
    """The document about them."""
    return render_document(made(compared))


def test_with_no_run_it_claims_nothing(tmp_path):
    whole = render_document(made(tmp_path / "results"))
    assert whole.count("not run") > 50
    assert not re.search(r"\d\d\.\d\d ±", whole)
    assert f"Not run: {', '.join(METHODS)}." in whole
    assert whole.count("\n| FedAvg |  | not run |") == 2, "under both skews"
    assert "| 1 | field-published, Dirichlet 0.1, seed 0 | 0 of 8 |" in whole
    assert "| 3 | field, Dirichlet 0.1, seed 0 | waits for steps before it |" in whole
    assert "![" not in whole


def test_a_method_has_its_setting_scores_costs_and_command(whole):
    strong = whole.split("### All methods")[1]
    start = line(strong, "FedSAM", "radius = 0.03")
    assert "| **85.10 ± 0.10** | 84.00 ± 0.00 | 3 | 0 | 2.1 | 12 min | `fedfm run " in start
    command = shlex.split(start.split("`")[1])
    assert Path(command[2]).name == "config.toml"
    lone = line(strong, "FedETF", "lr = 0.01")
    assert "| 78.00 | 77.00 | 1 |" in lone


def test_in_short_says_who_leads_and_who_is_not_told_apart(whole):
    first = line(whole, "all: 4 rounds", "FedSAM", "85.10 (3 seeds)")
    assert first.endswith("| none |")
    assert "Not run: FedAvg" in whole, "of Dirichlet 0.6"


def test_published_numbers_stand_beside_ours(whole):
    row = line(whole, "CIFAR-10, 10%-100", "Dirichlet 0.1", "FedDyn", "78.96", "80.00", "+1.04")
    assert "| 78.00 | 4 min |" in row
    assert "| Dirichlet 0.6 | FedDyn | 84.22 | not run |" in whole


def test_the_tuning_is_there_with_what_was_chosen(whole):
    row = line(whole.split("## Tuning")[1], "FedDyn")
    assert "**alpha = 0.01 (52.00)**; alpha = 0.03 (50.00)" in row
    assert row.endswith("| alpha = 0.01, an end of the range |")


def test_pictures_lie_beside_it_and_a_discussion_is_kept(compared):
    document = made(compared)
    document.path.parent.mkdir()
    document.path.with_name("comparison-discussion.md").write_text("What *we* make of it.\n")
    written = write_document(document)
    assert [path.name for path in written] == ["comparison.md", "comparison-dirichlet-0.1.png"]
    text = document.path.read_text()
    assert "## Discussion\n\nWhat *we* make of it." in text
    assert "](comparison-dirichlet-0.1.png)" in text
    assert "comparison-dirichlet-0.6.png" not in text


def test_runs_of_other_settings_are_not_shown(compared):
    others = render_document(made(compared, ("weight_decay=0.1",)))
    assert others.count("\n| FedSAM |  | not run |") == 2, "under both skews"


def check_summary(results: Path, summary: Summary) -> None:
    """Recompute the scores and the traffic of a run from its rounds."""
    rounds = read_rounds(results / summary.folder)
    tested = [each["test_accuracy"] for each in rounds]
    if summary.config["training"]["server_validation"]:
        validated = [each["val_accuracy"] for each in rounds]
        best = validated.index(max(validated))
        assert (summary.best_round, summary.val_accuracy) == (best + 1, validated[best])
    else:
        best = len(rounds) - 1
    assert summary.test_accuracy == tested[best]
    assert summary.metrics["last_test_accuracy"] == tested[-1]
    assert summary.metrics["best_test_accuracy"] == max(tested)
    for name in ("bytes_up", "bytes_down", "floats_up", "floats_down"):
        assert summary.totals[name] == sum(each[name] for each in rounds)


def test_scores_of_real_runs_follow_from_their_rounds(tmp_path):
    """A small comparison from end to end: tuned on the server's images, then compared."""
    results = tmp_path / "results"
    learning = ("model.stem=cifar", "model.width=4", "lr=0.05", "executor=stacked")
    held_out, skew = (*HELD_OUT, *learning), "Dirichlet 0.1"
    assert run_step(ComparisonStep("field-tune", ["FedDyn"]), results, held_out) == 4
    compared = ComparisonStep("field", ["FedDyn", skew], seeds=(0, 1))
    assert run_step(compared, results, held_out) == 1, "the first seed has been run for the choice"
    published = ComparisonStep("field-published", ["FedDyn", skew])
    assert run_step(published, results, (*TINY, *learning)) == 1
    summaries = Store(results).summaries()
    for summary in summaries:
        assert read_summary(results / summary.folder, results).metrics == summary.metrics
        check_summary(results, summary)
    assert len({summary.test_accuracy for summary in summaries}) > 3, "they learn, each its own"
    (again,) = [summary for summary in summaries if summary.seed == 1]
    both = {s.seed: s.test_accuracy for s in summaries if s.digest == again.digest}
    strong = render_document(made(results, held_out)).split("### All methods")[1]
    start = line(strong, "FedDyn")
    assert f"| {50 * sum(both.values()):.2f} ± " in start


def load_committed() -> ComparisonDocument:
    """The committed document, made again from what its command names."""
    path = Path("docs/comparison.md")
    command = re.search(r"Generated by `fedfm compare --no-run (.*)`", path.read_text())
    assert command
    options = shlex.split(command[1])
    pairs = list(zip(options[::2], options[1::2], strict=True))
    changes = read_settings(Path(value) for name, value in pairs if name == "--with")
    words = [word for pair in pairs if pair[0] == "--with" for word in pair]
    return make_document(path, Path(dict(pairs)["--results"]), changes, words)


def test_the_committed_document_is_what_the_committed_results_give(monkeypatch):
    monkeypatch.chdir(ROOT)
    committed = load_committed()
    assert render_document(committed) == committed.path.read_text()
    for column, rows in committed.rows.items():
        assert committed.picture(column).exists() == bool(rows)


def test_the_committed_results_follow_from_their_rounds():
    results = ROOT / "results" / "field"
    for summary in Store(results).summaries():
        check_summary(results, summary)
        assert json.loads((results / summary.folder / "machine.json").read_text())["name"]
