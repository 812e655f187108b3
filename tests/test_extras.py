"""The package without its extras: what is optional is needed only where it is used."""

import subprocess
import sys

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
from fedfm.cli import main
main()
"""


def fedfm(*words, folder):
    """The command line where no extra is installed."""
    command = [sys.executable, "-c", WITHOUT, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_a_run_needs_none_of_them(tmp_path):
    quick = ("rounds=1", "epochs=1", "method=fedfm", "model.name=mlp")
    settings = [word for setting in quick for word in ("--set", setting)]
    done = fedfm("run", "digits", *settings, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("summary.json"))


def test_privacy_names_the_extra_that_it_needs_before_the_first_round(tmp_path):
    done = fedfm("run", "digits", "--set", "privacy.noise=1.0", folder=tmp_path)
    assert done.returncode == 2
    assert "[privacy] needs an accountant: pip install '.[privacy]'" in done.stderr
    assert "round 1" not in done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_search_names_the_extra_that_it_needs_before_the_first_run(tmp_path):
    done = fedfm("sweep", "digits", "--set", "lr=0.01..0.1", "--search", "3", folder=tmp_path)
    assert done.returncode == 2
    assert "a search needs Optuna: pip install '.[search]'" in done.stderr
    assert not list(tmp_path.iterdir())


def test_keys_name_the_extra_that_they_need(tmp_path):
    done = fedfm("keys", "made", "--server", "localhost", "--client", "a", folder=tmp_path)
    assert done.returncode == 2
    assert "pip install '.[flower]'" in done.stderr
    assert "Traceback" not in done.stderr


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
