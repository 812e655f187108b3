"""Every number of the document, recomputed from the runs' files by a script without the product."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from fedfm.core.errors import UserError
from fedfm.grid.identity import digest
from fedfm.grid.recipe import expand_cells
from fedfm.paper.catalogue import load_recipe
from fedfm.paper.discussion import PLACEHOLDER, fill_discussion
from fedfm.paper.document import make_document
from fedfm.paper.evidence import Evidence
from fedfm.paper.plan import load_plan
from fedfm.paper.render import render_document
from tests.grid.results import result, store_of

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = [Path(__file__).with_name(name) for name in ("recompute.py", "recompute_costs.py")]
DOCUMENT = ROOT / "docs/reproduction.md"
TEXT = """\
FedFM has {main: FedFM / CIFAR-10 / NIID-1}, which is
{main: FedFM / CIFAR-10 / NIID-1 - FedAvg / CIFAR-10 / NIID-1}
more ({seeds main: FedFM / CIFAR-10 / NIID-1 - FedAvg / CIFAR-10 / NIID-1}; paper:
{paper main: FedFM / CIFAR-10 / NIID-1}).

- Not run: {main: MOON / CIFAR-10 / NIID-1}.
- NMI is {quality[nmi]: FedFM}.
"""

TOTALS = {"floats_up": 4000, "floats_down": 8000, "handshakes": 4, "seconds": 1.5}


def recompute(path: Path) -> tuple[dict[str, int], str]:
    """How many numbers of each kind were compared, and those that differ.

    The option -I keeps every path of the product from the scripts.
    """
    counts: dict[str, int] = {}
    differ = []
    for script in SCRIPTS:
        command = [sys.executable, "-I", str(script), str(path)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not run.stderr, run.stderr
        *lines, last = run.stdout.splitlines()
        differ += [line for line in lines if line]
        assert bool(run.returncode) == any(lines)
        counts |= json.loads(last)
    return counts, "\n".join(differ)


def test_the_scripts_use_nothing_of_the_product():
    product = re.compile(r"^\s*(?:import|from) (?:fedfm|tests|tools)", re.M)
    assert [script for script in SCRIPTS if product.search(script.read_text())] == []


def test_the_committed_documents_numbers_are_those_of_the_runs():
    counts, differ = recompute(DOCUMENT)
    assert differ == ""
    links = len(re.findall(r'\]\(#\S+ "', DOCUMENT.read_text()))
    assert counts["cell"] >= DOCUMENT.read_text().count('<a id="') > 300
    assert counts["claim"] + counts["discussion"] == links


@pytest.mark.parametrize(
    ("pattern", "instead", "what"),
    [
        (r"\| 67\.10 ± 1\.76 \|", "| 67.11 ± 1.76 |", "JPEG, main FedAvg"),
        (r"\| 67\.10 ± 1\.76 \|", "| 67.10 ± 1.44 |", "JPEG, main FedAvg"),
        (r"\[\+4\.97 ± 0\.35\]", "[+4.98 ± 0.35]", "claim, FedFM"),
        (r"1 seed: undecided", "1 seed: holds", "verdict, "),
        (r"\[72\.69\]\(", "[72.70](", "discussion, NIID-1 / FedFM"),
        (r"33,545 \(33,546\)", "33,546 (33,546)", "floats, MOON"),
        (r"are undecided, and", "are open, and", "count, "),
    ],
)
def test_a_wrong_number_is_found(tmp_path, pattern, instead, what):
    text, changes = re.subn(pattern, instead, DOCUMENT.read_text(), count=1)
    assert changes == 1
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").symlink_to(ROOT / "results")
    (tmp_path / "docs/reproduction.md").write_text(text)
    _, differ = recompute(tmp_path / "docs/reproduction.md")
    assert differ.startswith(what)


@pytest.fixture
def results(tmp_path) -> Path:
    """Three methods of Table II with three seeds, with the configs of the recipe."""
    accuracies = {"FedAvg": (66.0, 67.0, 69.0), "SCAFFOLD": (70.0, 71.0, 72.5)}
    accuracies |= {"FedFM": (72.0, 73.2, 74.0)}
    accuracies |= {"FedFM (uniform)": (72.0, 73.0, 73.7)}
    cells = {cell.title: cell for cell in expand_cells(load_recipe("main"))}
    uniform = {cell.title: cell for cell in expand_cells(load_recipe("anchors"))}
    runs = []
    for method, values in accuracies.items():
        cell = uniform.get(method) or cells[f"{method} / CIFAR-10 / NIID-1"]
        recipe = "anchors" if method in uniform else "main"
        for seed, value in enumerate(values):
            config = cell.resolved.with_seed(seed).as_toml()
            measures = {"nmi": value / 140, "silhouette": value / 1000}
            folder = f"runs/{digest(config)}-{seed}"
            changes = {"config": config, "recipe": recipe, "measures": measures, "folder": folder}
            runs.append(result(cell.labels, seed, value, totals=TOTALS, **changes))
    store = store_of(tmp_path / "results", runs)
    for run in runs:
        (store.folder / run.folder / "config.toml").write_text(tomli_w.dumps(run.config))
    return store.folder


def test_numbers_with_several_seeds_are_recomputed_too(results, tmp_path):
    """Intervals and verdicts of paired differences, with equivalence among them."""
    (tmp_path / "docs").mkdir()
    path = tmp_path / "docs/reproduction.md"
    path.with_name("reproduction-discussion.md").write_text(TEXT)
    path.write_text(render_document(make_document(path, results, (), ())))
    counts, differ = recompute(path)
    assert differ == ""
    assert counts["interval"] == counts["claim"] > 5
    assert "uniform and weighted anchors are comparable | -0.02 | [-0.17" in path.read_text()
    assert counts["discussion"] == 5


def test_the_discussion_leaves_out_what_was_not_run(results):
    evidence = Evidence.of(load_plan(), results)
    text = re.sub(r"\(#.*?\"\)", "", fill_discussion(TEXT, evidence, None))
    paragraph, item = text.split("\n\n")
    assert "has [73.07 ± 1.01], which is\n[+5.73]\nmore ([3 seeds]; paper:\n[72.89])" in paragraph
    assert item == "- NMI is [0.522 ± 0.007].\n"


@pytest.mark.parametrize("cell", ["{main: FedFN / CIFAR-10 / NIID-1}", "{mian: FedFM}"])
def test_a_cell_that_is_not_there_is_refused(results, cell):
    with pytest.raises(UserError, match="names a cell that is not there"):
        fill_discussion(cell, Evidence.of(load_plan(), results), None)


def test_the_discussion_has_no_number_that_is_not_taken_from_a_cell():
    """Settings apart, such as beta = 0.5: a typed result would go stale."""
    text = ROOT.joinpath("docs/reproduction-discussion.md").read_text()
    typed = PLACEHOLDER.sub("", text)
    settings = re.sub(r"(?:lambda|alpha|beta|mu) = [\d.]+(?:, .*)?", "", typed)
    assert len(PLACEHOLDER.findall(text)) > 50
    assert re.findall(r"\d+\.\d\d|\d+(?:\.\d+)? (?:percent|points)", settings) == []
