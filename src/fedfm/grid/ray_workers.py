"""Jobs on a Ray cluster: one per task, with a GPU each where there are any.

The cluster's machines must see the results folder under the same path, and have fedfm.
"""

from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import Any

from fedfm.core.errors import UserError, not_installed
from fedfm.grid.budget import Budget
from fedfm.grid.jobs import Job
from fedfm.grid.worker import Outcome, Told, work


class OnRay:
    """A cluster: that at an address, or one of this machine alone."""

    def __init__(self, results: Path, budget: Budget, address: str | None = None) -> None:
        self._ray = _ray()
        self.results, self.budget = results.resolve(), budget
        try:
            self._ray.init(address=address, include_dashboard=False, log_to_driver=False)
        except ConnectionError as problem:
            raise UserError(f"no Ray cluster answers at {address}: {problem}") from problem
        self._unit = "GPU" if self._ray.cluster_resources().get("GPU") else "CPU"
        self.device = "cuda" if self._unit == "GPU" else "cpu"
        self._task = self._ray.remote(max_retries=0, **{f"num_{self._unit.lower()}s": 1})(work)
        self._begun: list[Any] = []

    @property
    def slots(self) -> int:
        """As many as the cluster has GPUs, or CPUs, by now."""
        return max(1, int(self._ray.cluster_resources().get(self._unit, 1)))

    def submit(self, job: Job, told: Told) -> "Future[Outcome]":
        """A task; its files are written by it, only how it ended comes back."""
        begun = self._task.remote(job, self.results, self.budget, threads=1)
        self._begun.append(begun)
        future: Future[Outcome] = begun.future()
        return future

    def stop(self) -> None:
        """At once: what a task had saved by then is whole."""
        for task in self._begun:
            self._ray.cancel(task)

    def close(self) -> None:
        """Leave the cluster; one of this machine alone ends."""
        self._ray.shutdown()


def _ray() -> Any:
    try:
        return import_module("ray")
    except ModuleNotFoundError as problem:
        raise not_installed("--engine ray needs Ray", "ray") from problem
