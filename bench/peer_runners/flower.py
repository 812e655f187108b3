"""Flower's simulation: a ServerApp and a ClientApp on Ray, as its PyTorch quickstart has them.

What a client does is the user's own code here, so it trains like the plain loop, on tensors.
`processes` are Ray actors, `threads` the CPUs of each. The server looks for replies every 0.1 s,
Flower's default, which `run_simulation` does not let one change: short rounds take a multiple of
it. Clients of a round are those of the schedule: the message says which one a node is to be.
1.41.0 is the newest release whose requirements could be met when this was written.
"""

# /// script
# dependencies = ["torch==2.13.0", "flwr[simulation]==1.41.0"]
#
# [tool.peers]
# settings = [[2, 1], [1, 2]]
# environment = { FLWR_TELEMETRY_ENABLED = "0", RAY_USAGE_STATS_ENABLED = "0" }
# ///

import logging
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from bench.peer_runners.clock import Options, Watch
from bench.peer_runners.work import Batches, Work, load
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


class Scheduled(FedAvg):
    """FedAvg whose clients are those of the schedule, without evaluation."""

    def __init__(self, work: Work, file: str) -> None:
        cohort, everyone = len(work.cohorts[0]), len(work.samples)
        super().__init__(
            fraction_train=cohort / everyone,
            fraction_evaluate=0.0,
            min_train_nodes=cohort,
            min_available_nodes=everyone,
        )
        self.work, self.file = work, file

    def configure_train(
        self, server_round: int, arrays: Any, config: Any, grid: Any
    ) -> Iterable[Any]:
        """One message for every client of the round."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        cohort = self.work.cohorts[server_round - 1]
        for message, client in zip(messages, cohort, strict=True):
            task = ConfigRecord({"file": self.file, "client": client})
            message.content = RecordDict({"arrays": arrays, "config": task})
        return messages


def train(message: Any, _context: Any) -> Any:
    """A client's local training."""
    task = message.content["config"]
    work = load(task["file"])
    module = work.network()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, labels = work.client(task["client"])
    optimizer = torch.optim.SGD(module.parameters(), **work.sgd)
    for _ in range(work.epochs):
        for x, y in Batches(inputs, labels, work.batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(module(x), y)
            loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(labels)})
    content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


def serve(options: Options, work: Work) -> Any:
    """The ServerApp; it reports before the actors are gone, for their memory."""
    watch, app = Watch(work), ServerApp()

    def after(number: int, arrays: Any) -> None:
        if number > 0:
            watch.lap(arrays.to_torch_state_dict)
        if number == options.total:
            watch.report(options, "flwr")

    def main(grid: Any, _context: Any) -> None:
        start = ArrayRecord(dict(work.start))
        strategy = Scheduled(work, options.file)
        strategy.start(grid, start, num_rounds=options.total, evaluate_fn=after)

    app.main()(main)
    return app


def main() -> None:
    """The whole simulation in one call, as Flower has it."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    options = Options.parse()
    work, client = load(options.file), ClientApp()
    client.train()(train)
    everything = {"num_cpus": options.processes * options.threads, "log_to_driver": False}
    each = {"num_cpus": options.threads, "num_gpus": 0.0}
    backend: dict[str, dict[str, Any]] = {"init_args": everything, "client_resources": each}
    run_simulation(serve(options, work), client, len(work.samples), backend_config=backend)


if __name__ == "__main__":
    main()
