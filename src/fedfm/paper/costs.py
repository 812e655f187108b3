"""Memory and bandwidth beside the paper's: Tables I, II, III and V, counted from messages."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import torch

from fedfm import models
from fedfm.methods import PIECES, compose
from fedfm.paper.catalogue import read_shared
from fedfm.report.tables.formats import format_markdown_table
from fedfm.rounds.costs import measure_cost

SIZE = (3, 32, 32)
SMALL, LARGE = "ResNet18, 10 classes", "ResNet50, 100 classes"
NETWORKS = {SMALL: ("resnet18", 10), LARGE: ("resnet50", 100)}
CLIENTS = (20, 30, 50, 100)
ROUNDS = 100
PAIR = ("memory", "bandwidth")
ABOUT = """\
## Tables I, II, III and V: memory and bandwidth

Floats of one client in one direction, counted from the messages of a round without training, as
`fedfm cost` does. Buffers of batch norm and class counts are left out. The paper multiplies rounded
numbers, which explains differences of one or two. Its Table I also says which methods have a
convergence guarantee: [theory.md](theory.md) checks FedFM's.
"""
Pair = tuple[int, int]
"""Memory and bandwidth."""


@cache
def count_floats(network: str) -> Mapping[str, Pair]:
    """Return by method the floats that a client holds, and those that it sends, in a round."""
    name, classes = NETWORKS[network]
    with torch.device("meta"):
        model = models.build(name, shape=SIZE, classes=classes)
        features = models.feature_dim(model, torch.zeros(1, *SIZE))
    counted = {
        label: measure_cost(compose(PIECES[label.lower()]()), model, classes, features)
        for label in read_shared("costs")["factors"]
    }
    return {label: (cost.memory, round(cost.floats_up)) for label, cost in counted.items()}


def render_costs() -> str:
    """Return the section: floats of a round, those of Table V, and what the paper says of them."""
    heads = ["method", *(f"{n}: {what}" for n in NETWORKS for what in PAIR)]
    whole = ["method", *(f"K = {clients}: {what}" for clients in CLIENTS for what in PAIR)]
    return "\n".join(
        [
            ABOUT,
            "Thousand floats (the paper's), and in Table I's units, times FedAvg's:\n",
            format_markdown_table([*heads, "Table I: memory", "bandwidth"], list(_list_rounds())),
            f"All clients in {ROUNDS} rounds, 1e8 floats (the paper's), ResNet50, 100 classes "
            "(Table V):\n",
            format_markdown_table(whole, list(_list_processes())),
            format_markdown_table(("the paper says", "paper", "counted", "verdict"), list_claims()),
        ]
    )


def _list_rounds() -> Iterator[list[str]]:
    papers = read_shared("costs")
    base = count_floats(SMALL)["FedAvg"]
    for method, factors in papers["factors"].items():
        cells = [
            text
            for network in NETWORKS
            for text in _compare(count_floats(network)[method], papers[network][method], 1e3)
        ]
        times = _compare(count_floats(SMALL)[method], factors, base[0], ".2f")
        yield [method, *cells, *times]


def _list_processes() -> Iterator[list[str]]:
    papers, counts = read_shared("costs"), count_floats(LARGE)
    for method, pair in counts.items():
        cells: list[str] = []
        for clients in CLIENTS:
            whole = [clients * ROUNDS * number for number in pair]
            cells += _compare(whole, papers[f"K = {clients}"][method], 1e8)
        yield [method, *cells]


def _compare(
    ours: Sequence[int], papers: Sequence[int], unit: float, style: str = ",.0f"
) -> Iterator[str]:
    for n, number in enumerate(ours):
        theirs = f" ({papers[n]:,})" if n < len(papers) else ""
        yield f"{number / unit:{style}}{theirs}"


def list_claims() -> list[list[str]]:
    """Return what the paper says about costs, its number, the counted one, and a verdict."""
    small, large = count_floats(SMALL), count_floats(LARGE)
    anchors = 100 * (small["FedFM"][1] / small["FedAvg"][1] - 1)
    overhead = 100 * (large["FedFM"][1] / large["FedAvg"][1] - 1)
    memory, sent = (small["SCAFFOLD"][n] / small["FedAvg"][n] for n in (0, 1))
    half = [small["FedFM"][n] / small["SCAFFOLD"][n] for n in (0, 1)]
    rows = [
        ("FedFM's anchors add to the bandwidth, ResNet18", "0.04 %", f"{anchors:.3f} %", 0.05),
        ("FedFM sends more than FedAvg, Table V", "0.86 %", f"{overhead:.3f} %", 0.87),
    ]
    verdicts = [
        [says, paper, ours, "holds" if float(ours[:-2]) < limit else "**does not hold**"]
        for says, paper, ours, limit in rows
    ]
    twice = memory == sent == 2
    nearly = all(0.5 <= share < 0.501 for share in half)
    return [
        *verdicts,
        [
            "SCAFFOLD needs twice FedAvg's memory and bandwidth",
            "roughly 2",
            f"{memory:.2f}, {sent:.2f}",
            "holds" if twice else "**does not hold**",
        ],
        [
            "FedFM needs half of SCAFFOLD's",
            "nearly half",
            ", ".join(f"{s:.4f}" for s in half),
            "holds" if nearly else "**does not hold**",
        ],
    ]
