"""The store: lines that are only ever added, also by several processes, and merged folders."""

import json
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from fedfm.config import load_config
from fedfm.core.errors import UserError
from fedfm.grid.identity import digest
from fedfm.grid.merge import merge
from fedfm.grid.store import FORMAT, Store
from tests.grid.grids import found, jobs_of, recipe, run
from tests.grid.results import result

ONE = result({"method": "FedAvg"}, seed=0, accuracy=50.0)


def test_the_least_number_of_clients_belongs_to_a_private_experiment():
    """It says how large the noise is; without privacy it is the machine's business."""
    for noise in (["privacy.noise=1.0"], []):
        few, many = (
            digest(load_config("digits", [*noise, f"deployment.minimum={n}"]).as_toml())
            for n in (2, 9)
        )
        assert (few == many) == (not noise)


def test_what_was_added_is_read(tmp_path):
    store = Store(tmp_path / "results")
    assert store.summaries() == []
    store.append([ONE])
    store.append([replace(ONE, seed=1)])
    assert store.summaries() == [ONE, replace(ONE, seed=1)]


def test_the_digest_is_about_what_is_run_only():
    plain = {"seed": 0, "threads": 1, "device": "cpu", "training": {"lr": 0.1}}
    assert digest(plain) == digest(plain | {"seed": 5, "threads": 2, "device": "cuda"})
    assert digest(plain) != digest(plain | {"training": {"lr": 0.2}})


def test_lines_that_cannot_be_read_are_named_and_the_rest_is_shown(tmp_path, caplog):
    store = Store(tmp_path)
    store.append([ONE])
    with store.path.open("a") as file:
        file.write(json.dumps(asdict(ONE) | {"format": FORMAT + 1}) + "\n")
        file.write("no JSON\n")
        file.write('{"format": 1}\n')
        file.write(json.dumps(asdict(replace(ONE, seed=1)) | {"later": "field"}) + "\n")
    assert store.summaries() == [ONE, replace(ONE, seed=1)]
    assert "line 2 is left out: format 2, this version reads 1" in caplog.text
    assert "line 3 is left out" in caplog.text
    assert "line 4 is left out" in caplog.text


def test_a_line_that_is_no_text_is_left_out_too(tmp_path, caplog):
    store = Store(tmp_path)
    store.append([ONE])
    with store.path.open("ab") as file:
        file.write(b'{"format": "\xff"}\n')
    assert store.summaries() == [ONE]
    assert "line 2 is left out" in caplog.text


def test_a_line_that_a_crash_left_open_spoils_no_other(tmp_path):
    store = Store(tmp_path)
    store.path.write_text('{"format": 1, "conf')
    store.append([ONE])
    assert store.summaries() == [ONE]


def _append_some(folder: Path, seed: int) -> None:
    for _ in range(20):
        Store(folder).append([replace(ONE, seed=seed, versions={"long": "x" * 5000})])


def test_processes_add_whole_lines(tmp_path):
    context = get_context("forkserver")
    writers = [context.Process(target=_append_some, args=(tmp_path, n)) for n in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    assert (
        sorted(each.seed for each in Store(tmp_path).summaries()) == [0] * 20 + [1] * 20 + [2] * 20
    )


# ---- merging -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """The results of two machines: each has a method, and both have a cell in common."""
    folder = tmp_path_factory.mktemp("machines")
    run(jobs_of(recipe(), only=("FedAvg",)), folder / "one")
    run(jobs_of(recipe(), only=("E = 1",)), folder / "other")
    return folder


def test_results_of_several_machines_come_together(machines, tmp_path):
    target = tmp_path / "results"
    first = merge(machines / "one", target)
    assert (first.results, first.runs) == (4, 4)
    second = merge(machines / "other", target)
    assert (second.results, second.runs) == (2, 2)
    again = merge(machines / "other", target)
    assert (again.results, again.runs) == (0, 0)
    assert len(found(target)) == 6
    for summary in found(target).values():
        there = {path.name for path in (target / summary.folder).iterdir()}
        assert {"config.toml", "rounds.jsonl", "summary.json"} <= there
        assert not {"checkpoint", "model.safetensors"} & there


def test_merged_results_are_not_run_again(machines, tmp_path):
    for name in ("one", "other"):
        merge(machines / name, tmp_path / "results")
    outcomes = run(jobs_of(recipe()), tmp_path / "results")
    assert [outcome.job.labels[0] for outcome in outcomes] == [
        {"method": "FedFM", "epochs": "E = 2"}
    ]


def test_models_come_on_request_also_later(machines, tmp_path):
    merge(machines / "one", tmp_path)
    merge(machines / "one", tmp_path, models=True)
    assert len(list(tmp_path.glob("runs/*/model.safetensors"))) == 4


def test_other_configs_and_other_outcomes_are_named(machines, tmp_path, caplog):
    run(jobs_of(recipe(), "lr=0.02", only=("FedAvg", "E = 1")), tmp_path / "here")
    merge(machines / "one", tmp_path / "here")
    assert "tiny FedAvg / E = 1, seed 0 has another config" in caplog.text
    caplog.clear()
    changed = Store(tmp_path / "changed")
    changed.append(replace(each, test_accuracy=0.5) for each in Store(machines / "one").summaries())
    merge(machines / "one", tmp_path / "changed")
    assert "here 0.5000; what is here stays" in caplog.text


def test_a_folder_without_a_finished_run_is_not_copied(machines, tmp_path, caplog):
    Store(tmp_path / "lines").append(Store(machines / "one").summaries())
    merged = merge(tmp_path / "lines", tmp_path / "results")
    assert (merged.results, merged.runs) == (4, 0)
    assert "holds no finished run" in caplog.text


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"/nothing.*results\.jsonl"):
        merge(tmp_path / "nothing", tmp_path)
    Store(tmp_path).append([ONE])
    with pytest.raises(UserError, match="itself"):
        merge(tmp_path, tmp_path)
