"""S copies of a network as one network, and the proof that they compute the same.

`StackedExecutor` (executors.py) trains with them; stacking/ has the layers.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedfm.core.errors import require
from fedfm.core.inputs import InputTree, call_network, input_leaves, is_quantity, map_inputs
from fedfm.core.trees import Tree, share, stack
from fedfm.engine.layout import to_low_precision
from fedfm.engine.networks import BoundNetwork, constant_buffers, copy_model
from fedfm.engine.randomness import KeyedDraws, Unkeyed, draw_for
from fedfm.engine.stacking.activations import fuse_activations
from fedfm.engine.stacking.layers import (
    COUNTER,
    Unstackable,
    forbid_in_place,
    stack_layer,
    stack_module,
)
from fedfm.engine.stacking.mapping import ClientMap, ClientsDisagree, CommonBranches
from fedfm.methods.base import Model


class StackedNetwork(BoundNetwork):
    """S copies of a module as one network, each with its own weights; leaves [S, ...]."""

    note = ""
    """How the network is stacked, if not by stacked layers alone."""

    def _copy(self, module: nn.Module) -> nn.Module:
        return stack_module(module)

    def clone(self, shared: bool = False) -> BoundNetwork:
        """Return a new network of this kind; `shared` if all clients use one model."""
        return (BoundNetwork if shared else StackedNetwork)(self.original, self.low_dtype)

    def _weights(self, leaf: Tensor) -> Tensor:
        return leaf

    def to_low_precision(self, params: Tree) -> Tree:
        """Cast the factors of products once, not in every layer."""
        return {} if self.low_dtype is None else to_low_precision(params, self.low_dtype)

    def gradient_tree(self, grads: tuple[Tensor, ...]) -> Tree:
        """Return the gradients of the leaves as a tree [S, ...]."""
        return dict(zip(self._places, grads, strict=True))

    def count_batches(self, buffers: Tree, batches: Tensor) -> None:
        """Add to the counters of batch norms once, not in every step."""
        for name, buffer in buffers.items():
            if name.endswith(COUNTER):
                buffer += batches

    def __call__(self, inputs: InputTree) -> tuple[Tensor, Tensor]:
        """Map inputs [S, B, ...] to features [S, B, d] and logits [S, B, C] by weights s."""
        features, logits = call_network(self.module, map_inputs(self._flatten, inputs))
        return self._results(len(input_leaves(inputs)[0]), features, logits)

    def _flatten(self, leaf: Tensor) -> Tensor:
        """Return samples [S, B, ...] as [S*B, ...], quantities in the low precision if any."""
        samples = leaf.flatten(0, 1)
        return samples.to(self.low_dtype) if self.low_dtype and is_quantity(leaf) else samples


class Exceptions(NamedTuple):
    """What of a mapped network is computed one client after another."""

    layers: Sequence[str] = ()
    """Modules by name."""
    branches: bool = False
    """Batches for which clients take different branches, in a forward pass that reads values."""
    evaluation: bool = False
    """The network in evaluation mode."""

    def describe(self) -> str:
        """Return the exceptions in words, after a comma; nothing if there are none."""
        parts = [f"layer '{name}'" for name in self.layers]
        parts += ["batches on which clients branch differently"] if self.branches else []
        parts += ["evaluation"] if self.evaluation else []
        return f", except {', '.join(parts)}: one client after another" if parts else ""


NO_EXCEPTIONS = Exceptions()


class MappedNetwork(StackedNetwork):
    """S copies of any module, mapped over clients by `torch.func`; leaves [S, ...]."""

    def __init__(
        self,
        module: nn.Module,
        low_dtype: torch.dtype | None = None,
        exceptions: Exceptions = NO_EXCEPTIONS,
    ) -> None:
        super().__init__(module, low_dtype)
        self.exceptions = exceptions
        self.single = copy.deepcopy(module)
        self.folded = _stack_layers(self.module, exceptions.layers)
        constants = constant_buffers(self.module).values()
        self.map = ClientMap(self.module, self.folded, exceptions.layers, constants)
        self.note = f"the network is mapped over clients by torch.func{exceptions.describe()}"

    def _copy(self, module: nn.Module) -> nn.Module:
        return copy.deepcopy(module)

    def clone(self, shared: bool = False) -> BoundNetwork:
        """Return a new network of this kind; `shared` if all clients use one model."""
        if shared:
            return BoundNetwork(self.original, self.low_dtype)
        return MappedNetwork(self.original, self.low_dtype, self.exceptions)

    def to_low_precision(self, params: Tree) -> Tree:
        """Copy nothing: products are cast where they are computed."""
        return {}

    def count_batches(self, buffers: Tree, batches: Tensor) -> None:
        """Add to the counters of stacked batch norms; others count themselves."""
        super().count_batches({n: b for n, b in buffers.items() if n in self._counters}, batches)

    @property
    def _counters(self) -> set[str]:
        return {f"{name}.{COUNTER}".removeprefix(".") for name in self.folded}

    def __call__(self, inputs: InputTree) -> tuple[Tensor, Tensor]:
        """Map inputs [S, B, ...] to features [S, B, d] and logits [S, B, C] by weights s."""
        enabled, device = self.low_dtype is not None, input_leaves(inputs)[0].device.type
        with torch.autocast(device, self.low_dtype, enabled, cache_enabled=False):
            features, logits = self._map(inputs)
        return features.to(self.dtype), logits.to(self.dtype)

    def _map(self, inputs: InputTree) -> Any:
        if self.exceptions.evaluation and not self.module.training:
            return self._run_one_by_one(inputs)
        if not self.exceptions.branches:
            return self.map(inputs)
        try:
            with CommonBranches():
                return self.map(inputs)
        except ClientsDisagree:
            return self._run_one_by_one(inputs)

    def _call_head(self, head: nn.Module, features: Tensor) -> Tensor:
        """Call the stacked head outside of the map, which its own `forward` would leave."""
        require(
            head in [self.module.get_submodule(name) for name in self.folded],
            f"the head ({type(head).__name__}) of a network that is mapped over clients must be a "
            "linear layer: set executor = 'loop'",
        )
        logits: Tensor = type(head).forward(head, features)
        return logits

    def _run_one_by_one(self, inputs: InputTree) -> tuple[Tensor, Tensor]:
        """Compute a batch as a loop over clients would."""
        self.single.train(self.module.training)
        tensors = {n: getattr(*places[0]) for n, places in self._places.items()} | self._buffers
        outputs = []
        for client in range(len(input_leaves(inputs)[0])):
            client_tensors = {n: t[client] for n, t in tensors.items() if n not in self._counters}
            own_inputs = map_inputs(lambda leaf, client=client: leaf[client], inputs)
            named = own_inputs if isinstance(own_inputs, dict) else {}
            args = () if named else own_inputs
            with draw_for(client, 0):
                outputs.append(functional_call(self.single, client_tensors, args, named))
        features, logits = zip(*outputs, strict=True)
        return torch.stack(features), torch.stack(logits)


def _stack_layers(module: nn.Module, one_by_one: Sequence[str]) -> list[str]:
    """Turn layers into stacked ones in place, except within `one_by_one`; return their names."""
    folded = []
    for name, layer in module.named_modules():
        if not any(_is_within(name, part) for part in one_by_one):
            forbid_in_place(layer)
            fuse_activations(layer)
            if stack_layer(layer):
                folded.append(name)
    return folded


def _is_within(name: str, part: str) -> bool:
    return f"{name}.".startswith(f"{part}.")


# --- Which way a network is stacked, and the proof ------------------------------------------------

PROBLEMS = (
    RuntimeError, ValueError, TypeError, IndexError, AttributeError, AssertionError, Unkeyed
)  # fmt: skip
"""What a forward pass may raise if it is called on other tensors than its author expected."""


def stack_network(
    module: nn.Module, samples: InputTree, low_dtype: torch.dtype | None = None
) -> StackedNetwork:
    """Return the module as a network of S clients; raise `Unstackable` if there is none.

    Clients are concatenated in the batch if every layer has a stacked form. Any other network is
    mapped over clients. Either way the outputs are proved to be those of the module: see `prove`.
    """
    original = copy.deepcopy(module).double().cpu()
    inputs = map_inputs(_randomise, samples)
    try:
        prove(StackedNetwork(original), original, inputs)
        return StackedNetwork(module, low_dtype)
    except Unstackable:
        return MappedNetwork(module, low_dtype, _find_exceptions(original, inputs))


def _find_exceptions(module: nn.Module, inputs: InputTree) -> Exceptions:
    """Return what must compute one client after another, so that the rest can be mapped.

    Recurrent layers do in any case: torch has no batching rule for them.
    """
    recurrent = [name for name, layer in module.named_modules() if isinstance(layer, nn.RNNBase)]
    exceptions = Exceptions(recurrent)
    while True:
        try:
            prove(MappedNetwork(module, None, exceptions), module, inputs, (True,))
            break
        except UnstackableLayer as problem:
            exceptions = _add_exception(exceptions, problem, module)
    try:
        prove(MappedNetwork(module, None, exceptions), module, inputs, (True, False))
    except Unstackable:
        exceptions = exceptions._replace(evaluation=True)
        prove(MappedNetwork(module, None, exceptions), module, inputs)
    return exceptions


def _add_exception(
    exceptions: Exceptions, problem: "UnstackableLayer", module: nn.Module
) -> Exceptions:
    """Return the exceptions with the layer in which a problem occurred; raise if that is no use."""
    layer = problem.layer
    if layer not in exceptions.layers and not _is_most(module, layer):
        others = [name for name in exceptions.layers if not _is_within(name, layer)]
        return exceptions._replace(layers=[*others, layer])
    if exceptions.branches:
        raise problem
    return exceptions._replace(branches=True)


def _is_most(module: nn.Module, layer: str) -> bool:
    """Return whether a layer has most of a module's weights: a loop over clients is better then."""
    within = sum(p.numel() for p in module.get_submodule(layer).parameters())
    return 2 * within > sum(p.numel() for p in module.parameters())


class UnstackableLayer(Unstackable):
    """A layer cannot be stacked; `layer` is its dotted name."""

    def __init__(self, layer: str, why: object) -> None:
        super().__init__(f"layer '{layer}' does not accept stacked clients ({why})")
        self.layer = layer


def prove(
    net: StackedNetwork,
    module: nn.Module,
    inputs: InputTree,
    modes: tuple[bool, ...] = (True, False),
) -> None:
    """Raise `Unstackable` unless the network computes what the module computes for each client.

    Two copies with different weights get different batches [2, B, ...] in training mode and in
    evaluation mode (`modes`), in double precision and with the same random numbers. Outputs and
    changed buffers must agree.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(0)
        models = [_vary(module) for _ in input_leaves(inputs)[0]]
        net.bind(Model(stack([m.params for m in models]), stack([m.buffers for m in models])))
        for training in modes:
            net.module.train(training)
            with _locate_problems(net.module):
                together = _with_draws(net, inputs, range(len(models)))
            for i, model in enumerate(models):
                _compare(net, together, i, _run_alone(module, model, inputs, i, training))


def _vary(module: nn.Module) -> Model:
    """Change the module's weights at random; return a copy."""
    for parameter in module.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return copy_model(module)


def _run_alone(
    module: nn.Module, model: Model, inputs: InputTree, client: int, training: bool
) -> tuple[tuple[Tensor, Tensor], Tree]:
    """Return the outputs of one client's network, and its buffers afterwards."""
    single = BoundNetwork(module)
    single.bind(model.map(share))
    single.module.train(training)
    own_inputs = map_inputs(lambda leaf: leaf[client : client + 1], inputs)
    return _with_draws(single, own_inputs, [client]), model.buffers


def _with_draws(net: BoundNetwork, inputs: InputTree, seeds: Any) -> tuple[Tensor, Tensor]:
    with KeyedDraws(seeds, torch.device("cpu")):
        return net(inputs)


def _compare(
    net: StackedNetwork,
    together: tuple[Tensor, Tensor],
    client: int,
    alone: tuple[tuple[Tensor, Tensor], Tree],
) -> None:
    outputs, buffers = alone
    for ours, theirs in zip(together, outputs, strict=True):
        if ours[client].shape != theirs[0].shape or not _agree(ours[client], theirs[0]):
            raise Unstackable("its output differs from that of the unstacked network")
    for name, buffer in net._buffers.items():
        if not name.endswith(COUNTER) and not _agree(buffer[client], buffers[name]):
            raise Unstackable(f"buffer '{name}' differs from that of the unstacked network")


def _agree(ours: Tensor, theirs: Tensor) -> bool:
    return torch.allclose(ours, theirs, rtol=1e-6, atol=1e-8, equal_nan=True)


@contextmanager
def _locate_problems(module: nn.Module) -> Iterator[None]:
    """Name the innermost layer in which a problem occurs."""
    names = {layer: name for name, layer in module.named_modules()}
    inside: list[str] = []

    def enter(layer: nn.Module, _: Any) -> None:
        inside.append(names[layer])

    def leave(*_: Any) -> None:
        inside.pop()

    hooks = [layer.register_forward_pre_hook(enter) for layer in names]
    hooks += [layer.register_forward_hook(leave) for layer in names]
    try:
        yield
    except PROBLEMS as problem:
        raise UnstackableLayer(inside[-1] if inside else "", problem) from problem
    finally:
        for hook in hooks:
            hook.remove()


def _randomise(leaf: Tensor) -> Tensor:
    """Return random numbers instead of quantities, on the CPU."""
    return torch.randn(leaf.shape, dtype=torch.float64) if is_quantity(leaf) else leaf.cpu()
