"""Locks between processes, with and without the modules that platforms have for them."""

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from fedfm.core import locks

RUN_WITHOUT = """
import sys
import time
sys.modules["fcntl"] = None
import importlib, pkgutil
import fedfm, fedfm.cli, fedfm.grid, fedfm.run
for package in (fedfm.run, fedfm.grid, fedfm.cli):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if not module.name.endswith("ray_workers"):
            importlib.import_module(module.name)
sys.argv = ["fedfm", "run", "digits", "--out", "run"]
for change in ("rounds=2", "epochs=1", "model.name=mlp", "executor=loop"):
    sys.argv += ["--set", change]
fedfm.cli.main()
"""


class Msvcrt(SimpleNamespace):
    """Windows's module, for one process: it remembers which files hold a lock."""

    LK_NBLCK, LK_UNLCK = 2, 0

    def locking(self, file: int, mode: int, size: int) -> None:
        if mode == self.LK_UNLCK:
            self.held = False
        elif self.held:
            raise PermissionError(13, "Permission denied")
        else:
            self.held = True


@pytest.fixture(params=["fcntl", "msvcrt"])
def platform(request, monkeypatch):
    """Unix, or what stands in for Windows."""
    if request.param == "msvcrt":
        monkeypatch.setattr(locks, "_fcntl", None)
        monkeypatch.setattr(locks, "_msvcrt", Msvcrt(held=False))


@pytest.mark.usefixtures("platform")
def test_a_second_one_is_refused_until_the_first_has_ended(tmp_path):
    path = tmp_path / "file"
    with path.open("w+") as first, path.open("w+") as second:
        first.write("kept")
        with locks.lock(first, wait=False):
            with pytest.raises(BlockingIOError), locks.lock(second, wait=False):
                pass
            first.write(" as it was")
        with locks.lock(second, wait=True):
            pass
    assert path.read_text() == "kept as it was"


def test_waiting_on_windows_tries_again(tmp_path, monkeypatch):
    other = Msvcrt(held=True)
    monkeypatch.setattr(locks, "_fcntl", None)
    monkeypatch.setattr(locks, "_msvcrt", other)
    monkeypatch.setattr(time, "sleep", lambda seconds: setattr(other, "held", False))
    with (tmp_path / "file").open("w") as file, locks.lock(file, wait=True):
        assert other.held


def test_everything_but_deployment_works_without_fcntl(tmp_path):
    command = [sys.executable, "-c", RUN_WITHOUT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "summary.json").exists()
