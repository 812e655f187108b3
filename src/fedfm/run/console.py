"""How a run looks while it runs: a live bar on a terminal, plain lines elsewhere."""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

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

from fedfm.run.records import Result, RoundRecord
from fedfm.run.runner import Watcher


def log_to_console() -> None:
    """Warnings of the library on standard error."""
    logging.basicConfig(
        format="%(message)s",
        handlers=[RichHandler(console=Console(stderr=True), show_time=False, show_path=False)],
    )


def print_table(table: Table) -> None:
    """Print a table whole: numbers are never cut, however narrow the output is."""
    needed = Console(width=10_000).measure(table).maximum
    Console(width=max(Console().width, needed)).print(table)


def numeric_table(title: str, first: str, heads: Sequence[str]) -> Table:
    """A table of names and numbers, whose cells are never broken."""
    table = Table(title=title, title_justify="left")
    table.add_column(first, no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def describe(record: RoundRecord) -> str:
    """A round in a line."""
    loss = "" if record.train_loss is None else f"loss {record.train_loss:.4f}  "
    return f"{loss}val {100 * record.val_accuracy:.2f}%  test {100 * record.test_accuracy:.2f}%"


def describe_result(result: Result) -> str:
    """What came out, and what was promised."""
    best = result.best
    said = (
        f"{result.method}: test accuracy {100 * best.test_accuracy:.2f}% "
        f"(of round {best.round}, validation {100 * best.val_accuracy:.2f}%)"
    )
    if failed := sum(record.failed for record in result.rounds):
        said += f"\n{failed} answers of clients were left out: none came, or one was not finite"
    return f"{said}\n{result.privacy}" if result.privacy else said


def make_bars(last: ProgressColumn) -> Progress:
    """Bars on standard error: what it is, how far, what there is to say (`status`), and `last`."""
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        last,
        console=Console(stderr=True),
    )


@contextmanager
def show_rounds(titles: Sequence[str], rounds: int) -> Iterator[list[Watcher]]:
    """Show the rounds of one or several runs as they come in, on standard error."""
    if not sys.stderr.isatty():
        yield [partial(_say, title, rounds) for title in titles]
        return
    with make_bars(TimeRemainingColumn()) as bar:
        tasks = [bar.add_task(title, total=rounds, status="") for title in titles]
        yield [partial(_move, bar, task) for task in tasks]


def _say(title: str, rounds: int, record: RoundRecord) -> None:
    print(
        f"{title}  round {record.round}/{rounds}  {describe(record)}  {record.seconds:.2f}s",
        file=sys.stderr,
        flush=True,
    )


def _move(bar: Progress, task: TaskID, record: RoundRecord) -> None:
    bar.update(task, completed=record.round, status=describe(record))
