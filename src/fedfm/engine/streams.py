"""Clients side by side on streams of a GPU, for networks that cannot be stacked."""

import logging
from collections.abc import Sequence

import torch
from torch import nn

from fedfm.core.errors import require
from fedfm.core.sgd import Sgd
from fedfm.data.batches import BatchPlan
from fedfm.engine.cohort import TrainingResult, gather_results
from fedfm.engine.device_data import DeviceData
from fedfm.engine.executors import ALONE, LoopExecutor
from fedfm.engine.graphs import GraphCohort
from fedfm.engine.networks import BoundNetwork
from fedfm.engine.objective import Objective
from fedfm.engine.out_of_memory import retry
from fedfm.methods.base import Model

logger = logging.getLogger(__name__)
TRACKS = 10
"""How many streams there are at most."""


class StreamsExecutor(LoopExecutor):
    """Clients side by side on streams of their own, for networks that cannot be stacked.

    A network that draws random numbers trains one client after another: the draws of clients that
    overlap would depend on each other.
    """

    def __init__(self, module: nn.Module, data: DeviceData, low: torch.dtype | None = None) -> None:
        super().__init__(module, data, low)
        self.tracks, self.most = [ClientStream(self.net)], TRACKS

    def train(
        self, start: Model, plans: Sequence[BatchPlan], objective: Objective, sgd: Sgd
    ) -> TrainingResult:
        """S cohorts of one client, on up to `TRACKS` streams; fewer where memory is short."""
        return retry(lambda: self._train(start, plans, objective, sgd), self._fewer)

    def _train(
        self, start: Model, plans: Sequence[BatchPlan], objective: Objective, sgd: Sgd
    ) -> TrainingResult:
        while len(self.tracks) < min(len(plans), 1 if self.random else self.most):
            self.tracks.append(ClientStream(self.net.clone()))
        outcomes = []
        with torch.random.fork_rng():
            for client, plan in enumerate(plans):
                one, track = slice(client, client + 1), self.tracks[client % len(self.tracks)]
                seed = plan.seed if self.random else None
                outcomes.append(
                    track.train(self.data, start.rows(one), plan, objective.rows(one), sgd, seed)
                )
        for track in self.tracks:
            torch.cuda.current_stream().wait_stream(track.stream)
        return gather_results(outcomes, torch.split(torch.arange(len(plans)), 1))

    def _fewer(self, said: str) -> None:
        """Half as many streams from now on."""
        before = len(self.tracks)
        require(before > 1, ALONE.format(said))
        self.most = before // 2
        self.release()
        logger.warning(
            "%d clients side by side need more memory than the GPU has (%s): %d from now on",
            before, said, self.most,
        )  # fmt: skip

    def release(self) -> None:
        """Forget the streams, with what was captured on them."""
        for track in self.tracks:
            track.release()
        self.tracks = [ClientStream(self.net)]
        super().release()


class ClientStream:
    """A stream on which clients train one after another."""

    def __init__(self, net: BoundNetwork) -> None:
        self.net = net
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch does not type it
        self.cohort: GraphCohort | None = None

    def train(
        self,
        data: DeviceData,
        start: Model,
        plan: BatchPlan,
        objective: Objective,
        sgd: Sgd,
        seed: int | None,
    ) -> TrainingResult:
        """The training of one client; the host goes on at once."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            if self.cohort is None or not self.cohort.fits(objective, sgd, 1):
                self.cohort = GraphCohort(self.net, data, start, objective, sgd, 1)
            return self.cohort.retrain(start, objective, [plan], seed)

    def release(self) -> None:
        """Forget what was captured."""
        if self.cohort:
            self.cohort.steps.clear()
        self.cohort = None
        self.net.unbind()
