"""Networks whose weights live elsewhere: bound to a cohort's tensors, then called on batches."""

import copy

import torch
from torch import Tensor, nn

from fedfm.core.trees import Tree, share, stack
from fedfm.engine.layout import to_low_precision
from fedfm.engine.stacking.layers import COUNTER, Unstackable, by_client, stack_module
from fedfm.methods.base import Model


def trainable_parameters(module: nn.Module) -> dict[str, Tensor]:
    """The parameters that training moves."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def untrained_tensors(module: nn.Module) -> dict[str, Tensor]:
    """What travels with a model without being trained: its buffers and frozen parameters."""
    frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    return frozen | dict(module.named_buffers())


def copy_model(module: nn.Module) -> Model:
    """Copies of a module's parameters and buffers, leaves [...] without a client axis."""
    return Model(
        {name: p.detach().clone() for name, p in trainable_parameters(module).items()},
        {name: b.detach().clone() for name, b in untrained_tensors(module).items()},
    )


def _places(module: nn.Module, parameter: Tensor) -> list[tuple[nn.Module, str]]:
    """Every attribute that holds a parameter: several where layers share it."""
    return [
        (owner, name)
        for owner in module.modules()
        for name, held in owner.named_parameters(recurse=False)
        if held is parameter
    ]


def draws_random_numbers(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether a training pass on inputs [2, *shape] draws random numbers, as dropout does."""
    unchanged = {id(p): p for p in module.parameters() if p.device.type == "cpu"}
    copied = copy.deepcopy(module, unchanged).cpu().train()
    like = next(copied.parameters())
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        copied(torch.zeros(2, *shape, dtype=like.dtype))
        return not torch.equal(before, torch.get_rng_state())


class BoundNetwork:
    """The module as it is, for one set of weights; leaves [1, ...].

    With `low` the products are done in that precision, weights and averages staying as they are.
    """

    def __init__(self, module: nn.Module, low: torch.dtype | None = None) -> None:
        self.original, self.low = module, low
        self.module = copy.deepcopy(module)
        self._frozen: dict[tuple[str, bool], BoundNetwork] = {}
        self._places = {
            name: _places(self.module, p) for name, p in trainable_parameters(self.module).items()
        }
        self._buffers = untrained_tensors(self.module)
        self._holders = [
            (owner, name, buffer)
            for owner in self.module.modules()
            for name, buffer in owner.named_buffers(recurse=False)
        ]

    def bind(self, model: Model) -> list[Tensor]:
        """Work on `model`'s own memory from now on; returns the parameters as autograd leaves.

        The leaves are new each time, since autograd remembers the shape of an old one.
        """
        leaves: list[Tensor] = []
        for name, places in self._places.items():
            leaf = nn.Parameter(self._weights(model.params[name]))
            for owner, attribute in places:
                setattr(owner, attribute, leaf)
            leaves.append(leaf)
        for name, buffer in self._buffers.items():
            buffer.data = self._weights(model.buffers[name])
        return leaves

    def unbind(self) -> None:
        """Hold nobody's memory until the next `bind`."""
        for owner, attribute in (place for places in self._places.values() for place in places):
            setattr(owner, attribute, nn.Parameter(torch.empty(0)))
        for buffer in self._buffers.values():
            buffer.data = buffer.data.new_empty(0)
        for companion in self._frozen.values():
            companion.unbind()

    def _weights(self, leaf: Tensor) -> Tensor:
        return leaf[0]

    def to_low_precision(self, params: Tree) -> Tree:
        """Copies of those parameters that `bind` wants in the low precision."""
        return {}

    def prepare(self, model: Model) -> Model:
        """The model with those parameters in the low precision."""
        return model._replace(params=model.params | self.to_low_precision(model.params))

    def gradient_tree(self, grads: tuple[Tensor, ...]) -> Tree:
        """What autograd returned for the leaves, as a tree with a client axis [1, ...]."""
        return {name: g.unsqueeze(0) for name, g in zip(self._places, grads, strict=True)}

    def count_batches(self, buffers: Tree, batches: Tensor) -> None:
        """Count so many training batches [S] where the module has not done so itself."""

    def companion(self, name: str, shared: bool) -> "BoundNetwork":
        """Another network of this kind, for a further model."""
        if (name, shared) not in self._frozen:
            self._frozen[name, shared] = self.clone(shared)
        return self._frozen[name, shared]

    def bind_frozen(self, name: str, model: Model) -> "BoundNetwork":
        """The companion of that name bound to `model`, in evaluation mode."""
        net = self.companion(name, model.shared)
        net.bind(model)
        net.module.eval()
        return net

    def clone(self, shared: bool = False) -> "BoundNetwork":
        """A further network of this kind; `shared`: for one model that serves all clients."""
        return BoundNetwork(self.original, self.low)

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [S, B, ...] -> features [S, B, d], logits [S, B, C], with the same weights."""
        lower = self.low is not None
        with torch.autocast(inputs.device.type, self.low, lower, cache_enabled=False):
            features, logits = self.module(inputs.flatten(0, 1))
        return self._results(inputs, features, logits)

    def _keep_buffers(self) -> None:
        """Take over what a module put in the place of a buffer, instead of writing into it."""
        for owner, name, buffer in self._holders:
            held = owner._buffers[name]
            if held is not buffer and held is not None:
                buffer.data.copy_(held.detach())
                owner._buffers[name] = buffer

    def _results(self, inputs: Tensor, *found: Tensor) -> tuple[Tensor, Tensor]:
        self._keep_buffers()
        features, logits = (by_client(x, len(inputs)).to(inputs.dtype) for x in found)
        return features, logits


class StackedNetwork(BoundNetwork):
    """S copies of the module as one, each with its own weights; leaves [S, ...]."""

    def __init__(self, module: nn.Module, low: torch.dtype | None = None) -> None:
        super().__init__(stack_module(module), low)
        self.original = module

    def clone(self, shared: bool = False) -> BoundNetwork:
        """A further network of this kind; `shared`: for one model that serves all clients."""
        return (BoundNetwork if shared else StackedNetwork)(self.original, self.low)

    def _weights(self, leaf: Tensor) -> Tensor:
        return leaf

    def to_low_precision(self, params: Tree) -> Tree:
        """The weights of products, cast once and not at every layer."""
        return {} if self.low is None else to_low_precision(params, self.low)

    def gradient_tree(self, grads: tuple[Tensor, ...]) -> Tree:
        """What autograd returned for the leaves, as a tree [S, ...]."""
        return dict(zip(self._places, grads, strict=True))

    def count_batches(self, buffers: Tree, batches: Tensor) -> None:
        """Add to the counters of batch norms, once and not at every step."""
        for name, buffer in buffers.items():
            if name.endswith(COUNTER):
                buffer += batches

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [S, B, ...] -> features [S, B, d], logits [S, B, C], client s with weights s."""
        samples = inputs.flatten(0, 1)
        features, logits = self.module(samples if self.low is None else samples.to(self.low))
        return self._results(inputs, features, logits)


def stack_network(
    module: nn.Module, shape: tuple[int, ...], low: torch.dtype | None = None
) -> StackedNetwork:
    """The module as a `StackedNetwork`, proven to agree with it; raises `Unstackable` otherwise.

    Two copies with different weights see different batches of random inputs [2, 3, *shape], in
    training and in evaluation mode, in double precision.
    """
    original = copy.deepcopy(module).double().cpu()
    try:
        net = StackedNetwork(original)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            _compare(original, net, torch.randn(2, 3, *shape, dtype=torch.float64))
    except (RuntimeError, ValueError, TypeError, IndexError) as problem:
        raise Unstackable(f"its forward pass cannot be folded ({problem})") from problem
    return StackedNetwork(module, low)


def _compare(module: nn.Module, net: StackedNetwork, inputs: Tensor) -> None:
    models = []
    for _ in inputs:
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        models.append(copy_model(module))
    net.bind(Model(stack([m.params for m in models]), stack([m.buffers for m in models])))
    single = BoundNetwork(module)
    for training in (True, False):
        net.module.train(training)
        single.module.train(training)
        together = net(inputs)
        for i, model in enumerate(models):
            single.bind(model.map(share))
            for ours, theirs in zip(together, single(inputs[i : i + 1]), strict=True):
                if not torch.allclose(ours[i], theirs[0], rtol=1e-6, atol=1e-8):
                    raise ValueError("its output differs from the unstacked network's")
