"""The command line: `fedfm COMMAND`, one module per command."""

import sys
import threading
from _thread import interrupt_main
from typing import Any


def main() -> None:
    """Run the command line; print a user's mistake as one message and exit with code 2."""
    sys.unraisablehook = _repeat_interrupt
    try:
        from fedfm.cli.app import app

        app()
    except KeyboardInterrupt:  # while importing; afterwards commands handle it
        sys.exit(130)
    except OSError as problem:
        where = f" ({problem.filename})" if problem.filename else ""
        fail(f"{problem.strerror or problem}{where}; everything saved before is intact")
    except Exception as problem:
        from fedfm.core.errors import UserError

        if not isinstance(problem, UserError):
            raise
        hint = " (one of your own: fedfm --methods FILE ...)"
        fail(f"{problem}{hint if str(problem).startswith('unknown method ') else ''}")


def _repeat_interrupt(ignored: Any) -> None:
    """Repeat a Ctrl-C that came in a callback of an import, where Python would ignore it."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        threading.Timer(0.01, interrupt_main).start()
    else:
        sys.__unraisablehook__(ignored)


def fail(message: str) -> None:
    """Print what is wrong and exit with code 2."""
    print(f"fedfm: {message}", file=sys.stderr)
    sys.exit(2)
