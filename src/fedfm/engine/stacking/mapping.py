"""Run a network of any kind for S clients: `torch.func.vmap` over weights and samples.

A layer with a stacked form leaves the map and computes all clients at once. A layer that cannot be
mapped leaves it as well and computes one client after another. Everything around them, such as free
parameters and attention, is mapped by torch's batching rules.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from fedfm.core.inputs import InputTree, call_network, input_leaves
from fedfm.engine.randomness import count_calls, draw_for
from fedfm.engine.stacking.attention import RULE as _ATTENTION_RULE  # noqa: F401 (kept alive)
from fedfm.engine.stacking.attention import AttendTogether
from fedfm.engine.stacking.means import ExpandedMean
from fedfm.engine.stacking.rows import runs_kernels
from fedfm.engine.stacking.scaling import FusedScaling
from fedfm.engine.stacking.unbinding import UnbindInPlace


class ClientsDisagree(RuntimeError):
    """The forward pass takes different branches for different clients."""


class CommonBranches(TorchFunctionMode):
    """Lets a mapped forward pass branch on a value where it is true for all clients or for none."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function; answer `bool(tensor)` for all clients together."""
        if func is Tensor.__bool__ and functorch.is_batchedtensor(args[0]):
            values = functorch.get_unwrapped(args[0])
            if values.all() != values.any():
                raise ClientsDisagree("clients take different branches of the forward pass")
            return bool(values.any())
        return func(*args, **(kwargs or {}))


Tensors = list[Tensor]
Run = Callable[[int, Tensors], Tensors]
"""Computes outputs [S, ...], given S and tensors [S, ...]."""


def leave_map(run: Run, client: Tensor, tensors: Tensors) -> Tensors:
    """Call a function on whole tensors [S, ...] inside a map over clients; `client` is mapped.

    A custom autograd function with a batching rule would do the same, at five times the cost.
    """
    level, size = functorch.maybe_get_level(client), len(functorch.get_unwrapped(client))
    whole = [_unwrap(tensor, level, size) for tensor in tensors]
    with temporarily_pop_interpreter_stack():
        outputs = run(size, whole)
    return [functorch._add_batch_dim(output, 0, level) for output in outputs]


def _unwrap(tensor: Tensor, level: int, size: int) -> Tensor:
    """Return a mapped tensor with its clients as first dimension, any other once per client."""
    if functorch.is_batchedtensor(tensor) and functorch.maybe_get_level(tensor) == level:
        whole: Tensor = functorch.get_unwrapped(tensor)
        return whole.movedim(functorch.maybe_get_bdim(tensor), 0)
    return tensor.expand(size, *tensor.shape)


class Slots:
    """The places in a module that hold its tensors, to put others there for a while.

    Tensors that are the same for all clients are left out: `constants`.
    """

    def __init__(self, module: nn.Module, constants: Iterable[Tensor] = ()) -> None:
        left_out = {id(tensor) for tensor in constants}
        places: dict[int, list[tuple[dict[str, Any], str]]] = {}
        for owner in module.modules():
            for held in (owner._parameters, owner._buffers):
                for name, tensor in held.items():
                    if tensor is not None and id(tensor) not in left_out:
                        places.setdefault(id(tensor), []).append((cast(dict[str, Any], held), name))
        self.places = list(places.values())
        self.recurrent = [layer for layer in module.modules() if isinstance(layer, nn.RNNBase)]

    def tensors(self) -> Tensors:
        """Return what the places hold."""
        return [held[name] for ((held, name), *_) in self.places]

    @contextmanager
    def hold(self, tensors: Tensors) -> Iterator[None]:
        """Hold other tensors; one that the module replaces meanwhile gets the new values."""
        before = self.tensors()
        self._put(tensors)
        try:
            yield
            for ((held, name), *_), tensor in zip(self.places, tensors, strict=True):
                if held[name] is not tensor:
                    tensor.copy_(held[name].detach())
        finally:
            self._put(before)

    def _put(self, tensors: Tensors) -> None:
        for places, tensor in zip(self.places, tensors, strict=True):
            for held, name in places:
                held[name] = tensor
        for layer in self.recurrent:
            layer._flat_weights = [layer._parameters[name] for name in layer._flat_weights_names]


class ClientMap:
    """A module that is called on inputs [S, B, ...], with tensors [S, ...] in its places.

    Layers named `folded` have been replaced by stacked ones, which take samples [S*B, ...]. Modules
    named `one_by_one` compute one client after another.
    """

    def __init__(
        self,
        module: nn.Module,
        folded: Iterable[str],
        one_by_one: Iterable[str],
        constants: Iterable[Tensor],
    ) -> None:
        self.module, self.constants = module, [*constants]
        self.slots = Slots(module, self.constants)
        self._client: Tensor | None = None
        for name in folded:
            self._fold(module.get_submodule(name))
        for name in one_by_one:
            self._run_one_by_one(module.get_submodule(name))

    def __call__(self, inputs: InputTree) -> Any:
        """Return what the module returns for each client, as tensors [S, ...]."""

        def forward(client: Tensor, tensors: Tensors, own_inputs: InputTree) -> Any:
            self._client = client
            with self.slots.hold(tensors):
                return call_network(self.module, own_inputs)

        first = input_leaves(inputs)[0]
        clients = torch.arange(len(first), device=first.device)
        with _quiet(), self._leave_map(first):
            mapped = torch.func.vmap(forward, randomness="different")
            return mapped(clients, self.slots.tensors(), inputs)

    @contextmanager
    def _leave_map(self, x: Tensor) -> Iterator[None]:
        """Let operations leave the map on a GPU: attention, and what kernels compute faster."""
        leave = self._leave_any
        with ExitStack() as modes:
            if x.is_cuda:
                modes.enter_context(AttendTogether(leave))
            if runs_kernels(x):
                modes.enter_context(UnbindInPlace(leave))
                modes.enter_context(ExpandedMean(leave))
                modes.enter_context(FusedScaling(self._leave))
            yield

    def _fold(self, layer: nn.Module) -> None:
        """Let a stacked layer compute all clients at once."""
        slots = Slots(layer, self.constants)

        def forward(input: Tensor, **options: Any) -> Tensor:
            def run(size: int, tensors: Tensors) -> Tensors:
                x, *weights = tensors
                with slots.hold(weights):
                    y: Tensor = type(layer).forward(layer, x.flatten(0, 1), **options)
                return [torch.unflatten(y, 0, (size, -1))]

            (y,) = self._leave(run, [input, *slots.tensors()])
            return y

        layer.forward = forward
        for name in ("activate", "branch"):  # they would compute on mapped tensors
            if hasattr(layer, name):
                setattr(layer, name, None)

    def _run_one_by_one(self, module: nn.Module) -> None:
        """Let a module compute each client as in a loop."""
        slots = Slots(module, self.constants)

        def forward(*args: Any, **kwargs: Any) -> Any:
            leaves, arguments = tree_flatten((args, kwargs))
            where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
            structures: list[TreeSpec] = []

            def run_client(tensors: Tensors) -> Tensors:
                client_leaves = [*leaves]
                for i, tensor in zip(where, tensors, strict=False):
                    client_leaves[i] = tensor
                own_args, own_kwargs = tree_unflatten(client_leaves, arguments)
                with slots.hold(tensors[len(where) :]):
                    result = type(module).forward(module, *own_args, **own_kwargs)
                outputs, structure = tree_flatten(result)
                structures.append(structure)
                return outputs

            def run(size: int, tensors: Tensors) -> Tensors:
                calls, results = count_calls(), []
                for client in range(size):
                    with draw_for(client, calls):
                        results.append(run_client([tensor[client] for tensor in tensors]))
                return [torch.stack(parts) for parts in zip(*results, strict=True)]

            outputs = self._leave(run, [leaves[i] for i in where] + slots.tensors())
            return tree_unflatten(outputs, structures[0])

        module.forward = forward

    def _leave(self, run: Run, tensors: Tensors) -> Tensors:
        assert self._client is not None
        return leave_map(run, self._client, tensors)

    def _leave_any(self, run: Callable[[Tensors], Tensors], tensors: Tensors) -> Tensors | None:
        """Leave the map, unless no tensor is mapped over the clients."""
        level = -1 if self._client is None else functorch.maybe_get_level(self._client)
        if all(functorch.maybe_get_level(tensor) != level for tensor in tensors):
            return None
        return self._leave(lambda _, whole: run(whole), tensors)


WARNING = "_set_vmap_fallback_warning_enabled"


class _Quiet:
    """Keeps torch from warning where it maps an operation by a loop over clients.

    The setting is the process's: it is restored when the last thread leaves.
    """

    def __init__(self) -> None:
        self.lock, self.threads = threading.Lock(), 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self.lock:
            self.threads += change
            set_warning: Callable[[bool], None] = vars(functorch)[WARNING]
            set_warning(self.threads == 0)


_quiet = _Quiet()
