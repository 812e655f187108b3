"""Compare methods on a real problem: a table and a picture for its page in docs/problems.

    cd FOLDER_OF_THE_DATA
    python -m tools.problems heart-disease.toml --measure auc --seeds 5 fedavg fedfm:strength=1

Every method is a name, several joined by "+", or has settings behind a colon.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from matplotlib.axes import Axes

from fedfm.config import load_config
from fedfm.config.schema import Config
from fedfm.report.figure import COLOURS, new_figure, save_figure, tidy_axes
from fedfm.run.records import Result
from fedfm.run.runner import run_configs

Table = dict[str, list[Result]]
"""The results of every seed by method."""


def main() -> None:
    """Run all methods, print the table and write the picture beside the config."""
    arguments = parse_arguments()
    table = {method: run(arguments.config, method, arguments.seeds) for method in arguments.methods}
    print(write_table(table, arguments.measure, arguments.clients))
    draw(table, arguments.measure, arguments.clients, arguments.config.with_suffix(".png"))


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("methods", nargs="+")
    parser.add_argument("--measure", default="accuracy")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clients", nargs="*", default=[], help="names for the table's columns")
    return parser.parse_args()


def run(path: Path, method: str, seeds: int) -> list[Result]:
    """Return the results of all seeds of a method."""
    config = read(path, method)
    return run_configs([config.with_seed(seed) for seed in range(seeds)])


def read(path: Path, method: str) -> Config:
    """Return the config of a method, such as "fedbn+fedfm:strength=1"."""
    names, _, settings = method.partition(":")
    pieces = names.split("+")
    changes = [f"method.{pieces[-1]}.{setting}" for setting in settings.split(",") if setting]
    quoted = ", ".join(f'"{name}"' for name in pieces)
    return load_config(str(path), [f"method=[{quoted}]", *changes])


def values(results: Sequence[Result], measure: str, client: int | None = None) -> list[float]:
    """Return a metric of every seed: of one client, or on all test samples."""
    if client is None:
        return [result.test[measure] for result in results]
    each = [result.clients.values[measure][client] for result in results if result.clients]
    return [value for value in each if value is not None]


def write_table(table: Table, measure: str, clients: Sequence[str]) -> str:
    """Return a Markdown table: a row for each method, mean ± standard deviation over seeds."""
    heads = ["method", f"{measure}, all test samples", *clients, "floats sent"]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for method, results in table.items():
        parts = [None, *range(len(clients))]
        cells = [describe(values(results, measure, part)) for part in parts]
        lines.append(f"| {' | '.join([method, *cells, f'{results[0].totals.floats_up:,}'])} |")
    return "\n".join(lines)


def describe(numbers: Sequence[float]) -> str:
    """Return mean ± standard deviation in percent."""
    spread = f" ± {100 * stdev(numbers):.1f}" if len(numbers) > 1 else ""
    return f"{100 * mean(numbers):.1f}{spread}"


def draw(table: Table, measure: str, clients: Sequence[str], path: Path) -> None:
    """Draw the methods at each client, or over rounds if there are no names of clients."""
    figure = new_figure(7.5, 3.4)
    axes = figure.add_subplot()
    if clients:
        draw_clients(axes, table, measure, clients)
    else:
        draw_rounds(axes, table)
    axes.legend(fontsize="small", ncols=3)
    tidy_axes(axes)
    save_figure(figure, path)


def draw_rounds(axes: Axes, table: Table) -> None:
    """Draw the test accuracy over rounds, averaged over seeds."""
    for colour, (method, results) in zip(COLOURS, table.items(), strict=False):
        curves = zip(*(result.rounds for result in results), strict=True)
        means = [100 * mean(record.test_accuracy for record in records) for records in curves]
        axes.plot(range(1, len(means) + 1), means, color=colour, label=method.partition(":")[0])
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy (%)")


def draw_clients(axes: Axes, table: Table, measure: str, clients: Sequence[str]) -> None:
    """Draw a dot for each method and client, and for all test samples, with its deviation."""
    groups = ["all", *clients]
    for row, (method, results) in enumerate(table.items()):
        for place, part in enumerate([None, *range(len(clients))]):
            numbers = values(results, measure, part)
            x = place + (row - (len(table) - 1) / 2) * 0.8 / len(table)
            error = 100 * stdev(numbers) if len(numbers) > 1 else 0.0
            label = method.partition(":")[0] if place == 0 else None
            axes.errorbar(x, 100 * mean(numbers), error, fmt="o", color=COLOURS[row], label=label)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(f"{measure} (%)")


if __name__ == "__main__":
    main()
