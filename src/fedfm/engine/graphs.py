"""Local steps as CUDA graphs: captured once, then replayed without the host.

A graph reads and writes the addresses that it was captured with. A cohort therefore keeps its
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
from fedfm.core.trees import Tree
from fedfm.data.batches import BatchPlan
from fedfm.engine.cohort import Cohort, CohortPart, Step, TrainingJob, TrainingResult
from fedfm.engine.corrections import Correction, find_linear_correction
from fedfm.engine.device_data import DeviceData, StagedData
from fedfm.engine.executors import StackedExecutor
from fedfm.engine.layout import copy_arranged
from fedfm.engine.objective import Objective
from fedfm.engine.profile import phase
from fedfm.engine.step_blocks import Block, find_repeated_blocks
from fedfm.engine.update import FixedClock, update
from fedfm.methods.base import Model
from fedfm.optim import Sgd

logger = logging.getLogger(__name__)
MIN_STEPS = 2
"""Capture steps that repeat this often in a round; capturing costs about four steps, once."""
MAX_GRAPHS = 256
"""Graphs that a cohort keeps: clients of ever new sizes would need ever new ones."""
MAX_COHORTS = 2
"""Cohorts to keep: two, for one that had to be split into parts of unequal size."""


class GraphCohort(Cohort):
    """A cohort at fixed addresses whose steps are captured and replayed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.steps: dict[tuple[int, ...], Step] = {}
        self.stage = None if self.data.resident else StagedData(self.data)
        self.capturing = True
        self.correction: Correction | None = None
        job: TrainingJob = arguments[-1]
        like = next(trees.leaves(self.model.params))
        self.clock = FixedClock(job.optimizer, job.factors, like)
        self.pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None

    def fits(self, job: TrainingJob) -> bool:
        """Return whether a job has the same pieces, losses, optimizer and shapes as this cohort.

        The rate may differ if a schedule changes it.
        """
        objective = job.objective
        return (
            list(objective.pieces) == list(self.objective.pieces)
            and objective.task_loss == self.objective.task_loss
            and (job.optimizer, job.clipping) == (self.optimizer, self.clipping)
            and (bool(job.factors), len(job.plans)) == (bool(self.clock.factors), len(self.losses))
            and job.trained == self.trained
            and _shapes(objective.held) == _shapes(self.objective.held)
        )

    def retrain(self, job: TrainingJob) -> TrainingResult:
        """Train another round from other values; return a copy of the result."""
        plans = self._stage_plans(job.plans, self.stage) if self.stage else job.plans
        if self.folds_corrections:
            self._set_correction(find_linear_correction(job.objective, self.model.params))
        self.clock.factors = job.factors
        self._capture(plans)
        self._load(job.start, job.objective)
        self.draws.seeds.load([plan.seed for plan in job.plans])
        with phase("captured steps"):
            result = self.train(plans)
        model = result.model.map(lambda tree: trees.tree_map(copy_arranged, tree))
        return result._replace(model=model, moved=trees.tree_map(copy_arranged, result.moved))

    def _stage_plans(self, plans: Sequence[BatchPlan], stage: StagedData) -> list[BatchPlan]:
        """Copy the plans' samples to the device; a larger stage makes captured steps invalid."""
        staged = stage.fill(plans)
        if self.data is not stage.data:
            self.data, self.steps = stage.data, {}
        return staged

    def make_step(self, block: Block) -> Step:
        """Return the captured step, or an ordinary one where capturing does not pay off."""
        return self.steps.get(block.key) or CohortPart(self, block.rows)

    @property
    def folds_corrections(self) -> bool:
        """Whether linear corrections may become a part of the step: nothing comes in between."""
        return self.optimizer.folds_corrections and not (self.clipping and not self.clipping.first)

    def finish_step(self, part: CohortPart, grads: Tree) -> None:
        """Correct and step in one pass over memory where the corrections are linear."""
        if self.correction is None:
            super().finish_step(part, grads)
            return
        assert isinstance(self.optimizer, Sgd)
        constants = trees.rows(self.correction.constants, part.rows)
        sgd, moments = self.correction.into(self.optimizer), part.moments
        with phase("optimizer"):
            grads = self.keep_trained(grads)
            grads = self.clipping(grads) if self.clipping else grads
            params, low, factor = part.trained_params, part.low_params, self.correction.factor
            update(params, grads, moments, low, sgd, self.clock, constants, factor)

    def _set_correction(self, correction: Correction | None) -> None:
        """Set this round's correction; one of another kind makes captured steps invalid."""
        if correction and self.correction and correction.like(self.correction):
            _write(self.correction.constants, correction.constants)
        elif correction or self.correction:
            self.correction, self.steps = correction, {}

    def _capture(self, plans: Sequence[BatchPlan]) -> None:
        for block in find_repeated_blocks(plans, MIN_STEPS):
            if self.capturing and block.key not in self.steps and len(self.steps) < MAX_GRAPHS:
                part = CohortPart(self, block.rows)
                try:
                    self.steps[block.key] = capture_step(part, block, self.pool)
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
        trees.tree_map(Tensor.zero_, {**self.moments, "loss": self.losses, "terms": self.terms})


def _shapes(tree: Tree) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (leaf.shape, leaf.dtype) for name, leaf in trees.flatten(tree).items()}


def _write(into: Tree, values: Tree) -> None:
    trees.tree_map(lambda old, new: old.copy_(new), into, values)


class CapturedStep:
    """A step as a CUDA graph, with the batch's samples and draws at fixed addresses."""

    def __init__(self, part: CohortPart, indices: Tensor, draws: Tensor | None, pool: Any) -> None:
        self.part, self.indices, self.draws = part, indices.clone(), draws
        warmup = _warmup_stream()
        warmup.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warmup):
            part(self.indices, self.draws)
            with _forbid_host_sync():
                part(self.indices, self.draws)
        torch.cuda.current_stream().wait_stream(warmup)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            part(self.indices, self.draws)

    def __call__(self, indices: Tensor, draws: Tensor | None) -> None:
        """Replay the step on other samples [s, B]; refuse a batch of another shape."""
        if indices.shape != self.indices.shape:
            raise ValueError(
                f"the step was captured for batches {tuple(self.indices.shape)}, "
                f"not {tuple(indices.shape)}"
            )
        self.indices.copy_(indices)
        if self.draws is not None:
            assert draws is not None
            self.draws.copy_(draws)
        self.graph.replay()


@cache
def _warmup_stream() -> torch.cuda.Stream:
    """Return the one stream for warm-up steps; cuBLAS keeps a workspace for every stream."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch does not type it


@contextmanager
def _forbid_host_sync() -> Iterator[None]:
    """Raise if the host waits for the GPU, before that would spoil a capture."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(action="ignore"):  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        with warnings.catch_warnings(action="ignore"):
            torch.cuda.set_sync_debug_mode(before)


def capture_step(part: CohortPart, block: Block, pool: Any) -> Step:
    """Capture the step of a block's clients as a graph."""
    device = part.losses.device
    draws = None if block.draws is None else block.draws[:, 0].to(device)
    return CapturedStep(part, block.indices[:, 0].to(device), draws, pool)


class GraphExecutor(StackedExecutor):
    """Trains the cohort as one network, with every local step captured."""

    def __init__(
        self, module: nn.Module, data: DeviceData, low_dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(module, data, low_dtype)
        self.cohorts: list[GraphCohort] = []

    def train_cohort(self, job: TrainingJob) -> TrainingResult:
        """Train clients that are in packing order."""
        for cohort in self.cohorts:
            if cohort.fits(job):
                return cohort.retrain(job)
        self._keep_last(MAX_COHORTS - 1)
        self.cohorts.append(GraphCohort(self.stack, self.data, job))
        return self.cohorts[-1].retrain(job)

    def release(self) -> None:
        """Free the captured steps and their memory."""
        self._keep_last(0)
        super().release()

    def _keep_last(self, count: int) -> None:
        """Drop all but the last cohorts; clear their steps, which refer back to the cohort."""
        while len(self.cohorts) > count:
            self.cohorts.pop(0).steps.clear()
