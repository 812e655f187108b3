"""Command lines of documents and service files, checked against the real command line."""

import shlex
from pathlib import Path

import typer

from fedfm.cli.app import app


def parse(command: str) -> dict[str, object]:
    """Parse `fedfm ...` as the command line does, without running it; return its values."""
    program, *words = shlex.split(command)
    assert Path(program).name == "fedfm"
    context = typer.main.get_group(app).make_context("fedfm", words, resilient_parsing=False)
    while isinstance(context.command, typer.core.TyperGroup):
        words = [*context._protected_args, *context.args]
        name, found, rest = context.command.resolve_command(context, words)
        assert found is not None, command
        context = found.make_context(name, rest, parent=context)
    return context.params
