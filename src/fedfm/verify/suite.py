"""Run the checks: on a piece of your own, or on every registered method and planted mistake."""

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from traceback import walk_tb
from typing import Any

from fedfm.methods import PIECES, Piece
from fedfm.verify import compare_textbook, every_method, heads, identities, layers, quadratics
from fedfm.verify.checks import CHECKS, Check
from fedfm.verify.fixtures import Pieces
from fedfm.verify.mistakes import MISTAKES, Mistake
from fedfm.verify.report import Caught, CheckResult, Report

__all__ = [
    "compare_textbook",
    "every_method",
    "heads",
    "identities",
    "layers",
    "quadratics",
    "verify",
    "verify_all",
]

Step = Callable[[str], None]
"""Called before each method and mistake, with its name."""

FEDSA: dict[str, Any] = {"moving_average": 0.3, "margin": 0.2, "calibration": 0.7}
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "fedavgm": {"": {"beta": 0.7}},
    "fedacg": {"": {"momentum": 0.7, "strength": 0.1}},
    "fedadam": {"": {}, ", bias correction": {"bias_correction": True}},
    "fedprox": {"": {"mu": 0.3}},
    "fedcm": {"": {"alpha": 0.3}},
    "feddyn": {"": {"alpha": 0.2}},
    "fedsam": {"": {}, ", ASAM": {"adaptive": 0.2}},
    "fedspeed": {"": {"mix": 0.7}, ", all clients": {"mix": 0.7, "over_all": True}},
    "fedsmoo": {"": {}, ", no last offset": {"last_offset": False}},
    "moon": {"": {"mu": 2.0}},
    "fedproto": {"": {"strength": 0.5}},
    "fedrep": {"": {"head_epochs": 2}},
    "ditto": {"": {"strength": 0.5}},
    "fedntd": {"": {"strength": 0.7, "temperature": 2.0}},
    "fedlc": {"": {}, ", true class in the sum": {"exclude_true": False}},
    "fedrs": {"": {}, ", graded": {"graded": True}},
    "feddecorr": {"": {}, ", averaged": {"averaged": True, "strength": 0.01}},
    "feduv": {"": {}, ", fixed width": {"fixed_width": True}},
    "fedfm": {
        "": {"strength": 1.0, "start_round": 2},
        ", L2, uniform": {"strength": 1.0, "start_round": 0, "guide": "l2", "anchors": "uniform"},
        ", warm-up": {"strength": 1.0, "start_round": 2, "warm_up": 3},
        ", FedSA's options": {"strength": 1.0, "start_round": 1, "warm_up": 2, **FEDSA},
    },
    "fedfm-lite": {
        "": {"strength": 1.0, "start_round": 2},
        ", a=2, uniform, warm-up": {
            "strength": 1.0,
            "start_round": 0,
            "anchors": "uniform",
            "models_every": 2,
            "warm_up": 3,
        },
        ", a=2, uniform, FedSA's options": {
            "strength": 1.0,
            "start_round": 0,
            "anchors": "uniform",
            "models_every": 2,
            **FEDSA,
        },
    },
}
"""The settings in which a method is checked, by label; other methods have their defaults."""


def pieces_to_check(name: str) -> dict[str, Piece]:
    """Return a registered method in one or more settings, by name and label."""
    settings = SETTINGS.get(name, {"": {}})
    return {name + label: PIECES[name](**options) for label, options in settings.items()}


def verify(pieces: Piece | Iterable[Piece], method: str = "") -> Report:
    """Check one method, a piece or several composed; raise nothing, whatever they do."""
    chosen = (pieces,) if isinstance(pieces, Piece) else tuple(pieces)
    name = method or "+".join(getattr(piece, "name", type(piece).__name__) for piece in chosen)
    rows = [run_check(name, check, chosen) for check in CHECKS.values()]
    return Report(tuple(row for row in rows if row is not None))


def run_check(method: str, check: Check, pieces: Pieces) -> CheckResult | None:
    """Run one check on copies of the pieces; return None if it does not apply."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            copies = copy.deepcopy(pieces)
            if not check.applies(copies):
                return None
            check.run(copies)
    except Exception as problem:  # a user's piece may raise anything
        why = f"{type(problem).__name__}: {problem}{_place(problem, pieces)}"
        return CheckResult(method, check.name, False, why)
    return CheckResult(method, check.name, True)


def _place(problem: Exception, pieces: Pieces) -> str:
    """Return the last line of the pieces' modules that the error passed, if any."""
    modules = {type(piece).__module__ for piece in pieces}
    lines = [
        f" ({Path(frame.f_code.co_filename).name}, line {line}, in {frame.f_code.co_name})"
        for frame, line in walk_tb(problem.__traceback__)
        if frame.f_globals.get("__name__") in modules
    ]
    return lines[-1] if lines else ""


def check_mistake(mistake: Mistake) -> Caught:
    """Return the first check that fails on a planted mistake."""
    with mistake.within():
        rows = (run_check(mistake.method, check, (mistake.piece,)) for check in CHECKS.values())
        by = next((row.check for row in rows if row and not row.passed), None)
    return Caught(mistake.method, mistake.what, by)


def verify_all(methods: Sequence[str] | None = None, step: Step = lambda what: None) -> Report:
    """Check registered methods, all by default, and that their planted mistakes are caught."""
    rows: list[CheckResult] = []
    for name in methods or PIECES:
        step(name)
        for label, piece in pieces_to_check(name).items():
            rows += verify(piece, label).rows
    mistakes = []
    for mistake in mistakes_in(methods or PIECES):
        step(f"{mistake.method}: {mistake.what}")
        mistakes.append(check_mistake(mistake))
    return Report(tuple(rows), tuple(mistakes))


def mistakes_in(methods: Iterable[str]) -> list[Mistake]:
    """Return the mistakes planted in these methods, in the order of the methods."""
    return [mistake for name in methods for mistake in MISTAKES if mistake.method == name]
