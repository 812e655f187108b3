"""The stacked layers of transformers: linear layers, layer norms and embeddings."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfm.engine.stacking.product import multiply_rows
from fedfm.engine.stacking.rows import affine, by_client, lower_precision, runs_kernels

WIDEST = 8192
"""The most features of a layer norm in a kernel, whose programs keep whole rows in registers."""


class StackedLinear(nn.Linear):
    """weight [S, O, I], bias [S, O]; [S*B, ..., I] -> [S*B, ..., O]."""

    def forward(self, input: Tensor) -> Tensor:
        """Multiply all clients' rows in one batched product."""
        low = lower_precision(input, self.weight)
        rows = by_client(input, len(self.weight)).flatten(1, -2)
        return self._product(rows, low).view(*input.shape[:-1], -1)

    def _product(self, rows: Tensor, low: torch.dtype) -> Tensor:
        """Map [S, R, I] to [S, R, O] in a precision."""
        if low == torch.bfloat16 and runs_kernels(rows):
            from fedfm.engine.kernels.linear import stacked_linear

            return stacked_linear(rows, self.weight, self.bias, low)
        bias = None if self.bias is None else self.bias.to(low)
        return multiply_rows(rows.to(low), self.weight.to(low), bias)


class StackedLayerNorm(nn.LayerNorm):
    """weight, bias [S, F]; [S*B, ..., F] -> the same shape."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise every row, in one pass over memory where the network's precision is low."""
        if self._fused(input):
            return self._by_kernel(input)
        x = F.layer_norm(input, self.normalized_shape, eps=self.eps)
        return affine(x, self.weight, self.bias, input.ndim - len(self.normalized_shape))

    def _fused(self, input: Tensor) -> bool:
        low = input.dtype == torch.bfloat16 or (
            input.dtype == torch.float32 and torch.is_autocast_enabled(input.device.type)
        )
        fits = self.weight is not None and self.weight[0].numel() <= WIDEST
        return low and fits and runs_kernels(input)

    def _by_kernel(self, input: Tensor) -> Tensor:
        """Normalise by a kernel; under autocast the result is float32, as torch's is."""
        from fedfm.engine.kernels.layer_norm import stacked_layer_norm

        weight, bias = (w if w is None else w.flatten(1) for w in (self.weight, self.bias))
        rows = input.reshape(len(weight), -1, weight.shape[1])
        single = torch.is_autocast_enabled(input.device.type)
        dtype = torch.float32 if single else input.dtype
        return stacked_layer_norm(rows, weight, bias, self.eps, dtype).view(input.shape)


class StackedEmbedding(nn.Embedding):
    """weight [S, V, F]; ids [S*B, ...] -> [S*B, ..., F]."""

    def forward(self, input: Tensor) -> Tensor:
        """Look ids up in the clients' tables, which are one after another."""
        clients, rows, _ = self.weight.shape
        ids = by_client(input, clients)
        first = torch.arange(0, clients * rows, rows, device=ids.device)
        ids = ids + first.view(-1, *[1] * (ids.ndim - 1))
        vectors = F.embedding(ids, self.weight.flatten(0, 1)).flatten(0, 1)
        if self.padding_idx is None:
            return vectors
        return torch.where((input == self.padding_idx).unsqueeze(-1), vectors.detach(), vectors)
