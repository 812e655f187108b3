"""Conformance: check that methods compute what their papers say, and that the checks can fail.

`verify(piece)` checks a piece of your own. `verify_all()` checks every registered method, and that
each planted mistake is caught. On the command line: `fedfm verify`.
"""

from fedfm.verify.checks import CHECKS, Check
from fedfm.verify.mistakes import MISTAKES, Mistake
from fedfm.verify.report import Caught, CheckResult, Report
from fedfm.verify.suite import verify, verify_all

__all__ = [
    "CHECKS",
    "MISTAKES",
    "Caught",
    "Check",
    "CheckResult",
    "Mistake",
    "Report",
    "verify",
    "verify_all",
]
