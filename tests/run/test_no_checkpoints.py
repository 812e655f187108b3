"""Runs without checkpoints: nothing to resume, and the same results."""

from typing import Any

import pytest

from fedfm import Training, UserError, simulate
from fedfm.grid.budget import Budget
from fedfm.grid.store import read_rounds
from fedfm.grid.worker import JobStopped, Watch
from fedfm.run.folder import is_finished
from fedfm.run.records import RoundRecord

ARGUMENTS = "mlp", "digits", "scaffold"
FEW: dict[str, Any] = {
    "training": Training(clients=4, rounds=3, epochs=1, participation=0.5),
    "executor": "stacked",
    "checkpoint_every": 0,
}


@pytest.mark.parametrize("states", ["memory", "disk"])
def test_a_run_without_checkpoints_writes_the_rest(tmp_path, states):
    result = simulate(*ARGUMENTS, **FEW, client_states=states, out=tmp_path / "run")
    assert is_finished(tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint").exists()
    written = read_rounds(tmp_path / "run")
    assert [each["test_accuracy"] for each in written] == [r.test_accuracy for r in result.rounds]
    kept = [file.name[:13] for file in (tmp_path / "run").glob("clients/client-*")]
    assert len(kept) == len({*kept}), "states that were replaced are gone"
    assert bool(kept) == (states == "disk")


def test_a_finished_one_is_not_resumed_and_an_unfinished_one_starts_again(tmp_path):
    class Off(Exception):
        pass

    def stop(record: RoundRecord) -> None:
        if record.round == 2:
            raise Off

    with pytest.raises(Off):
        simulate(*ARGUMENTS, **FEW, out=tmp_path / "run", watch=stop)
    again = simulate(*ARGUMENTS, **FEW, out=tmp_path / "run", resume=True)
    plain = simulate(*ARGUMENTS, **FEW)
    assert [r.test_accuracy for r in again.rounds] == [r.test_accuracy for r in plain.rounds]
    with pytest.raises(UserError, match="without its checkpoint"):
        simulate(*ARGUMENTS, **FEW, out=tmp_path / "run", resume=True)


def test_a_grid_can_be_stopped_in_any_of_its_rounds():
    record = RoundRecord(1, 0.5, 0.4, 2.3, 0.1, 100, 100, 400, 400, 1)
    watch = Watch(1, 3, 0, Budget(), stop=lambda: True, on_round=None)
    with pytest.raises(JobStopped):
        watch(record)
    Watch(1, 3, 0, Budget(), stop=lambda: False, on_round=None)(record)
