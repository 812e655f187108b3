"""Networks that are bound to a cohort's tensors and then called on batches."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedfm.core.errors import require
from fedfm.core.inputs import InputTree, call_network, input_leaves, map_inputs
from fedfm.core.trees import Tree
from fedfm.engine.randomness import KeyedDraws
from fedfm.methods.base import Model, Task

NO_HEAD = (
    "the network does not say which layer is its head: wrap it by WithFeatures(network, head=...), "
    "or give its class an attribute head_name"
)


def trainable_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters with requires_grad."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def list_untrained_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that are sent but not trained: buffers and frozen parameters.

    Buffers that a state dict leaves out (`persistent=False`) are constants and stay where they are.
    """
    frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    constant = constant_buffers(module)
    return frozen | {n: buffer for n, buffer in module.named_buffers() if n not in constant}


def constant_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that a state dict leaves out, such as the positions of tokens."""
    names = {
        f"{path}.{name}".removeprefix(".")
        for path, owner in module.named_modules()
        for name in owner._non_persistent_buffers_set
    }
    return {name: buffer for name, buffer in module.named_buffers() if name in names}


def copy_model(module: nn.Module) -> Model:
    """Copy a module's parameters and buffers; leaves [...] without a client axis."""
    return Model(
        {name: p.detach().clone() for name, p in trainable_parameters(module).items()},
        {name: b.detach().clone() for name, b in list_untrained_tensors(module).items()},
    )


def describe_task(module: nn.Module, model: Model, classes: int, features: int) -> Task:
    """Return the task of training a module, whose tensors are `model`'s: shapes, and roles."""
    head, norm = getattr(module, "head_name", None), nn.modules.batchnorm._BatchNorm
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, norm)}
    names = [*model.params, *model.buffers]
    frozen = [name for name, p in module.named_parameters() if not p.requires_grad]
    return Task(
        model,
        classes,
        features,
        head=frozenset(name for name in names if head and name.startswith(f"{head}.")),
        norms=frozenset(name for name in names if name.rpartition(".")[0] in layers),
        frozen=frozenset(frozen),
    )


def _places(module: nn.Module, parameter: Tensor) -> list[tuple[nn.Module, str]]:
    """Return every attribute that holds a parameter, several if layers share it."""
    return [
        (owner, name)
        for owner in module.modules()
        for name, held in owner.named_parameters(recurse=False)
        if held is parameter
    ]


class BoundNetwork:
    """A module bound to one set of weights, leaves [1, ...].

    With `low_dtype`, products are computed in that precision; weights keep theirs.
    """

    random: bool | None = None
    """Whether training draws random numbers, as dropout does; None before the first step."""

    def __init__(self, module: nn.Module, low_dtype: torch.dtype | None = None) -> None:
        self.original, self.low_dtype = module, low_dtype
        self.dtype = next(module.parameters()).dtype
        self.module = self._copy(module)
        self._frozen: dict[tuple[str, bool], BoundNetwork] = {}
        self._places = {
            name: _places(self.module, p) for name, p in trainable_parameters(self.module).items()
        }
        self._buffers = list_untrained_tensors(self.module)
        self._constants = [(b, b.clone()) for b in constant_buffers(self.module).values()]
        self._holders = [
            (owner, name, buffer)
            for owner in self.module.modules()
            for name, buffer in owner.named_buffers(recurse=False)
        ]

    def _copy(self, module: nn.Module) -> nn.Module:
        return copy.deepcopy(module)

    def bind(self, model: Model) -> list[Tensor]:
        """Use the memory of `model` from now on; return the parameters as autograd leaves.

        The leaves are new each time, because autograd remembers the shape of an old leaf.
        """
        leaves: list[Tensor] = []
        for name, places in self._places.items():
            leaf = nn.Parameter(self._weights(model.params[name]))
            for owner, attribute in places:
                setattr(owner, attribute, leaf)
            leaves.append(leaf)
        for name, buffer in self._buffers.items():
            buffer.data = self._weights(model.buffers[name])
        for constant, value in self._constants:
            constant.data.copy_(value)
        return leaves

    def unbind(self) -> None:
        """Let go of all weights until the next `bind`."""
        for owner, attribute in (place for places in self._places.values() for place in places):
            setattr(owner, attribute, nn.Parameter(torch.empty(0)))
        for buffer in self._buffers.values():
            buffer.data = buffer.data.new_empty(0)
        for companion in self._frozen.values():
            companion.unbind()

    def _weights(self, leaf: Tensor) -> Tensor:
        return leaf[0]

    def to_low_precision(self, params: Tree) -> Tree:
        """Copy the parameters that `bind` needs in the low precision."""
        return {}

    def prepare(self, model: Model) -> Model:
        """Return the model with those parameters in the low precision."""
        return model._replace(params=model.params | self.to_low_precision(model.params))

    def gradient_tree(self, grads: tuple[Tensor, ...]) -> Tree:
        """Return the gradients of the leaves as a tree with a client axis [1, ...]."""
        return {name: g.unsqueeze(0) for name, g in zip(self._places, grads, strict=True)}

    def count_batches(self, buffers: Tree, batches: Tensor) -> None:
        """Count training batches [S] if the module has not counted them itself."""

    def companion(self, name: str, shared: bool) -> "BoundNetwork":
        """Return another network of this kind, for a further model; it is kept by name."""
        if (name, shared) not in self._frozen:
            self._frozen[name, shared] = self.clone(shared)
        return self._frozen[name, shared]

    def bind_frozen(self, name: str, model: Model) -> "BoundNetwork":
        """Bind the companion of that name to `model`, in evaluation mode."""
        net = self.companion(name, model.shared)
        net.bind(model)
        net.module.eval()
        return net

    def clone(self, shared: bool = False) -> "BoundNetwork":
        """Return a new network of this kind; `shared` if all clients use one model."""
        return BoundNetwork(self.original, self.low_dtype)

    @contextmanager
    def draw_from(self, draws: KeyedDraws) -> Iterator[None]:
        """Take the random numbers of a step from `draws`; the first step shows if there are any."""
        if self.random is False:
            yield
            return
        with draws:
            yield
        self.random = self.random or draws.used

    def __call__(self, inputs: InputTree) -> tuple[Tensor, Tensor]:
        """Map inputs [S, B, ...] to features [S, B, d] and logits [S, B, C] by the same weights."""
        enabled, first = self.low_dtype is not None, input_leaves(inputs)[0]
        with torch.autocast(first.device.type, self.low_dtype, enabled, cache_enabled=False):
            features, logits = call_network(
                self.module, map_inputs(lambda x: x.flatten(0, 1), inputs)
            )
        return self._results(len(first), features, logits)

    def classify(self, features: Tensor) -> Tensor:
        """Map features [S, M, d] to logits [S, M, C] by the head of the same weights."""
        name, enabled = getattr(self.module, "head_name", ""), self.low_dtype is not None
        require(bool(name), NO_HEAD)
        head = self.module.get_submodule(name)
        with torch.autocast(features.device.type, self.low_dtype, enabled, cache_enabled=False):
            logits = self._call_head(head, features.flatten(0, 1))
        return torch.unflatten(logits, 0, (len(features), -1)).to(self.dtype)

    def _call_head(self, head: nn.Module, features: Tensor) -> Tensor:
        logits: Tensor = head(features)
        return logits

    def _keep_buffers(self) -> None:
        """Copy buffers that the module replaced back into the bound memory."""
        for owner, name, buffer in self._holders:
            held = owner._buffers[name]
            if held is not buffer and held is not None:
                buffer.data.copy_(held.detach())
                owner._buffers[name] = buffer

    def _results(self, clients: int, *outputs: Tensor) -> tuple[Tensor, Tensor]:
        self._keep_buffers()
        features, logits = (torch.unflatten(x, 0, (clients, -1)).to(self.dtype) for x in outputs)
        return features, logits
