"""How the command line starts: help, version, `python -m fedfm`, and Ctrl-C while importing."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer

from fedfm import __version__
from fedfm.cli.app import app
from fedfm.config import builtin_names
from fedfm.models import MODELS
from fedfm.run.tracking import SERVICES

GROUP = typer.main.get_command(app)
assert isinstance(GROUP, click.Group)
COMMANDS = {name: each.params for name, each in GROUP.commands.items()}
HEAVY = {"torch", "numpy", "pandas", "matplotlib", "sklearn", "scipy", "pydantic", "flwr", "ray"}
IMPORT_CHECK = f"""
import sys
from fedfm.cli import main

for words in [["--help"], *([name, "--help"] for name in {[*COMMANDS]})]:
    sys.argv = ["fedfm", *words]
    try:
        main()
    except SystemExit as left:
        assert left.code == 0, words
    imported = {HEAVY}.intersection(sys.modules)
    assert not imported, (words, imported)
"""


def python(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, with modules of the folder before all others."""
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path} | variables
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_option(command, name):
    answer = command(name, "--help")
    assert answer == command(name, "-h")
    assert (answer.code, answer.err) == (0, "")
    for parameter in COMMANDS[name]:
        assert parameter.opts[0] in answer.out


def test_help_names_every_command(command):
    answer = command("--help")
    assert answer.code == 0
    for name in COMMANDS:
        assert f" {name} " in answer.out


@pytest.mark.parametrize(
    ("name", "choices"), [("run", builtin_names()), ("run", SERVICES), ("cost", MODELS)]
)
def test_help_lists_the_choices(command, name, choices):
    """They are written down in it, so that it need not import what knows them."""
    for choice in choices:
        assert choice in command(name, "--help").out


def test_help_imports_nothing_heavy(tmp_path):
    """Not even where the environment names a plugin, which would."""
    done = python("-c", IMPORT_CHECK, folder=tmp_path, FEDFM_METHODS="mine.py")
    assert done.returncode == 0, done.stderr


def test_python_m_fedfm(tmp_path):
    done = python("-m", "fedfm", "--version", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"fedfm {__version__}\n"), done.stderr


@pytest.mark.parametrize("module", ["typer", "torch"])
def test_ctrl_c_while_importing_is_exit_code_130(tmp_path, module):
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt")
    done = python("-m", "fedfm", "methods", folder=tmp_path)
    assert done.returncode == 130
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["rnu"], "No such command 'rnu'. Did you mean 'run'?"),
        (["run"], "Missing argument 'CONFIG'"),
        (["run", "digits", "--frmat", "json"], "No such option: --frmat Did you mean --format?"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(command, tmp_path, wrong, words):
    answer = command(*wrong)
    assert answer.code == 2
    assert words in " ".join(answer.err.replace("│", " ").split())
    assert "Traceback" not in answer.err
    assert list(tmp_path.iterdir()) == []


def test_the_version(command):
    answer = command("--version")
    assert (answer.code, answer.out) == (0, f"fedfm {__version__}\n")
