"""Run the checks: on a piece of your own, or on every registered method and planted mistake."""

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from traceback import walk_tb

from fedfm.methods import PIECES, Piece
from fedfm.verify import agreement, generic, identities, quadratics
from fedfm.verify.checks import CHECKS, Check
from fedfm.verify.mistakes import MISTAKES, Mistake
from fedfm.verify.report import Caught, Report, Row
from fedfm.verify.settings import settings_of
from fedfm.verify.worlds import Pieces

__all__ = ["agreement", "caught", "generic", "identities", "quadratics", "verify", "verify_all"]

Step = Callable[[str], None]
"""Told what comes next, before each method and mistake."""


def verify(pieces: Piece | Iterable[Piece], method: str = "") -> Report:
    """Check one method, a piece or several composed; nothing is raised, whatever they do."""
    chosen = (pieces,) if isinstance(pieces, Piece) else tuple(pieces)
    name = method or "+".join(getattr(piece, "name", type(piece).__name__) for piece in chosen)
    rows = [outcome(name, check, chosen) for check in CHECKS.values()]
    return Report(tuple(row for row in rows if row is not None))


def outcome(method: str, check: Check, pieces: Pieces) -> Row | None:
    """One check on copies of the pieces; None where it does not apply."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            own = copy.deepcopy(pieces)
            if not check.applies(own):
                return None
            check.run(own)
    except Exception as problem:  # a user's piece may raise anything
        said = f"{type(problem).__name__}: {problem}{_place(problem, pieces)}"
        return Row(method, check.name, False, said)
    return Row(method, check.name, True)


def _place(problem: Exception, pieces: Pieces) -> str:
    """Where in the pieces' own modules it was raised, if it was."""
    own = {type(piece).__module__ for piece in pieces}
    lines = [
        f" ({Path(frame.f_code.co_filename).name}, line {line}, in {frame.f_code.co_name})"
        for frame, line in walk_tb(problem.__traceback__)
        if frame.f_globals.get("__name__") in own
    ]
    return lines[-1] if lines else ""


def caught(mistake: Mistake) -> Caught:
    """The checks that fail on a planted mistake."""
    with mistake.within():
        failures = verify(mistake.piece).failures
    return Caught(mistake.method, mistake.what, tuple(row.check for row in failures))


def verify_all(methods: Sequence[str] | None = None, step: Step = lambda what: None) -> Report:
    """Check registered methods, all by default, and that their planted mistakes are caught."""
    rows: list[Row] = []
    for name in methods or PIECES:
        step(name)
        for label, piece in settings_of(name).items():
            rows += verify(piece, label).rows
    found = []
    for mistake in mistakes_in(methods or PIECES):
        step(f"{mistake.method}: {mistake.what}")
        found.append(caught(mistake))
    return Report(tuple(rows), tuple(found))


def mistakes_in(methods: Iterable[str]) -> list[Mistake]:
    """The mistakes planted in these methods, in their order."""
    return [mistake for name in methods for mistake in MISTAKES if mistake.method == name]
