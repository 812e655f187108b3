"""Federations of real processes: seconds of rounds and handshakes, processor time of an answer.

`fedfm serve` with three small clients, once with the nodes of `fedfm join` and once with Flower's
own (`flower-supernode`, which starts a process per question), in one run on one machine. Training
takes milliseconds, so a round is its handshakes. Processor time is that of a client's node and of
everything that it starts, polling included, divided by the questions that it answered meanwhile.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import tomli_w
from bench._shared import make_table
from rich.table import Table

from fedfm.deploy.programs.addresses import Address, free_address
from tests.deploy.processes.programs import Program, stop

CLIENTS, FIRST = 3, 2
"""The number of clients, and of rounds at the start that are not measured."""
OWN, STOCK = "fedfm join", "flower-supernode"
METHODS = {"FedAvg": "fedavg", "FedFM": "fedfm"}
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
BIN = Path(sys.executable).parent


class Measured(NamedTuple):
    """Medians over the measured rounds of one federation."""

    round: float
    """Seconds of a round."""
    handshake: float
    answer: float
    """Processor seconds of a client for an answer."""


def write_data(path: Path) -> None:
    """Write a small table with four classes."""
    draw = np.random.default_rng(0)
    rows = [[*map(str, draw.standard_normal(6)), f"kind{k % 4}"] for k in range(200)]
    path.write_text("\n".join(map(",".join, [[*"abcdef", "label"], *rows])))


def list_settings(table: Path, method: str, rounds: int) -> list[str]:
    """Return the settings of a federation as arguments."""
    begin = ["fedfm.start_round=0"] if method == "fedfm" else []
    given = (
        *(f"method={method}", f"training.rounds={rounds}", f"training.clients={CLIENTS}", *begin),
        *("data.name=csv", f"data.path={table}", "model={name='mlp', hidden=[12, 8]}"),
        *("training.epochs=1", "training.batch_size=16", "partition.kind=iid", "device=cpu"),
        *("deployment.minimum=3", "deployment.wait=200", "deployment.timeout=200"),
    )
    return [word for setting in given for word in ("--set", setting)]


def start_own(folder: Path, k: int, settings: list[str], server: Address) -> Program:
    """Start a client with FedFM's own node."""
    who = ("--name", f"c{k}", "--data", f"share:{k}/{CLIENTS}", "--out", folder / f"c{k}")
    command = (sys.executable, "-m", "fedfm", "join", "digits", *settings, "--superlink", server)
    return Program([*command, *who], folder / f"c{k}.txt")


def start_stock(folder: Path, k: int, settings: list[str], server: Address) -> Program:
    """Start a client with Flower's node."""
    data = {"source": "share", "share": k, "of": CLIENTS}
    site = folder / f"c{k}.toml"
    site.write_text(tomli_w.dumps({"name": f"c{k}", "out": f"c{k}", "data": data}))
    own = free_address()
    command = (BIN / "flower-supernode", "--insecure", "--superlink", server, "--host", own.host)
    more = ("--port", own.port, "--node-config", f'site="{site}"')
    variables = {"PATH": f"{BIN}:{os.environ['PATH']}", "FLWR_HOME": str(folder), **QUIET}
    variables["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.2"
    return Program([*command, *more], folder / f"c{k}.txt", **variables)


STARTS: dict[str, Callable[[Path, int, list[str], Address], Program]] = {
    OWN: start_own,
    STOCK: start_stock,
}


@contextmanager
def run_federation(
    node: str, method: str, rounds: int
) -> Iterator[tuple[Path, Program, list[Program]]]:
    """Run a federation inside the block; yield the server's folder, the server and the clients."""
    with TemporaryDirectory() as name:
        folder, address = Path(name), free_address()
        write_data(folder / "points.csv")
        settings = list_settings(folder / "points.csv", method, rounds)
        serve = (sys.executable, "-m", "fedfm", "serve", "digits", *settings)
        where = ("--port", address.port, "--out", folder / "server")
        programs = [Program([*serve, *where], folder / "server.txt")]
        programs[0].wait_for("listening at")
        programs += [STARTS[node](folder, k, settings, address) for k in range(CLIENTS)]
        yield folder / "server", programs[0], programs[1:]
        programs[0].wait()
        stop(programs[1:])


def measure(node: str, method: str, rounds: int) -> Measured:
    """Run a federation and measure all rounds but the first ones."""
    with run_federation(node, method, rounds) as (out, server, clients):
        log = out / "rounds.jsonl"
        server.wait_until(lambda: len(read_rounds(log)) >= FIRST)
        first, before = len(read_rounds(log)), count_processor_seconds(clients)
        server.wait_until(lambda: len(read_rounds(log)) >= rounds - 1)
        last, after = len(read_rounds(log)), count_processor_seconds(clients)
        server.wait()
        lines = read_rounds(log)
    handshakes = sum(line["handshakes"] for line in lines[first:last])
    measured = lines[FIRST:]
    return Measured(
        statistics.median(line["seconds"] for line in measured),
        statistics.median(line["seconds"] / line["handshakes"] for line in measured),
        (after - before) / handshakes / CLIENTS,
    )


def read_rounds(log: Path) -> list[dict[str, Any]]:
    """Return the records of the finished rounds."""
    if not log.exists():
        return []
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line | {"handshakes": _find(line, "handshakes")} for line in lines]


def _find(table: dict[str, Any], key: str) -> Any:
    return table[key] if key in table else table["traffic"][key]


def count_processor_seconds(programs: list[Program]) -> float:
    """Return the processor time of programs and of everything that they started and that ended."""
    ticks = 0
    for process in [number for program in programs for number in program.tree]:
        fields = (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def handshakes_table(rounds: int) -> Table:
    """Measure both nodes with both methods, one after the other."""
    table = make_table(
        f"{CLIENTS} clients as processes, seconds: medians of {rounds - FIRST} rounds",
        "", "round", "handshake", "processor per answer",
    )  # fmt: skip
    found: dict[tuple[str, str], Measured] = {}
    for title, method in METHODS.items():
        for node in (OWN, STOCK):
            began = time.perf_counter()
            found[title, node] = result = measure(node, method, rounds)
            table.add_row(f"{title}, {node}", *(f"{value:.2f}" for value in result))
            print(f"{title}, {node}: {time.perf_counter() - began:.0f} s", flush=True)
        ratios = (
            one / other for one, other in zip(found[title, OWN], found[title, STOCK], strict=True)
        )
        table.add_row("  ratio", *(f"{ratio:.3f}" for ratio in ratios))
    return table
