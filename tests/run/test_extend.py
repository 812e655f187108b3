"""More rounds: an extended run is the run that had them from the start, or it is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedfm import FedAvg, FedFM, FedFMLite, Piece, Result, Training, UserError, simulate
from fedfm.methods import Scaffold
from fedfm.run.extend import ANCESTRY
from fedfm.verify.fixtures import make_images
from tests.folders import FullDisk, PowerFailure, contents, failing, timeless
from tests.run.test_folder import METHODS, Stop

SHORT, LONG = 4, 8
TRAINING = Training(clients=4, rounds=SHORT, participation=0.5, epochs=1, batch_size=32)
LITE = FedFMLite(start_round=1, models_every=2)
CHANGES: dict[str, dict[str, Any]] = {
    "client states on disk": {"client_states": "disk"},
    "a checkpoint every three rounds": {"checkpoint_every": 3},
    "an evaluation every two rounds": {"training": replace(TRAINING, evaluate_every=2)},
    "AdamW at a decaying rate": {
        "training": replace(TRAINING, optimizer="adamw", lr_schedule="exponential", lr_gamma=0.8)
    },
    "clients by coins": {"training": replace(TRAINING, sampling="coin")},
    "augmentation": {"data": {"name": "digits", "augment": {"rotation": 0.5}}},
    "privacy": {"method": FedAvg(), "privacy": {"noise": 0.1, "clip": 1.0}},
    "the fastest executor": {"executor": "auto"},
}


def run(out: Path, rounds: int = SHORT, method: Piece = LITE, extend: Path | None = None,
        **options) -> Result:  # fmt: skip
    training = replace(options.pop("training", TRAINING), rounds=rounds)
    known = {"data": "digits", "method": method, "executor": "loop", **options}
    model = {"name": "mlp", "hidden": [8], "norm": "batch"}
    return simulate(model, partition={"kind": "iid"}, training=training, out=out, extend=extend,
                    **known)  # fmt: skip


def without_ancestry(folder: Path) -> dict[str, Any]:
    return {name: part for name, part in timeless(folder).items() if name != ANCESTRY}


def assert_extended_as_from_the_start(folder: Path, **options) -> None:
    parent, new, whole = folder / "parent", folder / "new", folder / "whole"
    run(parent, **options)
    before = contents(parent)
    extended = run(new, LONG, extend=parent, **options)
    chosen = json.loads((parent / "machine.json").read_text())["executor"]
    straight = run(whole, LONG, **options | {"executor": chosen})
    assert [replace(r, seconds=0) for r in extended.rounds] == [
        replace(r, seconds=0) for r in straight.rounds
    ]
    files, expected = without_ancestry(new), timeless(whole)
    if options.get("executor") == "auto":  # what is fastest may change, so it is set for `whole`
        assert files.pop("config.toml") != expected.pop("config.toml")
    assert files == expected
    assert contents(parent) == before


KEEPING = (
    *("fedavg", "fedadam", "fedacg", "scaffold", "feddyn", "fedsmoo", "moon", "fedproto", "fedfm"),
    *("fedfm-lite with client state", "fedrep", "ditto"),
)
"""Methods that differ in what they keep from round to round; every method is resumed, too."""


@pytest.mark.parametrize("method", KEEPING)
def test_an_extended_run_is_bit_for_bit_the_run_with_all_rounds(tmp_path, method):
    small = {"data": make_images(), "training": replace(TRAINING, batch_size=4)}
    assert_extended_as_from_the_start(tmp_path, method=METHODS[method], **small)


@pytest.mark.parametrize("name", CHANGES)
def test_so_it_is_with_other_settings(tmp_path, name):
    assert_extended_as_from_the_start(tmp_path, **CHANGES[name])


def test_a_method_may_begin_after_the_first_run_has_ended(tmp_path):
    assert_extended_as_from_the_start(tmp_path, method=FedFM(start_round=6))


def test_an_extended_run_can_be_extended_and_names_its_ancestors(tmp_path):
    (tmp_path / "further").mkdir()
    run(tmp_path / "one", 2)
    run(tmp_path / "two", 4, extend=tmp_path / "one")
    run(tmp_path / "further" / "three", 6, extend=tmp_path / "two")
    run(tmp_path / "whole", 6)
    three = tmp_path / "further" / "three"
    assert without_ancestry(three) == timeless(tmp_path / "whole")
    first, second = json.loads((three / ANCESTRY).read_text())
    assert (first["rounds"], second["rounds"]) == (2, 4)
    assert (three / first["folder"]).resolve() == tmp_path / "one"
    assert (three / second["folder"]).resolve() == tmp_path / "two"
    assert first["model"] != second["model"]
    assert first["config"] != second["config"]
    (older,) = json.loads((tmp_path / "two" / ANCESTRY).read_text())
    assert older | {"folder": ""} == first | {"folder": ""}


def test_an_extended_run_that_was_stopped_is_resumed_as_usual(tmp_path):
    def stop(record):
        if record.round == SHORT + 2:
            raise Stop

    run(tmp_path / "parent")
    with pytest.raises(Stop):
        run(tmp_path / "new", LONG, extend=tmp_path / "parent", watch=stop)
    run(tmp_path / "new", LONG, resume=True)
    run(tmp_path / "whole", LONG)
    assert without_ancestry(tmp_path / "new") == timeless(tmp_path / "whole")


@pytest.mark.parametrize("problem", [FullDisk, PowerFailure])
def test_a_folder_is_made_whole_or_not_at_all(tmp_path, monkeypatch, problem):
    parent = tmp_path / "parent"
    options: dict[str, Any] = {"method": Scaffold(), "client_states": "disk", "data": make_images()}
    run(parent, **options)
    run(tmp_path / "whole", LONG, **options)
    before, step, made = contents(parent), 0, False
    while not made:
        step, out = step + 3, tmp_path / f"new-{step}"
        with failing(monkeypatch, step, problem), pytest.raises(problem):
            run(out, LONG, extend=parent, **options)
        assert contents(parent) == before
        made = out.exists()
        again = {"resume": True} if made else {"extend": parent}
        if made or step == 3:
            run(out, LONG, **again, **options)
            assert without_ancestry(out) == timeless(tmp_path / "whole")
            assert not out.with_name(f"{out.name}.partial").exists()
    assert step > 6


def unfinished(parent: Path) -> None:
    (parent / "summary.json").unlink()


def deployed(parent: Path) -> None:
    (parent / "machine.json").unlink()


def merged(parent: Path) -> None:
    for file in (parent / "checkpoint").iterdir():
        file.unlink()
    (parent / "checkpoint").rmdir()


def no_manifest(parent: Path) -> None:
    (parent / "checkpoint" / "manifest.json").unlink()


def no_run(parent: Path) -> None:
    (parent / "config.toml").unlink()


def other_data(parent: Path) -> None:
    facts = json.loads((parent / "machine.json").read_text())
    (parent / "machine.json").write_text(json.dumps(facts | {"data": "another"}))


@pytest.mark.parametrize(
    ("harm", "words"),
    [(unfinished, "not finished"), (deployed, "deployment"), (merged, "checkpoint"),
     (no_manifest, "damaged"), (no_run, "no run"), (other_data, "other data")],
)  # fmt: skip
def test_a_folder_that_cannot_be_extended_is_refused(tmp_path, harm, words):
    run(tmp_path / "parent")
    harm(tmp_path / "parent")
    before = contents(tmp_path)
    with pytest.raises(UserError, match=words):
        run(tmp_path / "new", LONG, extend=tmp_path / "parent")
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [({"rounds": SHORT}, "4 rounds already"), ({"rounds": 2}, "4 rounds already"),
     ({"seed": 1}, "seed"), ({"training": replace(TRAINING, lr=0.5)}, "training.lr"),
     ({"method": FedAvg()}, "method"), ({"rounds": 7}, "models_every")],
)  # fmt: skip
def test_another_run_is_not_an_extension(tmp_path, options, words):
    run(tmp_path / "parent")
    before = contents(tmp_path)
    with pytest.raises(UserError, match=words):
        run(tmp_path / "new", extend=tmp_path / "parent", **{"rounds": LONG, **options})
    assert contents(tmp_path) == before


def test_a_last_evaluation_that_a_longer_run_would_not_make_is_refused(tmp_path):
    sparse: dict[str, Any] = {"training": replace(TRAINING, evaluate_every=3)}
    run(tmp_path / "parent", **sparse)
    with pytest.raises(UserError, match="evaluate_every"):
        run(tmp_path / "new", LONG, extend=tmp_path / "parent", **sparse)
    assert [each.name for each in tmp_path.iterdir()] == ["parent"]


def test_the_new_run_needs_a_folder_of_its_own(tmp_path):
    run(tmp_path / "parent")
    for out in (tmp_path / "parent", None):
        with pytest.raises(UserError):
            run(out, LONG, extend=tmp_path / "parent")  # type: ignore[arg-type]
    with pytest.raises(UserError):
        run(tmp_path / "new", LONG, extend=tmp_path / "parent", resume=True)
    with pytest.raises(UserError, match="no folder"):
        run(tmp_path / "new", LONG, extend=tmp_path / "nowhere")
    assert [each.name for each in tmp_path.iterdir()] == ["parent"]


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_a_schedule_over_all_rounds_is_refused(tmp_path, kind):
    """The first rounds of a longer run would have had other rates."""
    options: dict[str, Any] = {"training": replace(TRAINING, lr_schedule=kind)}
    run(tmp_path / "parent", **options)
    with pytest.raises(UserError, match=kind) as caught:
        run(tmp_path / "new", LONG, extend=tmp_path / "parent", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_a_method_that_edits_the_model_in_the_last_round_is_refused(tmp_path):
    run(tmp_path / "parent", method=METHODS["ccvr"])
    with pytest.raises(UserError, match="ccvr edits the model in the last round"):
        run(tmp_path / "new", LONG, method=METHODS["ccvr"], extend=tmp_path / "parent")
    assert not (tmp_path / "new").exists()
