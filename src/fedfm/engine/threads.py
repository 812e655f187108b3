"""Train several clients at the same time on one CPU, each on its own thread.

Where operations are large enough, clients side by side with one thread each are faster than one
client with all threads, because they never wait for each other.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

import torch

from fedfm.engine.networks import BoundNetwork
from fedfm.engine.profile import Profile

Item = TypeVar("Item")
Result = TypeVar("Result")


class NetworkPool:
    """Copies of a network, one per CPU thread, made when they are first needed."""

    def __init__(self, net: BoundNetwork) -> None:
        self.nets = [net]
        self.limit: int | None = None

    @property
    def threads(self) -> int:
        """The number of items that may be worked on at the same time."""
        return min(torch.get_num_threads(), self.limit or torch.get_num_threads())

    def map(
        self, work: Callable[[BoundNetwork, Item], Result], items: Sequence[Item]
    ) -> list[Result]:
        """Return the results of `work(network, item)` in the order of the items."""
        threads = min(self.threads, len(items))
        if threads == 1 or Profile.active:
            return [work(self.nets[0], item) for item in items]
        idle: SimpleQueue[BoundNetwork] = SimpleQueue()
        for net in self._first_networks(threads):
            idle.put(net)

        def work_with_idle_network(item: Item) -> Result:
            net = idle.get()
            try:
                return work(net, item)
            finally:
                idle.put(net)

        before = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(threads, "clients", torch.set_num_threads, (1,)) as pool:
                return list(pool.map(work_with_idle_network, items))
        finally:
            torch.set_num_threads(before)

    def _first_networks(self, count: int) -> list[BoundNetwork]:
        while len(self.nets) < count:
            self.nets.append(self.nets[0].clone())
        return self.nets[:count]
