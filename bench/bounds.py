"""What bounds the stacked executor on a CPU: the operators of a round, and what would be left.

    python -m bench.bounds [W1 W2]

For each workload of peers.py the table has the operators that take most of a round on one thread,
for fedfm and for the plain PyTorch loop. Convolutions and matrix products are arithmetic that both
do: the last line says how much faster than the plain loop fedfm would be if everything else were
free. Times are processor times under torch's profiler, which slows small operators down, so compare
shares rather than milliseconds.
"""

import argparse
from typing import NamedTuple

import torch
from bench._shared import describe_machine, make_table
from bench.peer_runners.workloads import workload
from bench.stacked import Ours, PlainLoop, Workload, shuffled
from rich.console import Console
from torch.profiler import ProfilerActivity, profile

ROUNDS = {"W1": (60, 20), "W2": (3, 2)}
"""Rounds before the profile, when memory is still being allocated, and rounds in it."""
ARITHMETIC = (
    *("aten::bmm", "aten::baddbmm", "aten::mm", "aten::addmm"),
    *("aten::mkldnn_convolution", "aten::convolution_backward"),
)
"""Operators that multiply matrices or convolve."""
SHOWN = 14


class Operator(NamedTuple):
    """An operator with the shapes of its arguments: milliseconds and calls of a round."""

    name: str
    shapes: str
    milliseconds: float
    calls: float


def profile_rounds(system: Ours | PlainLoop, warm_up: int, rounds: int) -> list[Operator]:
    """Return the operators of a round, the slowest first."""
    for _ in range(warm_up):
        system.advance()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        for _ in range(rounds):
            system.advance()
    events = profiled.key_averages(group_by_input_shape=True)
    operators = [
        Operator(
            event.key,
            " ".join(str(shape) for shape in event.input_shapes if shape),
            event.self_cpu_time_total / 1000 / rounds,
            event.count / rounds,
        )
        for event in events
    ]
    return sorted(operators, key=lambda operator: -operator.milliseconds)


def report(title: str, operators: list[Operator], console: Console) -> None:
    """Print the slowest operators and the share of each."""
    total = sum(operator.milliseconds for operator in operators)
    table = make_table(
        f"{title}: {total:.1f} ms a round",
        *("operator", "shapes", "calls", "ms", "share"),
        names=2,
    )
    for name, shapes, milliseconds, calls in operators[:SHOWN]:
        share = f"{milliseconds / total:.1%}"
        table.add_row(name, shapes[:60], f"{calls:.0f}", f"{milliseconds:.2f}", share)
    console.print(table)


def arithmetic(operators: list[Operator]) -> float:
    """Return the milliseconds of products and convolutions in a round."""
    return sum(each.milliseconds for each in operators if each.name in ARITHMETIC)


def bound(name: str, work: Workload, console: Console) -> None:
    """Profile both systems on a workload and print what is left without all other operators."""
    ours = Ours(work, "stacked", "fedavg")
    plain = PlainLoop(work, ours.fed, shuffled(ours.fed))
    profiles = [profile_rounds(system, *ROUNDS[name]) for system in (ours, plain)]
    for system, operators in zip(("fedfm, stacked", "plain PyTorch loop"), profiles, strict=True):
        report(f"{name}, {system}", operators, console)
    ours_total, plain_total = (
        sum(each.milliseconds for each in operators) for operators in profiles
    )
    products, theirs = map(arithmetic, profiles)
    console.print(
        f"{name}: products and convolutions take {products:.1f} of {ours_total:.1f} ms in fedfm, "
        f"{theirs:.1f} of {plain_total:.1f} ms in the plain loop. fedfm is "
        f"{plain_total / ours_total:.1f} times as fast; without all other operators it would be "
        f"{plain_total / products:.1f} times as fast.\n"
    )


def main() -> None:
    """Profile the workloads named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workloads", nargs="*", metavar="W1|W2")
    torch.set_num_threads(1)
    console = Console(width=130, highlight=False)
    console.print(describe_machine())
    for name in parser.parse_args().workloads or ROUNDS:
        bound(name, workload(name), console)


if __name__ == "__main__":
    main()
