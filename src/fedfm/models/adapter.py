"""Any classifier as a model with features: forward(x [B, ...]) -> (features [B, d], logits [B, C]).

`BodyAndHead` joins a body and a head; `WithFeatures` listens at the last layer of a whole network.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fedfm.core.errors import UserError, require, unknown


class BodyAndHead(nn.Module):
    """A body x [B, ...] -> features (flattened to [B, d]), then a head [B, d] -> logits [B, C]."""

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
    """Your `module`, x [B, ...] -> logits [B, C], made to return its features as well.

    `head` is the dotted name of its last linear layer ("fc", "classifier.6"); the features are the
    input of that layer. Your module is neither copied nor changed: `export_state_dict` gives the
    weights back under your own names.
    """

    def __init__(self, module: nn.Module, head: str) -> None:
        super().__init__()
        if head not in _names(module, nn.Module):
            known = _names(module, nn.Linear) or _names(module, nn.Module)
            raise unknown(f"linear layer of {type(module).__name__}", head, known)
        self.module = module
        self.head_name = f"module.{head}"

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [B, ...] -> (features [B, d], logits [B, C])."""
        seen: list[Tensor] = []

        def listen(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen.append((*args, *kwargs.values())[0])

        head = self.get_submodule(self.head_name)
        hook = head.register_forward_pre_hook(listen, with_kwargs=True)
        try:
            logits = self.module(x)
        finally:
            hook.remove()
        return torch.flatten(self._only(seen), 1), self._checked(logits, len(x))

    def _only(self, seen: list[Tensor]) -> Tensor:
        """The one input that the head received."""
        head, name = self.head_name.removeprefix("module."), type(self.module).__name__
        require(
            len(seen) > 0,
            f"{name}.forward never called its layer '{head}', so it has no features: name the "
            "layer that is called last",
        )
        require(
            len(seen) == 1,
            f"{name}.forward called its layer '{head}' {len(seen)} times; features need one call",
        )
        return seen[0]

    def _checked(self, logits: object, batch: int) -> Tensor:
        """What the module returned, if it is a tensor [B, C]."""
        if isinstance(logits, Tensor) and logits.ndim == 2 and len(logits) == batch:
            return logits
        what = (
            f"shape {tuple(logits.shape)}"
            if isinstance(logits, Tensor)
            else f"a {type(logits).__name__}"
        )
        raise UserError(
            f"{type(self.module).__name__}.forward must return logits [B, C], here [{batch}, C], "
            f"but it returned {what}"
        )


def export_state_dict(model: nn.Module) -> dict[str, Any]:
    """The weights under the user's own names: ready for `load_state_dict` of the bare module."""
    bare = model.module if isinstance(model, WithFeatures) else model
    return bare.state_dict()


def _names(module: nn.Module, kind: type[nn.Module]) -> list[str]:
    """The dotted names of the submodules of a kind, every name of a shared one."""
    every = module.named_modules(remove_duplicate=False)
    return [name for name, part in every if name and isinstance(part, kind)]
