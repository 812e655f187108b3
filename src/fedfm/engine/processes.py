"""The processes that run one federation together: how they exchange facts and add tensors.

`ALONE` is the only process of its run, the usual case. A `ProcessGroup` talks by torch.distributed.
Every process calls the same methods in the same order; each call returns the same in all of them.
"""

import atexit
import json
import math
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from fedfm.core import trees
from fedfm.core.errors import UserError, require
from fedfm.core.torchrun import RESUME, is_launched, local_rank
from fedfm.core.trees import Tree
from fedfm.engine.profile import phase

TIMEOUT, SECONDS = "FEDFM_TIMEOUT", 1800.0
"""The environment variable with the longest wait for another process, and its default."""
Form = dict[str, Any]
"""The names, types and shapes of a tree's leaves, as plain values."""


class Processes:
    """The only process of a run: what it has is everything."""

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """Whether this process writes the files of the run."""
        return self.rank == 0

    def gather(self, facts: Any) -> list[Any]:
        """Return the facts of every process, in order; facts are plain values, as in JSON."""
        return [facts]

    def add(self, tree: Tree) -> Tree:
        """Return the sum of all processes' trees; an empty tree adds nothing."""
        return tree

    def find_largest(self, tree: Tree) -> Tree:
        """Return the elementwise maximum of all processes' trees, without empty ones."""
        return tree

    def spread(self, tree: Tree) -> list[Tree]:
        """Return the trees of every process, in order; they may differ in form."""
        return [tree]

    def split(self, samples: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return this process's part of the samples of every client."""
        return samples

    def wait(self) -> None:
        """Wait until every process is here."""

    def settle(self, device: torch.device) -> None:
        """Say where the tensors are that will be added."""

    @contextmanager
    def take_turns(self) -> Iterator[None]:
        """Let the first process of every machine run the block before the others."""
        yield


ALONE = Processes()


class ProcessGroup(Processes):
    """One of several processes.

    Facts travel by gloo; tensors by NCCL where every process has a GPU of its own, else by gloo.
    """

    def __init__(self) -> None:
        text = os.environ.get(TIMEOUT, str(SECONDS))
        require(text.replace(".", "", 1).isdecimal(), f"{TIMEOUT} must be seconds, not {text!r}")
        self.timeout = timedelta(seconds=float(text))
        with _explain_loss(self.timeout):
            if dist.is_initialized():
                self.facts = dist.new_group(backend="gloo", timeout=self.timeout)
            else:
                dist.init_process_group("gloo", timeout=self.timeout)
                self.facts = dist.group.WORLD
                atexit.register(dist.destroy_process_group)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device = self.transport = torch.device("cpu")
        self.tensors = self.facts

    def settle(self, device: torch.device) -> None:
        """Say where the tensors are that will be added."""
        gpu_id = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
        places = self.gather([socket.gethostname(), gpu_id])
        each_has_one = all(gpu for _, gpu in places) and len({*map(tuple, places)}) == self.size
        self.device, self.transport = device, device if each_has_one else torch.device("cpu")
        self.tensors = _connect_gpus(self.timeout) if each_has_one else self.facts

    def gather(self, facts: Any) -> list[Any]:
        """Return the facts of every process, in order."""
        return self._gather("facts", facts)

    def _gather(self, kind: str, facts: Any) -> list[Any]:
        """Return the facts of every process; refuse processes that are doing something else."""
        several = self._exchange([kind, facts])
        require(
            all(other == kind for other, _ in several),
            "the processes do not do the same: run the same command in each, or the same program",
        )
        return [facts for _, facts in several]

    def _exchange(self, facts: Any) -> list[Any]:
        text = torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._call(dist.all_gather, lengths, torch.tensor([len(text)]), group=self.facts)
        longest = max(map(int, lengths))
        texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        padded = pad(text, (0, longest - len(text)))
        self._call(dist.all_gather, texts, padded, group=self.facts)
        pairs = zip(texts, map(int, lengths), strict=True)
        return [json.loads(each[:length].numpy().tobytes()) for each, length in pairs]

    def add(self, tree: Tree) -> Tree:
        """Return the sum of all processes' trees."""
        return self._fold(tree, lambda rows: rows.sum(0, dtype=rows.dtype))

    def find_largest(self, tree: Tree) -> Tree:
        """Return the elementwise maximum of all processes' trees."""
        return self._fold(tree, lambda rows: rows.amax(0))

    def _fold(self, tree: Tree, fold: Callable[[Tensor], Tensor]) -> Tree:
        """Fold the trees of the processes that have one: rows [P, n] become [n].

        Each process folds a part of all numbers, in the order of the processes, whatever way these
        travel: the result is bitwise the same everywhere and every time.
        """
        forms = self._gather("sum", _describe(tree))
        having = [rank for rank, form in enumerate(forms) if form]
        if not having:
            return {}
        form = forms[having[0]]
        assert all(forms[rank] == form for rank in having), "all processes sum the same"
        vectors = self._pack(tree or self._allocate(form), form)
        for kind, vector in vectors.items():
            missing = -len(vector) % self.size
            padded = pad(vector, (0, missing)) if missing else vector
            rows = torch.empty_like(padded).view(self.size, -1)
            self._call(dist.all_to_all_single, rows.view(-1), padded, group=self.tensors)
            part = fold(rows if len(having) == self.size else rows[having])
            self._call(dist.all_gather, [*rows], part, group=self.tensors)
            vectors[kind] = rows.view(-1)[: len(vector)]
        return self._unpack(vectors, form)

    def spread(self, tree: Tree) -> list[Tree]:
        """Return the trees of every process, in order."""
        forms = self._gather("trees", _describe(tree))
        return [self._send(tree, form, rank) for rank, form in enumerate(forms)]

    def _send(self, tree: Tree, form: Form, sender: int) -> Tree:
        """Return the sender's tree, of the given form."""
        sending = sender == self.rank
        vectors = self._pack(tree if sending else self._allocate(form), form)
        for vector in vectors.values():
            self._call(dist.broadcast, vector, group=self.tensors, group_src=sender)
        return tree if sending else self._unpack(vectors, form)

    def _pack(self, tree: Tree, form: Form) -> dict[str, Tensor]:
        """Return the numbers of a tree in the order of its form, as one vector for each type."""
        kinds: dict[str, list[Tensor]] = {}
        for leaf in trees.leaves(trees.complete(tree, form)):
            kinds.setdefault(_name_type(leaf), []).append(leaf.reshape(-1).to(self.transport))
        return {kind: torch.cat(kinds[kind]) for kind in sorted(kinds)}

    def _unpack(self, vectors: dict[str, Tensor], form: Form) -> Tree:
        """Return the tree of a form, as views of vectors that `_pack` made."""
        left = {kind: vector.to(self.device) for kind, vector in vectors.items()}

        def take(form: Form) -> Tree:
            return {
                name: take_leaf(*each) if isinstance(each, list) else take(each)
                for name, each in form.items()
            }

        def take_leaf(kind: str, shape: list[int]) -> Tensor:
            leaf, left[kind] = left[kind].tensor_split([math.prod(shape)])
            return leaf.view(shape)

        return take(form)

    def _allocate(self, form: Form) -> Tree:
        return {
            name: torch.zeros(each[1], dtype=getattr(torch, each[0]), device=self.device)
            if isinstance(each, list)
            else self._allocate(each)
            for name, each in form.items()
        }

    def split(self, samples: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return this process's part of the samples of every client: every P-th one."""
        return [part[(self.rank + k) % self.size :: self.size] for k, part in enumerate(samples)]

    def wait(self) -> None:
        """Wait until every process is here."""
        self._gather("wait", None)

    @contextmanager
    def take_turns(self) -> Iterator[None]:
        """Let the first process of every machine run the block before the others."""
        if local_rank():
            self.wait()
        yield
        if not local_rank():
            self.wait()

    def _call(self, collective: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        with phase("other processes"), _explain_loss(self.timeout):
            collective(*arguments, **options)


@cache
def connect() -> Processes:
    """Return the processes of this run; wait for the others if a launcher started several."""
    return ProcessGroup() if is_launched() else ALONE


@cache
def _connect_gpus(timeout: timedelta) -> Any:
    return dist.new_group(backend="nccl", timeout=timeout)


def _name_type(leaf: Tensor) -> str:
    return str(leaf.dtype).removeprefix("torch.")


def _describe(tree: Tree) -> Form:
    return {
        name: _describe(each) if isinstance(each, dict) else [_name_type(each), [*each.shape]]
        for name, each in tree.items()
    }


@contextmanager
def _explain_loss(timeout: timedelta) -> Iterator[None]:
    """Turn errors of the network into a line that says what happened and how to go on."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as problem:
        seconds = f"{timeout.total_seconds():g} s"
        late = f"did not answer within {seconds} ({TIMEOUT} sets how long to wait)"
        what = late if "timed out" in str(problem).lower() else "has ended"
        raise UserError(f"another process of this run {what}: {RESUME}") from problem
