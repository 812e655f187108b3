"""The console: rounds as live bars on a terminal and plain lines elsewhere, tables, log lines."""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from fedfm.core.errors import plural
from fedfm.core.torchrun import is_first
from fedfm.metrics import METRICS
from fedfm.run.bookkeeper import Watcher
from fedfm.run.client_results import ClientResults
from fedfm.run.records import Result, RoundRecord


@cache
def _standard_error() -> Console:
    """Return the console that bars and log lines share: lines then appear above the bars."""
    return Console(stderr=True)


def log_to_console() -> None:
    """Print log messages on standard error; of several processes, the first one does."""
    if not is_first():
        logging.disable(logging.WARNING)
    handler = RichHandler(console=_standard_error(), show_time=False, show_path=False)
    logging.basicConfig(format="%(message)s", handlers=[handler])


def print_table(table: Table) -> None:
    """Print a table in full width: numbers are never cut, however narrow the output is."""
    needed = Console(width=10_000).measure(table).maximum
    Console(width=max(Console().width, needed)).print(table)


def numeric_table(title: str, first: str, heads: Sequence[str]) -> Table:
    """Return a table with a column of names and columns of numbers; its cells are not wrapped."""
    table = Table(title=title, title_justify="left")
    table.add_column(first, no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def describe_round(record: RoundRecord) -> str:
    """Return a round's loss, accuracies and further metrics of the test samples in one line."""
    loss = "" if record.train_loss is None else f"loss {record.train_loss:.4f}  "
    val = "" if record.val_accuracy is None else f"val {100 * record.val_accuracy:.2f}%  "
    more = _list_values(record.metrics.get("test", {}))
    return f"{loss}{val}test {100 * record.test_accuracy:.2f}%" + "".join(f"  {x}" for x in more)


def _list_values(values: Mapping[str, Any]) -> list[str]:
    """Return "name value" for the metrics that are one number."""
    numbers = {name: value for name, value in values.items() if not isinstance(value, list)}
    return [f"{name} {format_metric(name, value)}" for name, value in numbers.items()]


def format_metric(name: str, value: float | None) -> str:
    """Format a metric as people see it; "-" if there is no value."""
    if value is None:
        return "-"
    percent = name in METRICS and METRICS[name].percent
    return f"{100 * value:.2f}%" if percent else f"{value:.4f}"


def describe_result(result: Result) -> str:
    """Return a run's accuracy, lost answers and privacy guarantee in words."""
    best = result.best
    val = "" if best.val_accuracy is None else f", validation {100 * best.val_accuracy:.2f}%"
    text = (
        f"{result.method}: test accuracy {100 * best.test_accuracy:.2f}% "
        f"(of round {best.round}{val})"
    )
    if values := _list_values(best.metrics.get("test", {})):
        text += f"\ntest {', '.join(values)}"
    if best.clients and (best.metrics or best.fine_tuned or best.clients.split == "test"):
        text += f"\nclients, {_describe_clients(best.clients)}"
    if best.fine_tuned:
        text += f"\nclients, fine-tuned, {_describe_clients(best.fine_tuned)}"
    if failed := sum(record.failed for record in result.rounds):
        text += f"\n{plural(failed, 'client answer')} left out: missing or not finite"
    return f"{text}\n{result.privacy}" if result.privacy else text


def _describe_clients(results: ClientResults) -> str:
    """Return mean, deviation and worst of the clients' accuracies in words."""
    name = "accuracy"
    numbers = {"mean": results.mean(name), "deviation": results.deviation(name)}
    if results.values:
        numbers |= {"worst": results.worst(name), "10th percentile": results.percentile(name)}
    listed = ", ".join(f"{key} {format_metric(name, value)}" for key, value in numbers.items())
    return f"{results.split} {name}: {listed} ({plural(results.count(name), 'client')})"


def make_bars(last: ProgressColumn, transient: bool = False) -> Progress:
    """Return progress bars on standard error: title, bar, count, the field `status`, and `last`."""
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        last,
        console=_standard_error(),
        transient=transient,
    )


@contextmanager
def show_rounds(titles: Sequence[str], rounds: int) -> Iterator[list[Watcher]]:
    """Show the rounds of one or several runs on standard error; yield a watcher for each.

    Of several processes that share a run, the first one shows it.
    """
    if not is_first():
        yield [lambda record: None] * len(titles)
        return
    if not sys.stderr.isatty():
        yield [partial(_print_round, title, rounds) for title in titles]
        return
    with make_bars(TimeRemainingColumn()) as bars:
        tasks = [bars.add_task(title, total=rounds, status="") for title in titles]
        yield [partial(_update_bar, bars, task) for task in tasks]


def _print_round(title: str, rounds: int, record: RoundRecord) -> None:
    print(
        f"{title}  round {record.round}/{rounds}  {describe_round(record)}  {record.seconds:.2f}s",
        file=sys.stderr,
        flush=True,
    )


def _update_bar(bars: Progress, task: TaskID, record: RoundRecord) -> None:
    bars.update(task, completed=record.round, status=describe_round(record))
