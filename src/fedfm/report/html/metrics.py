"""Further metrics on the page: charts over rounds, columns, results by class and over clients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from fedfm.core.errors import UserError
from fedfm.report.html import charts
from fedfm.report.html.charts import Chart
from fedfm.report.html.group import MethodGroup, Setting
from fedfm.report.html.load import Floats
from fedfm.report.html.partition import draw_cells, list_classes
from fedfm.report.html.tables import HtmlCell, HtmlTable
from fedfm.report.tables.statistics import (
    FINE_TUNED,
    TableMetric,
    compute_deviation,
    get_table_metric,
)

MANY_CLIENTS = 20
"""More clients than this have no table of their own."""
OVER_CLIENTS = ("mean_accuracy", "deviation_accuracy", "worst_accuracy", "p10_accuracy")
MISSING = HtmlCell("", -1e300)


def list_measures(setting: Setting) -> list[TableMetric]:
    """Return the further metrics that runs of a setting have on test samples."""
    runs = [run for entry in setting.entries for run in entry.runs]
    names = dict.fromkeys(name for run in runs for name in run.metrics if name.startswith("test_"))
    return [_find_measure(name) for name in names]


def _find_measure(name: str) -> TableMetric:
    """Return a measure; of a metric that is not known here, one without a unit."""
    try:
        return get_table_metric(name)
    except UserError:
        return TableMetric(name, name.replace("_", " "), 4, better=0)


def draw_charts(setting: Setting, name: str) -> list[Chart]:
    """Draw every further metric over rounds."""
    drawn = [
        charts.draw_metric(setting.entries, measure, f"{name}-{measure.name}")
        for measure in list_measures(setting)
    ]
    return [chart for chart in drawn if chart]


def add_columns(table: HtmlTable, setting: Setting) -> HtmlTable:
    """Return the table of results with a column for each further metric."""
    measures = list_measures(setting)
    heads = tuple(measure.heading.replace(" (%)", ", %") for measure in measures)
    rows = [
        (number, [*cells, *(_format_measure(entry, measure) for measure in measures)])
        for (number, cells), entry in zip(table.rows, setting.entries, strict=True)
    ]
    return table._replace(heads=(*table.heads, *heads), rows=rows)


def _format_measure(entry: MethodGroup, measure: TableMetric) -> HtmlCell:
    """Return the mean and deviation over seeds; nothing if a run lacks it."""
    values = [value for run in entry.runs if (value := measure.of(run)) is not None]
    if len(values) < len(entry.runs):
        return MISSING
    mean = float(np.mean(values))
    return HtmlCell(measure.text(mean) + measure.spread(compute_deviation(values)), mean)


def build_clients(setting: Setting) -> HtmlTable | None:
    """Return the table of the clients: mean, deviation, worst and 10th percentile of accuracy."""
    runs = [run for entry in setting.entries for run in entry.runs]
    names = [*OVER_CLIENTS, *(FINE_TUNED + name for name in OVER_CLIENTS)]
    shown = [get_table_metric(name) for name in names if any(name in run.metrics for run in runs)]
    if not shown:
        return None
    heads = ("method", *(_shorten(measure.heading) for measure in shown))
    rows = [
        (e.number, [HtmlCell(e.label, e.label), *(_format_measure(e, m) for m in shown)])
        for e in setting.entries
    ]
    splits = " or ".join(sorted({run.split for run in runs}))
    caption = f"Accuracy of the clients on their own {splits} samples: mean over seeds."
    return HtmlTable(caption, heads, rows)


def build_named_clients(setting: Setting) -> HtmlTable | None:
    """Return the accuracy of each client by name; None if clients are many or have no names."""
    runs = [run for entry in setting.entries for run in entry.runs]
    names = runs[0].client_names
    if not 0 < len(names) <= MANY_CLIENTS or any(run.client_names != names for run in runs):
        return None
    rows = [
        (e.number, [HtmlCell(e.label, e.label), *map(_format_percent, _list_accuracies(e))])
        for e in setting.entries
    ]
    splits = " or ".join(sorted({run.split for run in runs}))
    caption = f"Accuracy of each client on its own {splits} samples, in percent."
    return HtmlTable(caption, ("method", *names), rows)


def _list_accuracies(entry: MethodGroup) -> list[tuple[float, ...]]:
    """Return the accuracies of every client, one for each seed."""
    return list(zip(*(run.client_accuracies for run in entry.runs), strict=True))


def _format_percent(values: tuple[float, ...]) -> HtmlCell:
    mean = 100 * float(np.mean(values))
    deviation = compute_deviation(values)
    spread = "" if deviation is None else f" ± {100 * deviation:.2f}"
    return HtmlCell(f"{mean:.2f}{spread}", mean)


def _shorten(heading: str) -> str:
    """Return a heading without what the table's caption says."""
    return heading.replace(", accuracy", "").replace(" (%)", ", %")


def build_classes(setting: Setting) -> list[HtmlTable]:
    """Return a table for every metric by class: mean over seeds."""
    names = dict.fromkeys(name for e in setting.entries for name in _average(e, 1))
    return [_build_class_table(setting, name) for name in names]


def _build_class_table(setting: Setting, name: str) -> HtmlTable:
    values = [(e, each) for e in setting.entries if (each := _average(e, 1).get(name)) is not None]
    classes = list_classes(values[0][0].runs[0], len(values[0][1]))
    rows = [
        (e.number, [HtmlCell(e.label, e.label), *map(_format_value, each)]) for e, each in values
    ]
    title = name.replace("_", " ").capitalize()
    caption = f"{title} of each class on the test samples: mean over seeds."
    return HtmlTable(caption, ("method", *classes), rows)


def _format_value(value: float) -> HtmlCell:
    return MISSING if np.isnan(value) else HtmlCell(f"{value:.3f}", float(value))


def _average(entry: MethodGroup, dimensions: int) -> dict[str, Floats]:
    """Return the metrics by class, or the matrices, that all seeds have, averaged over seeds."""
    first, *others = (run.by_class for run in entry.runs)
    return {
        name: np.mean([value, *(other[name] for other in others)], axis=0)
        for name, value in first.items()
        if value.ndim == dimensions and all(name in other for other in others)
    }


def draw_matrices(setting: Setting, name: str) -> list[dict[str, Any]]:
    """Draw the confusion matrix of every method, averaged over seeds."""
    return [
        {"entry": entry, "name": metric, "picture": _draw_matrix(entry, metric, matrix, name)}
        for entry in setting.entries
        for metric, matrix in _average(entry, 2).items()
    ]


def _draw_matrix(entry: MethodGroup, metric: str, matrix: Floats, name: str) -> Markup:
    counts = matrix.round().astype(int)
    classes: Sequence[str] = list_classes(entry.runs[0], len(counts))
    right = np.trace(counts) / max(1, counts.sum())
    description = f"{entry.label}: {right:.1%} of the test samples are on the diagonal."
    texts = metric.capitalize(), description, "true classes down, predicted classes across"
    return draw_cells(counts, classes, classes, f"{name}-{metric}-{entry.number}", texts)
