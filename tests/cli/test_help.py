"""How the command line starts: help, version, `python -m fedfm`, and Ctrl-C while importing."""

import os
import signal
import subprocess
import sys
import time
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
        preexec_fn=take_ctrl_c,
    )


def take_ctrl_c() -> None:
    """Let a new process take SIGINT, which a shell's background jobs ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


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


CALLBACK = """
class Thing: pass
thing = Thing()
reference = weakref.ref(thing, interrupt)
del thing
"""


@pytest.mark.parametrize(("loaded", "searched"), [("", False), ("import triton", True)])
def test_the_end_of_a_command_searches_for_garbage_only_for_triton(tmp_path, loaded, searched):
    (tmp_path / "triton.py").touch()
    last = "atexit.register(lambda: print(gc.get_freeze_count() == 0))"  # registered first
    code = f"import atexit, gc\n{last}\n{loaded}\nfrom fedfm.cli import main; main()"
    done = python("-c", code, "--version", folder=tmp_path)
    assert done.stdout.splitlines()[-1] == str(searched)


@pytest.mark.parametrize("module", ["typer", "torch"])
def test_ctrl_c_while_importing_is_exit_code_130(tmp_path, module):
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt")
    done = python("-m", "fedfm", "methods", folder=tmp_path)
    assert done.returncode == 130
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize("delay", [0, 0.02, 0.05, 0.1, 0.2, 0.3])
def test_ctrl_c_at_any_moment_of_the_start_prints_no_traceback(tmp_path, delay):
    """It takes longer than that to import torch."""
    code = "from fedfm.cli import main; print('go', flush=True); main()"
    command = [sys.executable, "-c", code, "methods"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=take_ctrl_c,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 130


@pytest.mark.parametrize("swallow", ["try: interrupt()\nexcept BaseException: pass", CALLBACK])
def test_ctrl_c_that_an_import_would_swallow_ends_the_program(tmp_path, swallow):
    interrupt = "import os, signal, weakref\ndef interrupt(*_): os.kill(os.getpid(), signal.SIGINT)"
    (tmp_path / "torch.py").write_text(f"{interrupt}\n{swallow}\nprint('goes on')")
    done = python("-m", "fedfm", "methods", folder=tmp_path)
    assert (done.returncode, done.stdout + done.stderr) == (130, "")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["rnu"], "no such command 'rnu'. Did you mean 'run'? (see fedfm --help)"),
        (["--what"], "no such option: --what (see fedfm --help)"),
        (["run"], "missing argument 'CONFIG' (see fedfm run --help)"),
        (["predict"], "missing argument 'RUN' (see fedfm predict --help)"),
        (
            ["run", "digits", "--frmat", "json"],
            "no such option: --frmat Did you mean --format? (see fedfm run --help)",
        ),
        (["run", "digits", "--set"], "option '--set' requires an argument (see fedfm --help)"),
        (
            ["run", "digits", "more"],
            "got unexpected extra argument (more) (see fedfm run --help)",
        ),
        (
            ["run", "digits", "--seeds", "0"],
            "invalid value for '--seeds': 0 is not in the range x>=1 (see fedfm run --help)",
        ),
        (
            ["extend", "run", "--rounds", "many"],
            "invalid value for '--rounds': 'many' is not a valid integer range "
            "(see fedfm extend --help)",
        ),
        (
            ["cost", "digits", "--format", "xml"],
            "invalid value for '--format': 'xml' is not one of 'text', 'json' "
            "(see fedfm cost --help)",
        ),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused_in_one_line(
    command, tmp_path, wrong, message
):
    answer = command(*wrong)
    assert answer == (2, "", f"fedfm: {message}\n")
    assert list(tmp_path.iterdir()) == []


def test_no_arguments_print_the_help(command):
    answer = command()
    assert (answer.code, answer.err) == (2, "")
    assert "Usage: fedfm" in answer.out


def test_the_version(command):
    answer = command("--version")
    assert (answer.code, answer.out) == (0, f"fedfm {__version__}\n")
