"""An environment of its own for every peer, made by pip and kept in the user's cache folder."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fedfm-bench"
LIMIT = 900
"""Seconds after which a command is given up."""


class CannotRunError(Exception):
    """A system could not be installed or run."""


def header(runner: str) -> dict[str, Any]:
    """What a runner needs: the metadata at its top (inline script metadata, PEP 723)."""
    text = (Path(__file__).parent / f"{runner}.py").read_text()
    block = re.search(r"^# /// script\n(.*?)^# ///$", text, re.MULTILINE | re.DOTALL)
    return tomllib.loads(re.sub(r"^# ?", "", block[1], flags=re.MULTILINE)) if block else {}


def interpreter(runner: str) -> Path:
    """The Python of a runner's environment, which is made unless it is there as described."""
    needs = header(runner)
    if not needs:
        return Path(sys.executable)
    alone = needs["tool"]["peers"].get("no-dependencies", [])
    folder, wanted = CACHE / runner, json.dumps([needs["dependencies"], alone])
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists() or ready.read_text() != wanted:
        print(f"making the environment of {runner}", file=sys.stderr)
        call([sys.executable, "-m", "venv", "--clear", str(folder)])
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        call([*install, *needs["dependencies"]])
        if alone:
            call([*install, "--no-deps", *alone])
        ready.write_text(wanted)
    return python


def call(command: Sequence[str], **environment: str) -> str:
    """The output of a command."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRunError(str(error)) from error
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"(\w|\.)*(Error|ERROR)\b", line)]
        raise CannotRunError((errors or lines or [f"exit status {done.returncode}"])[-1][:200])
    return done.stdout
