"""FedLab: its standalone pipeline with the serial trainer and handler of FedAvg.

Its trainer shares one optimiser between all clients; here each client gets a new one, as momentum
needs it. Its average is unweighted, which is the same here, since all clients hold as many samples.
torchvision, which it imports for data that are not used here, is pretended, since its releases pin
another build of torch: hence no-dependencies.
"""

# /// script
# dependencies = ["torch==2.13.0", "numpy==2.4.6", "pandas==3.1.1", "scikit-learn==1.9.1",
#   "pynvml==13.0.1", "tqdm==4.70.1", "munch==4.0.0", "pillow==13.0.0"]
#
# [tool.peers]
# no-dependencies = ["fedlab==1.3.0"]
# ///

import logging
from typing import Any

import torch
from bench.peer_runners.clock import Options, Watch
from bench.peer_runners.work import Batches, Work, load, pretend
from torch import Tensor

pretend("torchvision", "torchvision.transforms")

from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402


class Data:
    """The clients' data in memory."""

    def __init__(self, work: Work) -> None:
        self.clients = [work.client(number) for number in range(len(work.samples))]

    def get_dataloader(self, number: int, batch_size: int) -> Batches:
        """What the trainer asks for."""
        return Batches(*self.clients[number], batch_size)


class Trainer(FedAvgSerialClientTrainer):  # type: ignore[misc]  # FedLab is absent where this is
    """Clients that train one after another, each with a new optimiser."""  # checked

    def __init__(self, work: Work) -> None:
        super().__init__(work.network(), len(work.samples))
        self.sgd = work.sgd
        self.setup_dataset(Data(work))
        self.setup_optim(work.epochs, work.batch_size, work.sgd["lr"])

    def train(self, model_parameters: Tensor, train_loader: Batches) -> Any:
        """A client's local training."""
        self.optimizer = torch.optim.SGD(self._model.parameters(), **self.sgd)
        return super().train(model_parameters, train_loader)


class Scheduled(FedAvgServerHandler):  # type: ignore[misc]  # as above
    """A server whose clients are those of the schedule."""

    def __init__(self, work: Work, rounds: int) -> None:
        super().__init__(work.network(), rounds, len(work.cohorts[0]) / len(work.samples))
        self.cohorts = work.cohorts

    def sample_clients(self) -> list[int]:
        """The clients of the round."""
        return list(self.cohorts[self.round])


class Timed(StandalonePipeline):  # type: ignore[misc]  # as above
    """A pipeline that tells the clock of every round instead of evaluating."""

    def __init__(self, handler: Scheduled, trainer: Trainer, watch: Watch) -> None:
        super().__init__(handler, trainer)
        self.watch = watch

    def evaluate(self) -> None:
        """A round is over."""
        self.watch.lap(self.handler.model.state_dict)


def main() -> None:
    """All rounds in one call, as FedLab has it."""
    logging.getLogger().setLevel(logging.WARNING)
    options = Options.parse()
    work = load(options.file)
    watch = Watch(work)
    Timed(Scheduled(work, options.total), Trainer(work), watch).main()
    watch.report(options, "fedlab")


if __name__ == "__main__":
    main()
