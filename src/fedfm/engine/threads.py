"""Several clients at the same time on one CPU, each on a thread of its own.

Where the operations are large enough to be worth a thread, clients side by side with one thread
each beat one client with all threads: they never wait for each other.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

import torch

from fedfm.engine.networks import BoundNetwork
from fedfm.engine.profile import Profile

Job = TypeVar("Job")
Result = TypeVar("Result")


class NetworkPool:
    """Copies of a network, one for each CPU thread, made when they are first needed."""

    def __init__(self, net: BoundNetwork) -> None:
        self.nets = [net]

    def map(self, work: Callable[[BoundNetwork, Job], Result], jobs: Sequence[Job]) -> list[Result]:
        """The results of `work` with some network for every job."""
        threads = min(torch.get_num_threads(), len(jobs))
        if threads == 1 or Profile.active:
            return [work(self.nets[0], job) for job in jobs]
        idle: SimpleQueue[BoundNetwork] = SimpleQueue()
        for net in self._first(threads):
            idle.put(net)

        def with_a_net(job: Job) -> Result:
            net = idle.get()
            try:
                return work(net, job)
            finally:
                idle.put(net)

        before = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(threads, "lane", torch.set_num_threads, (1,)) as pool:
                return list(pool.map(with_a_net, jobs))
        finally:
            torch.set_num_threads(before)

    def _first(self, count: int) -> list[BoundNetwork]:
        while len(self.nets) < count:
            self.nets.append(self.nets[0].clone())
        return self.nets[:count]
