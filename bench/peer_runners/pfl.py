"""pfl-research: FederatedAveraging on its SimulatedBackend, clients as tensors in memory.

It takes a client's batches in the same order in every epoch. `processes` share a cohort through
torch.distributed.
"""

# /// script
# dependencies = ["torch==2.13.0", "pfl==0.6.0"]
#
# [tool.peers]
# settings = [[1, 1], [1, 2], [2, 1]]
# environment = { GLOO_SOCKET_IFNAME = "lo" }
# ///

import os
import sys
from collections.abc import Callable
from functools import partial
from itertools import chain

import torch
import torch.nn.functional as F
from bench.peer_runners.clock import Options, Watch
from bench.peer_runners.work import Work, load
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

NEVER = 10**9


class Laps(TrainingProcessCallback):  # type: ignore[misc]  # pfl is absent where this is checked
    """Tells the clock of every round."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def after_central_iteration(
        self, _metrics: object, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """A round is over; go on."""
        self.watch.lap(model.pytorch_model.state_dict)
        return False, Metrics()


def model(work: Work) -> PyTorchModel:
    """The network with the methods and optimisers that pfl wants."""
    module: nn.Module = work.network()

    def loss(inputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(module(inputs), labels)

    def metrics(inputs: Tensor, labels: Tensor) -> dict[str, Weighted]:
        total = loss(inputs, labels).item() * len(labels)
        return {"loss": Weighted(total, len(labels))}

    module.__dict__.update(loss=loss, metrics=metrics)
    rest = {name: value for name, value in work.sgd.items() if name != "lr"}
    central = torch.optim.SGD(module.parameters(), lr=1.0)
    return PyTorchModel(module, partial(torch.optim.SGD, **rest), central)


def clients(work: Work) -> FederatedDataset:
    """Every client's data, and the clients in the order of the schedule."""
    users = [Dataset(work.client(number)) for number in range(len(work.samples))]
    following: Callable[[], int] = chain.from_iterable(work.cohorts).__next__
    return FederatedDataset(users.__getitem__, following)


def simulate(options: Options) -> None:
    """All rounds in one call, as pfl has it; it evaluates in the first round only."""
    work = load(options.file)
    watch, backend = Watch(work), SimulatedBackend(clients(work), None, [WeightByDatapoints()])
    cohort = len(work.cohorts[0])
    FederatedAveraging().run(
        NNAlgorithmParams(options.total, NEVER, cohort, None),
        backend,
        model(work),
        NNTrainHyperParams(
            local_batch_size=work.batch_size,
            local_num_epochs=work.epochs,
            local_learning_rate=work.sgd["lr"],
        ),
        callbacks=[Laps(watch)],
        send_metrics_to_platform=False,
    )
    if os.environ.get("RANK", "0") == "0":
        watch.report(options, "pfl", None if options.processes == 1 else os.getppid())


def main() -> None:
    """In this process, or in several that PyTorch's launcher starts."""
    options = Options.parse()
    if options.processes == 1 or "RANK" in os.environ:
        simulate(options)
        return
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={options.processes}"]
    runner = ["-m", "bench.peer_runners.pfl", *sys.argv[1:]]
    os.execv(sys.executable, [sys.executable, "-m", *launcher, *runner])


if __name__ == "__main__":
    main()
