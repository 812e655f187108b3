"""Turn any classifier into a model with forward(x [B, ...]) -> (features [B, d], logits [B, C]).

`BodyAndHead` joins a body and a head. `WithFeatures` wraps a whole network and takes the input of
its last layer as features.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedfm.core.errors import UserError, require, unknown_name_error
from fedfm.core.inputs import input_leaves


class BodyAndHead(nn.Module):
    """A model made of a body and a head.

    Args:
        body: Inputs [B, ...] -> features, which are flattened to [B, d].
        head: Features [B, d] -> logits [B, C].

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> model = BodyAndHead(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 3))
        >>> [output.shape for output in model(torch.zeros(5, 4))]
        [torch.Size([5, 8]), torch.Size([5, 3])]
    """

    head_name = "head"
    """The dotted name of the last layer."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [B, ...] -> (features [B, d], logits [B, C])."""
        features = torch.flatten(self.body(x), 1)
        return features, self.head(features)


class WithFeatures(nn.Module):
    """Your network, returning its features beside its logits.

    The features are the input of its last linear layer. Your network is neither copied nor changed.
    `export_state_dict` returns the weights under your own names. It is called with the arguments of
    the wrapper, so inputs may be keywords or several positions.

    Args:
        module: Your network, x [B, ...] -> logits [B, C]. It may return an object or a mapping with
            `logits` instead, as classifiers of Hugging Face do.
        head: The dotted name of its last linear layer, such as "fc" or "classifier.6".

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> mine = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> features, logits = WithFeatures(mine, head="2")(torch.zeros(5, 4))
        >>> features.shape, logits.shape
        (torch.Size([5, 8]), torch.Size([5, 3]))
    """

    def __init__(self, module: nn.Module, head: str) -> None:
        super().__init__()
        if head not in _names(module, nn.Module):
            known = _names(module, nn.Linear) or _names(module, nn.Module)
            raise unknown_name_error(f"linear layer of {type(module).__name__}", head, known)
        self.module = module
        self.head_name = f"module.{head}"

    def forward(self, *inputs: Any, **named: Any) -> tuple[Tensor, Tensor]:
        """Inputs [B, ...] -> (features [B, d], logits [B, C])."""
        head_inputs: list[Tensor] = []

        def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            head_inputs.append((*args, *kwargs.values())[0])

        head = self.get_submodule(self.head_name)
        hook = head.register_forward_pre_hook(record, with_kwargs=True)
        try:
            outputs = self.module(*inputs, **named)
        finally:
            hook.remove()
        batch = len(input_leaves((*inputs, named) if named else inputs)[0])
        features = self._check_features(self._check_single(head_inputs))
        return features, self._check_logits(find_logits(outputs), batch)

    def _check_single(self, head_inputs: list[Tensor]) -> Tensor:
        """Return the input of the head; refuse a head that was not called exactly once."""
        head, name = self.head_name.removeprefix("module."), type(self.module).__name__
        require(
            len(head_inputs) > 0,
            f"{name}.forward never called its layer '{head}', so there are no features: name "
            "the last layer that is called",
        )
        require(
            len(head_inputs) == 1,
            f"{name}.forward called its layer '{head}' {len(head_inputs)} times: call it once",
        )
        return head_inputs[0]

    def _check_features(self, features: Tensor) -> Tensor:
        """Return the features [B, d]; refuse a head of several layers on tokens [B, T, d]."""
        head = self.get_submodule(self.head_name)
        inner = [f"{self.head_name.removeprefix('module.')}.{n}" for n in _names(head, nn.Linear)]
        require(
            features.ndim != 3 or not inner,
            f"'{self.head_name.removeprefix('module.')}' of {type(self.module).__name__} has "
            f"several layers and gets {features.shape[1]} vectors for each sample, but features "
            f'are one vector: name its last linear layer, head="{(inner or [""])[-1]}"',
        )
        return torch.flatten(features, 1)

    def _check_logits(self, logits: object, batch: int) -> Tensor:
        """Return the logits; refuse anything but a tensor [B, C]."""
        if isinstance(logits, Tensor) and logits.ndim == 2 and len(logits) == batch:
            return logits
        returned = (
            f"shape {tuple(logits.shape)}"
            if isinstance(logits, Tensor)
            else f"a {type(logits).__name__}"
        )
        raise UserError(
            f"{type(self.module).__name__}.forward must return logits [B, C], here [{batch}, C], "
            f"but it returned {returned}"
        )


def find_logits(outputs: Any) -> Any:
    """Return the logits of a network's outputs: themselves, or what they call `logits`."""
    if isinstance(outputs, Mapping):
        return outputs.get("logits", outputs)
    return getattr(outputs, "logits", outputs)


def export_state_dict(model: nn.Module) -> dict[str, Any]:
    """Return the weights under your own names.

    Args:
        model: A network, wrapped by `WithFeatures` or not.

    Returns:
        A state dict for your network without the wrapper.

    Examples:
        >>> from torch import nn
        >>> mine = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> list(export_state_dict(WithFeatures(mine, head="2")))
        ['0.weight', '0.bias', '2.weight', '2.bias']
    """
    bare = model.module if isinstance(model, WithFeatures) else model
    return bare.state_dict()


def _names(module: nn.Module, kind: type[nn.Module]) -> list[str]:
    """Return the dotted names of the submodules of a kind, all names of shared ones."""
    submodules = module.named_modules(remove_duplicate=False)
    return [name for name, part in submodules if name and isinstance(part, kind)]
