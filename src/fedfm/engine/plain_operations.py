"""On a GPU, some fused operations draw random numbers that no key decides: their plain forms.

Attention with dropout becomes products and a dropout, and recurrent layers with dropout between
their layers run without cuDNN, so that all their numbers are drawn by operations that
`engine/randomness.py` replaces. Everything else, and layers without dropout, stays fused.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

RECURRENT: tuple[Callable[..., Any], ...] = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


class PlainRecurrence(TorchFunctionMode):
    """Runs recurrent layers with dropout without cuDNN while it is entered."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operation."""
        kwargs = kwargs or {}
        if func not in RECURRENT or not _drops(args):
            return func(*args, **kwargs)
        before = torch.backends.cudnn.enabled
        torch.backends.cudnn.enabled = False
        try:
            return func(*args, **kwargs)
        finally:
            torch.backends.cudnn.enabled = before


def _drops(args: tuple[Any, ...]) -> bool:
    """Whether a recurrent operation drops activations: (..., layers, dropout, train, ...)."""
    rate = next(arg for arg in args if isinstance(arg, float))
    return rate > 0


@contextmanager
def plain_operations() -> Iterator[None]:
    """Run operations that draw random numbers in their plain forms."""
    with sdpa_kernel(SDPBackend.MATH), PlainRecurrence():
        yield
