"""A method in a file of the user's own, for every command and every process."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedfm import models, plugins
from fedfm.config import load_config
from fedfm.grid.identity import digest
from fedfm.methods import PIECES
from fedfm.metrics import METRICS
from fedfm.verify import CHECKS, suite
from tests.cli.tools import TINY, Command, sets, start

pytestmark = pytest.mark.usefixtures("measure_once")
GUIDE = Path(__file__).parents[2] / "docs" / "add-a-method.md"
RUN = ("run", "digits", *TINY, *sets("rounds=2", "method=gentleprox", "gentleprox.mu=0.2"))
REQUIRED = """
from dataclasses import dataclass
from fedfm.methods import PIECES, Piece

@dataclass(frozen=True)
class Needs(Piece):
    name = "needs"
    amount: float

PIECES["needs"] = Needs
"""
NETWORK = """
from torch import nn
from fedfm import models

def mine(shape, classes):
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.{}())
    return models.Split(body, nn.Linear(8, classes))

models.MODELS["mine"] = mine
"""


@pytest.fixture
def gentleprox(tmp_path, monkeypatch) -> Iterator[Path]:
    """The guide's example in a file; what it registers is forgotten after the test."""
    file = tmp_path / "methods of mine" / "gentleprox.py"
    file.parent.mkdir()
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    file.write_text(blocks[0])
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.setattr(plugins, "_loaded", set())
    before = dict(PIECES)
    yield file
    plugins.CODE_DIGESTS.clear()
    PIECES.clear()
    PIECES.update(before)


def test_every_command_knows_it(command: Command, gentleprox, tmp_path):
    given = ("--methods", str(gentleprox))
    assert "unknown method 'gentleprox'" in command(*RUN).err
    assert "one of your own: fedfm --methods FILE" in command(*RUN).err
    answer = command(*given, *RUN, "--out", str(tmp_path / "run"))
    assert answer.code == 0, answer.err
    assert "gentleprox: test accuracy" in answer.out + answer.err
    assert "gentleprox" in command(*given, "methods").out
    assert "gentleprox" in command(*given, "cost", "--model", "mlp").out


def test_processes_that_are_started_know_it(gentleprox, tmp_path, monkeypatch):
    """Their folder may be another one."""
    monkeypatch.chdir(gentleprox.parent)
    monkeypatch.setenv(plugins.VARIABLE, gentleprox.name)
    plugins.add_plugins([])
    assert os.environ[plugins.VARIABLE] == str(gentleprox)
    said = tmp_path / "said.txt"
    run = start("--methods", str(gentleprox), *RUN, "--out", str(tmp_path / "run"), said=said)
    run.join(60)
    assert run.exitcode == 0, said.read_text()


def test_other_code_is_another_experiment(command: Command, gentleprox, tmp_path, monkeypatch):
    given, folder = ("--methods", str(gentleprox)), str(tmp_path / "run")
    assert command(*given, *RUN, "--out", folder).code == 0
    assert command(*given, *RUN, "--out", folder, "--resume").code == 0
    before = load_config("digits", ["method=gentleprox"]).as_toml()
    gentleprox.write_text(gentleprox.read_text().replace("clamp(max=1)", "clamp(max=2)"))
    monkeypatch.setattr(plugins, "_loaded", set())
    answer = command(*given, *RUN, "--out", folder, "--resume")
    assert answer.code == 2
    assert "code.gentleprox" in answer.err
    after = load_config("digits", ["method=gentleprox"]).as_toml()
    assert digest(before) != digest(after)
    assert "code" not in load_config("digits").as_toml()


def test_another_network_in_a_file_of_ones_own_is_another_experiment(gentleprox, monkeypatch):
    monkeypatch.setattr(models, "MODELS", dict(models.MODELS))
    seen = []
    for layer in ("ReLU", "Tanh"):
        gentleprox.write_text(NETWORK.format(layer))
        monkeypatch.setattr(plugins, "_loaded", set())
        plugins.add_plugins([gentleprox])
        plugins.load_plugins()
        seen.append(load_config("digits", ["model.name=mine"]))
    assert [[*config.code] for config in seen] == [["model.mine"]] * 2
    assert digest(seen[0].as_toml()) != digest(seen[1].as_toml())
    assert not load_config("digits").code


def test_a_method_may_take_whatever_it_is_given(command: Command, gentleprox):
    """Only settings with a name need a default."""
    any_settings = "    def __init__(self, *settings, **more): ...\n    amount: float = 0.0\n"
    gentleprox.write_text(REQUIRED.replace("    amount: float\n", any_settings))
    answer = command("--methods", str(gentleprox), "methods")
    assert answer.code == 0, answer.err


def test_verifying_says_what_it_does_not_know(command: Command, gentleprox, monkeypatch):
    few = {name: CHECKS[name] for name in ("textbook: plain SGD", "finite", "zero strength")}
    monkeypatch.setattr(suite, "CHECKS", few)
    monkeypatch.setattr(suite, "MISTAKES", [])
    answer = command("--methods", str(gentleprox), "verify", "gentleprox")
    assert answer.code == 0, answer.out
    assert "the textbook does not have gentleprox" in answer.out
    assert "no textbook" not in command("verify", "fedper").out


def test_a_method_without_a_word_about_it_is_listed(command: Command, gentleprox):
    text = gentleprox.read_text()
    gentleprox.write_text(re.sub(r'    """A pull.*?"""\n', "    __doc__ = None\n", text))
    answer = command("--methods", str(gentleprox), "methods")
    assert answer.code == 0, answer.err
    assert "gentleprox" in answer.out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no such file"),
        ("raise SystemExit(3)", "does not run: SystemExit: 3"),
        ("import fedfm_nonsense", "does not run: ModuleNotFoundError"),
        ("this is no Python", "does not run: SyntaxError"),
        (REQUIRED, "give amount of 'needs' a default value"),
    ],
)
def test_a_file_that_is_none(command: Command, gentleprox, text, said):
    if text is None:
        gentleprox.unlink()
    else:
        gentleprox.write_text(text)
    answer = command("--methods", str(gentleprox), "methods")
    assert answer.code == 2
    assert said in " ".join(answer.err.split())
    assert str(gentleprox) in answer.err.replace("\n", "")


def test_the_workers_of_a_grid_know_it(command: Command, gentleprox, tmp_path):
    results = ("--results", str(tmp_path / "results"), "--jobs", "2")
    short = sets("method=gentleprox", "rounds=2")
    few = ("--quick", "--only", "FedAvg", "--only", "E = 1")
    answer = command("--methods", str(gentleprox), "table", "epochs", *few, *short, *results)
    assert answer.code == 0, answer.err
    lines = (tmp_path / "results" / "results.jsonl").read_text().splitlines()
    assert {json.loads(line)["method"] for line in lines} == {"gentleprox"}


METRIC = """
from dataclasses import dataclass
from fedfm.metrics import METRICS, Accuracy

@dataclass(frozen=True)
class Wrong(Accuracy):
    name = "{}"

    def value(self, total):
        return 1 - super().value(total)

METRICS["wrong"] = Wrong
"""


@pytest.fixture
def metric(tmp_path, monkeypatch) -> Iterator[Path]:
    """A file with a metric; what it registers is forgotten after the test."""
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.setattr(plugins, "_loaded", set())
    before = dict(METRICS)
    yield tmp_path / "mine.py"
    plugins.CODE_DIGESTS.clear()
    METRICS.clear()
    METRICS.update(before)


def test_a_metric_of_one_s_own(command: Command, metric, tmp_path):
    given = ("run", "digits", *TINY, *sets("rounds=2", "method=fedavg", "metrics=wrong"))
    assert "unknown metric 'wrong'" in command(*given).err
    metric.write_text(METRIC.format("wrong"))
    answer = command("--methods", str(metric), *given, "--out", str(tmp_path / "run"))
    assert answer.code == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["metrics"]["test"]["wrong"] == pytest.approx(1 - summary["test_accuracy"])
    assert [*load_config("digits", ["metrics=wrong"]).code] == ["metric.wrong"]
    assert not load_config("digits").code


def test_a_metric_is_registered_under_its_name(command: Command, metric):
    metric.write_text(METRIC.format("other"))
    answer = command("--methods", str(metric), "methods")
    assert answer.code == 2
    assert 'METRICS["other"]' in answer.err
