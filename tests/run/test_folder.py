"""Run folders: a run that stops anywhere goes on as if it had not, and no run harms another."""

import json
import re
import shutil
import tomllib
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedfm import FedAvg, FedFM, FedFMLite, Partition, Piece, Result, Training, UserError, simulate
from fedfm.config import Config, make_config
from fedfm.core.checkpoint import Damaged, load_checkpoint
from fedfm.methods import PIECES
from fedfm.models import default_options
from fedfm.run.folder import list_differences
from fedfm.run.records import RoundRecord
from fedfm.run.runner import run_configs
from fedfm.run.simulation import Simulation
from fedfm.verify.fixtures import make_images, make_network
from tests.folders import FullDisk, PowerFailure, contents, failing, lines, summary, timeless

ROUNDS = 4
PROTOCOL = Training(clients=4, rounds=ROUNDS, participation=0.5, epochs=1, batch_size=4)
METHODS: dict[str, Piece] = {name: piece() for name, piece in PIECES.items()} | {
    "fedfm": FedFM(start_round=1),
    "fedfm-lite with client state": FedFMLite(start_round=1, models_every=2),
}
FEW = ("fedavg", "scaffold", "ditto", "ccvr", "fedfm", "fedfm-lite with client state")
"""Those that are stopped in every round; `fedfm verify` does so with all."""
LITE = METHODS["fedfm-lite with client state"]


class Stop(Exception):
    """Ends a run from outside."""


def run(out: Path, piece: Piece = LITE, *, resume: bool = False, **options) -> Result:
    return simulate(
        make_network("mlp", hidden=[8], norm="batch"),
        make_images(),
        piece,
        **{"partition": Partition("iid"), "training": PROTOCOL, "executor": "loop", **options},
        out=out,
        resume=resume,
    )


def stopped_after(out: Path, round: int, piece: Piece = LITE, **options) -> Path:
    """A run that ended after so many rounds."""

    def stop(record: RoundRecord) -> None:
        if record.round == round:
            raise Stop

    with pytest.raises(Stop):
        run(out, piece, watch=stop, **options)
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, Path]:
    """Runs that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    for name, piece in METHODS.items():
        run(folder / name, piece)
    return {name: folder / name for name in METHODS}


@pytest.mark.parametrize(
    ("method", "round"),
    [*((name, 2) for name in METHODS), *((name, r) for name in FEW for r in (1, 3, ROUNDS))],
)
def test_a_run_stopped_after_any_round_ends_as_if_it_had_not(tmp_path, whole, method, round):
    stopped_after(tmp_path / "run", round, METHODS[method])
    run(tmp_path / "run", METHODS[method], resume=True)
    assert timeless(tmp_path / "run") == timeless(whole[method])


def test_a_run_stopped_after_every_round_ends_as_if_it_had_not(tmp_path, whole):
    def stop(record: RoundRecord) -> None:
        raise Stop

    for _ in range(ROUNDS):
        with pytest.raises(Stop):
            run(tmp_path / "run", resume=True, watch=stop)
    run(tmp_path / "run", resume=True)
    assert timeless(tmp_path / "run") == timeless(whole["fedfm-lite with client state"])


def test_only_the_rounds_that_are_left_are_run(tmp_path):
    stopped_after(tmp_path / "run", 3)
    seen: list[int] = []
    result = run(tmp_path / "run", resume=True, watch=lambda record: seen.append(record.round))
    assert seen == [4]
    assert [record.round for record in result.rounds] == [1, 2, 3, 4]


def test_clients_that_kept_their_models_find_them_in_the_checkpoint(tmp_path):
    loaded = load_checkpoint(stopped_after(tmp_path / "run", 1) / "checkpoint")
    assert loaded is not None
    assert len(loaded[0]["state"]["clients"]) == 2


@pytest.mark.parametrize("problem", [PowerFailure, FullDisk])
def test_whatever_touch_of_the_disk_fails_the_resumed_run_ends_as_if_it_had_not(
    monkeypatch, tmp_path, problem
):
    short = replace(PROTOCOL, rounds=2)
    with failing(monkeypatch, 10**9, problem) as touches:
        run(tmp_path / "whole", training=short)
    assert touches() > 30
    for step in range(1, touches() + 1):
        out = tmp_path / str(step)
        with failing(monkeypatch, step, problem), pytest.raises(problem):
            run(out, training=short)
        run(out, training=short, resume=True)
        assert timeless(out) == timeless(tmp_path / "whole"), f"step {step}"


def test_a_finished_run_is_resumed_without_a_change(tmp_path):
    first = run(tmp_path / "run")
    before = contents(tmp_path / "run")
    again = run(tmp_path / "run", resume=True, watch=lambda record: pytest.fail("a round was run"))
    assert contents(tmp_path / "run") == before
    assert again.rounds == first.rounds
    assert again.test_accuracy == first.test_accuracy


def test_resuming_where_nothing_is_starts_a_run(tmp_path, whole):
    run(tmp_path / "run", FedAvg(), resume=True)
    assert timeless(tmp_path / "run") == timeless(whole["fedavg"])


def test_the_folder_agrees_with_the_result(tmp_path):
    result = run(tmp_path / "run")
    assert lines(tmp_path / "run") == [record.as_dict() for record in result.rounds]
    found = summary(tmp_path / "run")
    assert found["best_round"] == result.best.round
    assert found["test_accuracy"] == result.test_accuracy
    assert found["totals"].items() >= result.totals.as_dict().items()
    assert {path.name for path in (tmp_path / "run" / "checkpoint").iterdir()} == {
        "manifest.json",
        f"state-{ROUNDS:06d}.safetensors",
        f"best-{result.best.round:06d}.safetensors",
    }
    kept = load_file(tmp_path / "run" / "model.safetensors")
    best = {**result.best.model.params, **result.best.model.buffers}
    assert kept.keys() == best.keys()
    assert all(torch.equal(kept[name], value) for name, value in best.items())


def test_the_recorded_config_has_everything_resolved(tmp_path):
    """Also what the file, the model and the method leave to their defaults."""
    training = {"clients": 4, "rounds": 1, "epochs": 1}
    simulate({"name": "mlp"}, "digits", "fedprox", training=training, out=tmp_path / "run")
    recorded = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert recorded["model"] == {"name": "mlp"} | default_options("mlp")
    assert recorded["method"] == {"fedprox": {"mu": 0.01}}
    few = asdict(Training(clients=4, rounds=1, epochs=1))
    wanted = {k: v for k, v in few.items() if v is not None}
    assert recorded["training"] == json.loads(json.dumps(wanted))
    assert recorded["metrics"] == ["accuracy"]
    assert recorded["partition"] == asdict(Partition())
    optional = {"privacy", "code"}
    assert recorded.keys() == Config.model_fields.keys() - optional


# --- Folders that are not this run's ------------------------------------------------------------


def refused(
    out: Path, match: str, piece: Piece = LITE, *, error: type[UserError] = UserError, **options
) -> str:
    """The message with which a run into a folder is refused, which stays as it is."""
    before = contents(out) if out.is_dir() else out.read_bytes()
    with pytest.raises(error, match=match) as caught:
        run(out, piece, **options)
    assert (contents(out) if out.is_dir() else out.read_bytes()) == before
    return str(caught.value)


def test_a_folder_with_a_run_is_not_written_over(tmp_path):
    run(tmp_path / "run")
    refused(tmp_path / "run", "already", FedAvg())
    refused(tmp_path / "run", "already")


def test_a_run_of_another_config_is_refused_with_the_keys_and_both_values(tmp_path):
    stopped_after(tmp_path / "run", 2)
    other = replace(PROTOCOL, rounds=6, batch_size=8)
    message = refused(tmp_path / "run", r"training\.rounds", resume=True, seed=5, training=other)
    assert message.endswith(
        " seed (there 0, here 5); training.batch_size (there 4, here 8); "
        "training.rounds (there 4, here 6)"
    )


def test_a_run_of_another_method_is_refused(tmp_path):
    run(tmp_path / "run", FedAvg())
    refused(tmp_path / "run", r"method\.fedfm \(there None, here \{", FedFM(), resume=True)


def test_a_run_that_was_begun_with_other_inputs_is_refused(tmp_path):
    stopped_after(tmp_path / "run", 2)
    other = make_images()
    other.train.inputs[0, 0] += 1
    with pytest.raises(UserError, match=r"data\.digest"):
        simulate(
            make_network("mlp", hidden=[8], norm="batch"), other, LITE,
            partition=Partition("iid"), training=PROTOCOL, executor="loop",
            out=tmp_path / "run", resume=True,
        )  # fmt: skip
    config = make_config(LITE, partition=Partition("iid"), training=PROTOCOL, executor="loop")
    networks, outs = [make_network("mlp", hidden=[8], norm="batch")], [tmp_path / "named"]
    run_configs([config], outs=outs, data=make_images(), networks=networks)
    with pytest.raises(UserError, match=r"/named\b.*\bdata\b"):
        run_configs([config], outs=outs, data=other, networks=networks, resume=True)


def test_a_run_that_recorded_the_old_name_of_its_executor_is_resumed(tmp_path, whole):
    out = stopped_after(tmp_path / "run", 2, FedAvg(), executor="stacked")
    for file in (out / "config.toml", out / "machine.json"):
        text = file.read_text()
        assert '"stacked"' in text
        file.write_text(text.replace('"stacked"', '"lanes"'))
    run(out, FedAvg(), executor="threads", resume=True)
    assert len(lines(out)) == ROUNDS


def test_what_came_out_of_a_run_is_not_run_over(tmp_path):
    run(tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoint")
    refused(tmp_path / "run", r"/run\b.*checkpoint", resume=True)


def test_a_deployment_is_not_gone_on_with_as_a_simulation(tmp_path):
    stopped_after(tmp_path / "run", 2)
    (tmp_path / "run/machine.json").unlink()
    refused(tmp_path / "run", r"/run\b.*`fedfm serve`", resume=True)


def test_a_folder_belongs_to_one_process_at_a_time(tmp_path):
    def another(record: RoundRecord) -> None:
        if record.round == 2:
            run(tmp_path / "run", resume=True)

    with pytest.raises(UserError, match=r"/run\b.*process"):
        run(tmp_path / "run", watch=another)
    run(tmp_path / "run", resume=True)
    assert len(lines(tmp_path / "run")) == ROUNDS


def test_a_folder_is_refused_before_anything_takes_time(tmp_path, monkeypatch):
    (tmp_path / "thesis.txt").write_text("ten years")
    monkeypatch.setattr(Simulation, "__init__", lambda *_: pytest.fail("was set up"))
    refused(tmp_path, "not empty")


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_with_other_things_is_refused(tmp_path, resume):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("ten years")
    refused(tmp_path / "mine", "/mine.*not empty", resume=resume)


def test_a_file_is_not_taken_for_a_folder(tmp_path):
    (tmp_path / "mine").write_text("ten years")
    refused(tmp_path / "mine", r"/mine\b.*\bfile\b")


def test_an_empty_folder_is_taken(tmp_path, whole):
    run(tmp_path, FedAvg())
    assert timeless(tmp_path) == timeless(whole["fedavg"])


def test_a_run_killed_while_it_wrote_its_config_starts_again(tmp_path, whole):
    (tmp_path / "config.toml.partial").write_text("seed =")
    run(tmp_path, FedAvg(), resume=True)
    assert timeless(tmp_path) == timeless(whole["fedavg"])


DAMAGE = {
    "config.toml": lambda path: path.write_text("seed = = 3"),
    "rounds.jsonl cut off": lambda path: path.write_text(path.read_text()[:400]),
    "rounds.jsonl a line short": lambda path: path.write_text(path.read_text().split("\n")[0]),
    "rounds.jsonl of other lines": lambda path: path.write_text('{"a": 1}\n' * 9),
    "rounds.jsonl missing": lambda path: path.unlink(),
    "checkpoint/state-000002.safetensors": lambda path: path.write_bytes(b"?"),
    "checkpoint/manifest.json": lambda path: path.write_text("{"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_run_is_refused_in_words(tmp_path, what):
    out = stopped_after(tmp_path / "run", 2)
    DAMAGE[what](out / what.split()[0])
    refused(out, re.split("[/ ]", what)[0], error=Damaged, resume=True)


def test_differences_are_named_by_their_full_keys():
    old = {"seed": 0, "training": {"lr": 0.1, "rounds": 3}, "method": {"fedavg": {}}}
    new = {"seed": 0, "training": {"lr": 0.2, "rounds": 3}, "method": {"fedfm": {"strength": 1}}}
    assert list(list_differences(old, old)) == []
    assert list(list_differences(old, new)) == [
        "method.fedavg (there {}, here None)",
        "method.fedfm (there None, here {'strength': 1})",
        "training.lr (there 0.1, here 0.2)",
    ]


def test_a_run_of_a_piece_whose_source_has_changed_is_refused(tmp_path):
    @dataclass(frozen=True)
    class Mine(Piece):
        name = "mine"

    run(tmp_path / "run", Mine())
    run(tmp_path / "run", Mine(), resume=True)

    @dataclass(frozen=True)
    class Changed(Piece):
        name = "mine"

    refused(tmp_path / "run", r"code\.mine", Changed(), resume=True)
    run(tmp_path / "known", FedAvg())
    assert "[code]" not in (tmp_path / "known" / "config.toml").read_text()


def test_a_failure_in_these_tests_harms_no_file_that_was_only_read(tmp_path, monkeypatch):
    """Such a file may belong to an installed package."""
    read, written = tmp_path / "read", tmp_path / "written"
    read.write_text("x" * 100)
    with failing(monkeypatch, 3, FullDisk):
        written.write_text(read.read_text().replace("x", "y"))
        with pytest.raises(FullDisk):
            read.read_text()
    assert (read.stat().st_size, written.stat().st_size) == (100, 50)
