from html import unescape
from pathlib import Path

from fedfm.grid.store import read_rounds
from tests.cli.tools import TINY
from tests.report.runs import write_run

METHOD = '''
from fedfm.methods import PIECES, Piece


class Mine(Piece):
    """FedAvg under another name."""

    name = "mine"


PIECES["mine"] = Mine
'''


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


def test_the_command_of_the_report_repeats_a_run_of_ones_own_method(command):
    Path("mine.py").write_text(METHOD)
    changes = [*TINY, "--set", "rounds=2", "--set", "method=mine"]
    assert command("--methods", "mine.py", "run", "digits", *changes, "--out", "runs/one").code == 0
    assert command("report", "runs").code == 0
    page = unescape(Path("report.html").read_text())
    words = page.split('<code class="command">')[1].split("</code>")[0].split()
    Path("my.toml").write_text(page.split('<pre tabindex="0">')[1].split("</pre>")[0])
    words[words.index("FILE")] = "mine.py"
    assert command(*words[1:], "--out", "runs/two").code == 0
    first, second = (read_rounds(Path("runs") / name) for name in ("one", "two"))
    assert [each["test_accuracy"] for each in first] == [each["test_accuracy"] for each in second]
