"""The package without its extras: what is optional is needed only where it is used."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedfm.cli.join import join
from fedfm.cli.serve import serve
from fedfm.core.errors import UserError

EXTRAS = {
    "cryptography",
    "dp_accounting",
    "flwr",
    "mlflow",
    "optuna",
    "pandas",
    "polars",
    "prometheus_client",
    "pyarrow",
    "ray",
    "selenium",
    "tensorboard",
    "triton",
}
WITHOUT = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
import json, os
from contextlib import redirect_stderr
from pathlib import Path
from fedfm.cli import main

for name, words in json.loads(sys.argv[1]).items():
    folder = Path(name).absolute()
    folder.mkdir()
    os.chdir(folder)
    sys.argv = ["fedfm", *words]
    with folder.with_suffix(".txt").open("w") as said, redirect_stderr(said):
        try:
            main()
        except SystemExit as left:
            folder.with_suffix(".code").write_text(str(left.code))
    os.chdir(folder.parent)
"""
COMMANDS = {
    "keys": "keys made --server localhost --client a",
    "search": "sweep digits --set lr=0.01..0.1 --search 3",
    "privacy": "run digits --set privacy.noise=1.0",
    "run": "run digits --set rounds=1 --set epochs=1 --set method=fedfm --set model.name=mlp",
}


@pytest.fixture(scope="module")
def without(tmp_path_factory) -> Path:
    """A folder for each command, its errors and its exit code: one process without any extra."""
    folder = Path(tmp_path_factory.mktemp("without"))
    words = json.dumps({name: line.split() for name, line in COMMANDS.items()})
    command = [sys.executable, "-c", WITHOUT, words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


def outcome(folder: Path, name: str) -> tuple[int, str]:
    """The exit code of a command, and what it wrote to standard error."""
    return int((folder / f"{name}.code").read_text()), (folder / f"{name}.txt").read_text()


def test_a_run_needs_none_of_them(without):
    code, errors = outcome(without, "run")
    assert code == 0, errors
    assert list((without / "run").rglob("summary.json"))


def test_privacy_names_the_extra_that_it_needs_before_the_first_round(without):
    code, errors = outcome(without, "privacy")
    assert code == 2
    assert "[privacy] needs an accountant: pip install '.[privacy]'" in errors
    assert "round 1" not in errors
    assert not [path for path in (without / "privacy").rglob("*") if path.is_file()]


def test_a_search_names_the_extra_that_it_needs_before_the_first_run(without):
    code, errors = outcome(without, "search")
    assert code == 2
    assert "a search needs Optuna: pip install '.[search]'" in errors
    assert not list((without / "search").iterdir())


def test_keys_name_the_extra_that_they_need(without):
    code, errors = outcome(without, "keys")
    assert code == 2
    assert "pip install '.[flower]'" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    "start",
    [
        lambda: serve("digits"),
        lambda: join("digits", "127.0.0.1:9092", "a", "share:0/2"),
    ],
)
def test_a_deployment_names_the_extra_that_it_needs_first(start, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"pip install '\.\[flower\]'"):
        start()
    assert not list(tmp_path.iterdir())
