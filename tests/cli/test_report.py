from pathlib import Path

from tests.cli.tools import TINY
from tests.report.invented import write_run


def test_a_report_about_real_runs(command):
    for method in ("fedavg", "fedfm"):
        changes = [*TINY, "--set", "rounds=2", "--set", f"method={method}"]
        assert command("run", "digits", *changes, "--out", f"runs/{method}").code == 0
    answer = command("report", "runs", "-o", "pages/mine.html", "--title", "Two methods")
    assert answer.code == 0, answer.err
    assert answer.out == "2 runs; report in pages/mine.html\n"
    assert answer.err == ""
    page = Path("pages/mine.html").read_text()
    assert "<h1>Two methods</h1>" in page
    assert "fedavg" in page


def test_what_is_left_out_is_said(command, tmp_path):
    write_run(tmp_path / "whole")
    (write_run(tmp_path / "half", seed=1) / "summary.json").unlink()
    answer = command("report", "whole", "half")
    assert answer.code == 0
    assert answer.out == "1 run; report in report.html\n"
    assert answer.err == "left out: half: not finished: it has no summary.json\n"


def test_no_runs_are_an_error(command, tmp_path):
    (tmp_path / "empty").mkdir()
    answer = command("report", "empty")
    assert answer.code == 2
    assert "no finished run in empty" in answer.err
    assert not Path("report.html").exists()


def test_a_folder_is_no_place_for_a_file(command, tmp_path):
    answer = command("report", write_run(tmp_path / "run"), "-o", tmp_path)
    assert answer.code == 2
    assert "is a folder" in answer.err
