"""Train clients side by side on GPU streams, for networks that cannot be stacked."""

import torch
from torch import nn

from fedfm.engine.cohort import TrainingJob, TrainingResult, gather_results
from fedfm.engine.device_data import DeviceData
from fedfm.engine.executors import LoopExecutor
from fedfm.engine.graphs import GraphCohort
from fedfm.engine.networks import BoundNetwork
from fedfm.engine.out_of_memory import halve, retry

MAX_STREAMS = 10


class StreamsExecutor(LoopExecutor):
    """Trains clients side by side, each on its own GPU stream."""

    def __init__(
        self, module: nn.Module, data: DeviceData, low_dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(module, data, low_dtype)
        self.streams, self.max_streams = [ClientStream(self.net)], MAX_STREAMS

    def train(self, job: TrainingJob) -> TrainingResult:
        """Train S cohorts of one client; on fewer streams when memory runs out."""
        return retry(lambda: self._train(job), self._halve_streams)

    def _train(self, job: TrainingJob) -> TrainingResult:
        clients = len(job.plans)
        while len(self.streams) < min(clients, self.max_streams):
            self.streams.append(ClientStream(self.net.clone()))
        results = []
        for client in range(clients):
            stream = self.streams[client % len(self.streams)]
            results.append(stream.train(self.data, job.rows(slice(client, client + 1))))
        for stream in self.streams:
            torch.cuda.current_stream().wait_stream(stream.stream)
        return gather_results(results, torch.split(torch.arange(clients), 1))

    def _halve_streams(self, reason: str) -> None:
        before = len(self.streams)
        self.max_streams = halve(before, "training %d clients side by side", reason)
        self.release()

    def release(self) -> None:
        """Free the streams and the steps captured on them."""
        for stream in self.streams:
            stream.release()
        self.streams = [ClientStream(self.net)]
        super().release()


class ClientStream:
    """A GPU stream on which clients train one after another."""

    def __init__(self, net: BoundNetwork) -> None:
        self.net = net
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch does not type it
        self.cohort: GraphCohort | None = None

    def train(self, data: DeviceData, job: TrainingJob) -> TrainingResult:
        """Train one client, without waiting for the GPU."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            if self.cohort is None or not self.cohort.fits(job):
                self.cohort = GraphCohort(self.net, data, job)
            return self.cohort.retrain(job)

    def release(self) -> None:
        """Free the captured steps."""
        if self.cohort:
            self.cohort.steps.clear()
        self.cohort = None
        self.net.unbind()
