"""fluke: its CentralizedFL with its own clients and in-memory loaders, without evaluation.

Clients forget model and optimiser after a round (`persistency=False`), which is FedAvg; by default
they would keep their momentum. torchvision, which fluke imports for data and networks that are not
used here, is pretended, since its releases pin another build of torch: hence no-dependencies.
"""

# /// script
# dependencies = ["torch==2.13.0", "numpy==2.4.6", "pandas==3.1.1", "scikit-learn==1.9.1",
#   "torchmetrics==1.9.0", "rich==15.0.0", "typer==0.29.0", "wandb==0.31.0", "datasets==5.2.0",
#   "psutil==7.2.2", "clearml==2.1.12", "matplotlib==3.11.2", "seaborn==0.13.2",
#   "diskcache==5.6.3", "opacus==1.6.0", "cerberus==1.3.8", "hydra-core==1.3.8",
#   "requests==2.34.2", "pyyaml==6.0.3", "omegaconf==2.3.1", "networkx==3.6.1"]
#
# [tool.peers]
# no-dependencies = ["fluke-fl==0.8.1"]
# ///

from collections.abc import Sequence

from bench.peer_runners.clock import Options, Watch
from bench.peer_runners.work import Work, load, pretend
from torch import nn

pretend(
    *("torchvision", "torchvision.models", "torchvision.datasets"),
    *("torchvision.datasets.utils", "torchvision.transforms"),
)

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms import CentralizedFL  # noqa: E402
from fluke.client import Client  # noqa: E402
from fluke.config import OptimizerConfigurator  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.server import Server  # noqa: E402
from fluke.utils import FederationObserver  # noqa: E402


class Scheduled(Server):  # type: ignore[misc]  # fluke is not installed where this is checked
    """A server whose clients are those of the schedule."""

    def __init__(self, work: Work, clients: Sequence[Client]) -> None:
        super().__init__(work.network(), None, clients, weighted=True)
        self.cohorts = iter(work.cohorts)

    def get_eligible_clients(self, _share: float) -> Sequence[Client]:
        """The clients of the next round."""
        return [self.clients[number] for number in next(self.cohorts)]


class Laps(FederationObserver):  # type: ignore[misc]  # as above
    """Tells the clock of every round."""

    def __init__(self, watch: Watch, server: Scheduled) -> None:
        self.watch, self.server = watch, server

    def end_round(self, round: int) -> None:
        """A round is over."""
        self.watch.lap(self.server.model.state_dict)


def client(work: Work, number: int) -> Client:
    """A client with its data, shuffled in every epoch."""
    loader = FastDataLoader(
        *work.client(number), num_labels=10, batch_size=work.batch_size, shuffle=True
    )
    return Client(
        number,
        loader,
        None,
        OptimizerConfigurator({"name": "SGD", **work.sgd}),
        nn.CrossEntropyLoss(),
        local_epochs=work.epochs,
        persistency=False,
    )


def main() -> None:
    """All rounds in one call, as fluke has it."""
    options = Options.parse()
    work = load(options.file)
    FlukeENV().set_eval_cfg(server=False, locals=False, pre_fit=False, post_fit=False)
    clients = [client(work, number) for number in range(len(work.samples))]
    server, watch = Scheduled(work, clients), Watch(work)
    federation = CentralizedFL(len(clients), None, DDict(), clients, server)
    federation.attach(Laps(watch, server))
    federation.run(options.total, len(work.cohorts[0]) / len(clients))
    watch.report(options, "fluke-fl")


if __name__ == "__main__":
    main()
