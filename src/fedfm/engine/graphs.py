"""Local steps as CUDA graphs: captured once, then replayed without the host.

A graph reads and writes the addresses it saw when it was captured, so its cohort keeps its
tensors, and `retrain` writes the next round's values into them.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fedfm.core import trees
from fedfm.core.sgd import Sgd
from fedfm.core.trees import Tree
from fedfm.data.batches import BatchPlan
from fedfm.engine.cohort import Cohort, CohortPart, Step, TrainingResult
from fedfm.engine.corrections import Correction, find_linear_correction
from fedfm.engine.device_data import DeviceData, StagedData
from fedfm.engine.executors import StackedExecutor
from fedfm.engine.layout import copy_arranged
from fedfm.engine.objective import Objective
from fedfm.engine.profile import phase
from fedfm.engine.schedule import Block, find_repeated_blocks
from fedfm.engine.update import update
from fedfm.methods.base import Model

logger = logging.getLogger(__name__)
WORTHWHILE = 2
"""From how many equal steps a round on they are captured, which costs about four steps once."""
MOST = 256
"""Graphs that a cohort keeps: clients of ever new sizes would need ever new ones."""
KEPT = 2
"""Cohorts that are kept: two, for a cohort that had to be split into parts of unequal size."""


class GraphCohort(Cohort):
    """A cohort at fixed addresses whose steps are captured and replayed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.steps: dict[tuple[int, ...], Step] = {}
        self.stage = None if self.data.resident else StagedData(self.data)
        self.capturing = True
        self.correction: Correction | None = None
        self.pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None

    def fits(self, objective: Objective, sgd: Sgd, clients: int) -> bool:
        """Whether another round of this network has the same pieces and shapes."""
        return (
            list(objective.pieces) == list(self.objective.pieces)
            and (sgd, clients) == (self.sgd, len(self.losses))
            and _shapes(objective.held) == _shapes(self.objective.held)
        )

    def retrain(
        self,
        start: Model,
        objective: Objective,
        plans: Sequence[BatchPlan],
        seed: int | None = None,
    ) -> TrainingResult:
        """A round of local training from other values; its outcome is a copy.

        `seed` is for a network that draws numbers: set after capturing, which draws some as well.
        """
        if self.stage:
            plans = self._staged(plans, self.stage)
        self._correct_by(find_linear_correction(objective, self.model.params))
        self._capture(plans)
        self._load(start, objective)
        if seed is not None:
            torch.cuda.manual_seed(seed)
        with phase("captured steps"):
            outcome = self.train(plans)
        return outcome._replace(
            model=outcome.model.map(lambda tree: trees.tree_map(copy_arranged, tree))
        )

    def _staged(self, plans: Sequence[BatchPlan], stage: StagedData) -> list[BatchPlan]:
        """The plans on data that lie on the device; a larger stage has other addresses."""
        staged = stage.fill(plans)
        if self.data is not stage.data:
            self.data, self.steps = stage.data, {}
        return staged

    def make_step(self, block: Block) -> Step:
        """The captured step, or one that runs as it is where capturing is not worth it."""
        return self.steps.get(block.key) or CohortPart(self, block.rows)

    def finish(self, part: CohortPart, grads: Tree) -> None:
        """Corrections and step in one pass over memory, where the corrections are linear."""
        if self.correction is None:
            super().finish(part, grads)
            return
        constants = trees.rows(self.correction.constants, part.rows)
        sgd = self.correction.into(self.sgd)
        with phase("optimizer"):
            update(part.params, grads, part.momenta, part.low_params, sgd, constants)

    def _correct_by(self, found: Correction | None) -> None:
        """Another round's correction; steps that were captured with another kind are void."""
        if found and self.correction and found.like(self.correction):
            _write(self.correction.constants, found.constants)
        elif found or self.correction:
            self.correction, self.steps = found, {}

    def _capture(self, plans: Sequence[BatchPlan]) -> None:
        for block in find_repeated_blocks(plans, WORTHWHILE):
            if self.capturing and block.key not in self.steps and len(self.steps) < MOST:
                try:
                    self.steps[block.key] = capture_step(
                        CohortPart(self, block.rows), block, self.pool
                    )
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError as problem:
                    self.capturing = False
                    logger.warning("steps are not captured as graphs: %s", problem)

    def _load(self, start: Model, objective: Objective) -> None:
        _write(self.model._asdict(), start._asdict())
        _write(self.objective.held, objective.held)
        _write(self.low_params, self.model.params)
        for piece, views in self.objective.views().items():
            for name, view in views.items():
                _write(self.views[piece][name]._asdict(), view._asdict())
        trees.tree_map(Tensor.zero_, self.momenta)
        self.losses.zero_()


def _shapes(tree: Tree) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (leaf.shape, leaf.dtype) for name, leaf in trees.flatten(tree).items()}


def _write(into: Tree, values: Tree) -> None:
    trees.tree_map(lambda old, new: old.copy_(new), into, values)


class CapturedStep:
    """A step as a graph, with the batch's samples and draws at addresses of their own."""

    def __init__(self, part: CohortPart, indices: Tensor, draws: Tensor | None, pool: Any) -> None:
        self.part, self.indices, self.draws = part, indices.clone(), draws
        aside = _aside()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            part(self.indices, self.draws)
            with _without_waiting():
                part(self.indices, self.draws)
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            part(self.indices, self.draws)

    def __call__(self, indices: Tensor, draws: Tensor | None) -> None:
        """The step on other samples [s, B]; a batch of another shape is refused."""
        if indices.shape != self.indices.shape:
            raise ValueError(
                f"a step captured for batches {tuple(self.indices.shape)} was given "
                f"{tuple(indices.shape)}"
            )
        self.indices.copy_(indices)
        if self.draws is not None:
            assert draws is not None
            self.draws.copy_(draws)
        self.graph.replay()


@cache
def _aside() -> torch.cuda.Stream:
    """Where steps are tried out: one stream, since cuBLAS keeps a workspace for every one."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch does not type it


@contextmanager
def _without_waiting() -> Iterator[None]:
    """Raise where the host waits for the GPU: found out here, it does not spoil a capture."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(action="ignore"):  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        with warnings.catch_warnings(action="ignore"):
            torch.cuda.set_sync_debug_mode(before)


def capture_step(part: CohortPart, block: Block, pool: Any) -> Step:
    """The step of a block's clients as a graph."""
    device = part.losses.device
    draws = None if block.draws is None else block.draws[:, 0].to(device)
    return CapturedStep(part, block.indices[:, 0].to(device), draws, pool)


class GraphExecutor(StackedExecutor):
    """The cohort as one network, every local step captured."""

    def __init__(self, module: nn.Module, data: DeviceData, low: torch.dtype | None = None) -> None:
        super().__init__(module, data, low)
        self.cohorts: list[GraphCohort] = []

    def train_cohort(
        self, start: Model, plans: Sequence[BatchPlan], objective: Objective, sgd: Sgd
    ) -> TrainingResult:
        """The training of clients that are in packing order."""
        for cohort in self.cohorts:
            if cohort.fits(objective, sgd, len(plans)):
                return cohort.retrain(start, objective, plans)
        self._keep(KEPT - 1)
        self.cohorts.append(GraphCohort(self.stack, self.data, start, objective, sgd, len(plans)))
        return self.cohorts[-1].retrain(start, objective, plans)

    def release(self) -> None:
        """Forget the captured steps and their memory."""
        self._keep(0)
        super().release()

    def _keep(self, most: int) -> None:
        """The last cohorts only; steps and cohorts know each other, so these have to part."""
        while len(self.cohorts) > most:
            self.cohorts.pop(0).steps.clear()
