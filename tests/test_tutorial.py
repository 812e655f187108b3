"""The tutorial runs, and computes what it says."""

import json
from pathlib import Path

import nbformat
from nbclient import NotebookClient

TUTORIAL = Path(__file__).parent.parent / "docs/tutorial.ipynb"
SUMMARY = """
import json
single = {"fedavg": fedavg, "fedfm": fedfm, "short": short}
handshakes = {name: result.totals.handshakes for name, result in single.items()}
losses = {name: result.rounds[0].train_loss for name, result in single.items()}
print(json.dumps({"accuracies": accuracies, "handshakes": handshakes, "losses": losses}))
"""


def test_it_is_stored_with_what_it_printed():
    cells = nbformat.read(TUTORIAL, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    outputs = [output for cell in code for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"stream", "display_data"}


def test_it_runs_and_computes_what_it_says(tmp_path):
    notebook = nbformat.read(TUTORIAL, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(SUMMARY))
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where).execute()
    computed = json.loads(notebook.cells[-1].outputs[0].text)
    assert computed["handshakes"] == {"fedavg": 10, "fedfm": 17, "short": 10}
    losses = computed["losses"]
    assert losses["fedavg"] == losses["fedfm"] != losses["short"]  # FedFM starts in round 4
    means = {name: sum(values) / 3 for name, values in computed["accuracies"].items()}
    assert set(means) == {"FedAvg", "FedFM", "ShortFeatures", "both"}
    assert min(means.values()) == means["FedAvg"]
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert (tmp_path / "runs/shortfeatures/summary.json").exists()
