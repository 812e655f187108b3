"""Metrics of predictions, one per file. To add one, add a file here and a line in `METRICS`.

A metric is an additive statistic: its sum over clients gives the value over all their samples, also
where the server sees only sums.
"""

from fedfm.core.errors import unknown_name_error
from fedfm.metrics.accuracy import Accuracy
from fedfm.metrics.auc import Auc
from fedfm.metrics.balanced_accuracy import BalancedAccuracy
from fedfm.metrics.base import Metric
from fedfm.metrics.calibration import CalibrationError
from fedfm.metrics.confusion import Confusion
from fedfm.metrics.f1 import ClassF1, MacroF1
from fedfm.metrics.log_loss import LogLoss

METRICS: dict[str, type[Metric]] = {
    metric.name: metric
    for metric in (
        Accuracy,
        BalancedAccuracy,
        MacroF1,
        ClassF1,
        Auc,
        LogLoss,
        CalibrationError,
        Confusion,
    )
}
"""The registered metrics by name; add yours to use it by name."""


def metric_class(name: str) -> type[Metric]:
    """Return the registered metric of that name.

    Args:
        name: A name in `METRICS`.

    Returns:
        The class.

    Raises:
        UserError: If there is none; the message suggests the nearest name.

    Examples:
        >>> metric_class("auc").classes
        2
    """
    if name not in METRICS:
        raise unknown_name_error("metric", name, METRICS)
    return METRICS[name]


__all__ = [
    "METRICS",
    "Accuracy",
    "Auc",
    "BalancedAccuracy",
    "CalibrationError",
    "ClassF1",
    "Confusion",
    "LogLoss",
    "MacroF1",
    "Metric",
    "metric_class",
]
