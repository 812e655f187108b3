"""The command line: `fedfm COMMAND`, one module per command."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from click import ClickException


def main() -> None:
    """Run the command line; print a user's mistake as one message and exit with code 2."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupt)
        atexit.register(_skip_last_collection)
        from fedfm.cli.app import app

        sys.exit(app(prog_name="fedfm", standalone_mode=False) or 0)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as problem:
        where = f" ({problem.filename})" if problem.filename else ""
        fail(f"{problem.strerror or problem}{where}; everything saved before is intact")
    except Exception as problem:
        from click import ClickException

        from fedfm.core.errors import UserError

        if isinstance(problem, ClickException):
            _explain_usage(problem)
        if not isinstance(problem, UserError):
            raise
        hint = " (one of your own: fedfm --methods FILE ...)"
        fail(f"{problem}{hint if str(problem).startswith('unknown method ') else ''}")


def _skip_last_collection() -> None:
    """Spare Python its search for garbage as it ends: half a second, and nothing needs it.

    Only Triton's extension does: it would report what was not freed.
    """
    if "triton" not in sys.modules:
        gc.freeze()


def _explain_usage(problem: ClickException) -> None:
    """Print a wrong argument or option as one line; print the help if there are no arguments."""
    from click.exceptions import NoArgsIsHelpError

    context = getattr(problem, "ctx", None)
    if isinstance(problem, NoArgsIsHelpError) and context:
        print(context.get_help())
        sys.exit(problem.exit_code)
    text = " ".join(problem.format_message().split()).rstrip(".")
    command = context.command_path if context else "fedfm"
    fail(f"{text[:1].lower()}{text[1:]} (see {command} --help)")


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; while importing exit at once, since imports may swallow it."""
    while frame:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def fail(message: str) -> None:
    """Print what is wrong and exit with code 2."""
    from fedfm.core.torchrun import end

    end(f"fedfm: {message}", 2)
