"""The command line: `fedfm COMMAND`, one module per command, imported when it is used."""

import sys


def main() -> None:
    """Run the command line: a user's mistake is one message and exit code 2."""
    try:
        from fedfm.cli.app import app

        app()
    except KeyboardInterrupt:  # while importing; commands have their own last words
        sys.exit(130)
    except OSError as problem:
        where = f" ({problem.filename})" if problem.filename else ""
        fail(f"{problem.strerror or problem}{where}; what was saved before is whole")
    except Exception as problem:
        from fedfm.core.errors import UserError

        if not isinstance(problem, UserError):
            raise
        fail(str(problem))


def fail(message: str) -> None:
    """Print what is wrong and exit."""
    print(f"fedfm: {message}", file=sys.stderr)
    sys.exit(2)
