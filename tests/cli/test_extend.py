"""`fedfm extend`: more rounds for a finished run, in a new folder."""

import json

from tests.cli.tools import TINY
from tests.folders import contents, lines, timeless


def test_extend_gives_the_run_with_all_rounds_from_the_start(command, tmp_path):
    assert command("run", "digits", *TINY, "--set", "rounds=2", "--out", "short").code == 0
    answer = command("extend", "short", "--rounds", 5)
    assert answer.code == 0
    assert "files in short-5" in answer.out
    assert command("run", "digits", *TINY, "--set", "rounds=5", "--out", "whole").code == 0
    files = timeless(tmp_path / "short-5")
    (ancestor,) = json.loads(files.pop("ancestry.json"))
    assert files == timeless(tmp_path / "whole")
    assert (ancestor["folder"], ancestor["rounds"]) == ("../short", 2)


def test_the_result_for_programs_and_a_folder_of_ones_own(command):
    command("run", "digits", *TINY, "--set", "rounds=1", "--out", "short")
    answer = command("extend", "short", "--rounds", 2, "--out", "new/run", "--format", "json")
    summary = json.loads(answer.out)
    assert (summary["rounds"], summary["folder"]) == (2, "new/run")


def test_bad_input_is_one_line_and_nothing_is_written(command, tmp_path):
    command("run", "digits", *TINY, "--set", "rounds=2", "--out", "short")
    command("extend", "short", "--rounds", 3)
    before = contents(tmp_path)
    wrong = (
        ("nowhere", 5),
        ("short", 2),
        ("short", 3),
        ("short", 4, "--out", "short"),
        (tmp_path, 5),
    )
    for run, rounds, *more in wrong:
        answer = command("extend", run, "--rounds", rounds, *more)
        assert answer.code == 2, (run, rounds)
        assert answer.err.count("\n") == 1
        assert answer.err.startswith("fedfm: ")
    assert contents(tmp_path) == before


def test_a_killed_extension_goes_on_with_resume(command, tmp_path):
    command("run", "digits", *TINY, "--set", "rounds=2", "--out", "short")
    command("extend", "short", "--rounds", 3, "--out", "three")
    (tmp_path / "three" / "summary.json").unlink()
    assert command("run", "three", "--resume").code == 0
    assert [line["round"] for line in lines(tmp_path / "three")] == [1, 2, 3]
