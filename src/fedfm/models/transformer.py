"""A small transformer encoder for token ids."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfm.core.errors import require
from fedfm.models.layers import check_positive, check_sizes
from fedfm.models.simplex import make_head

PADDING = 0
"""The id that fills up texts shorter than the others."""


class Transformer(nn.Module):
    """An encoder of token ids, mean over the tokens, the head.

    Each layer is self-attention and a perceptron, both with layer norm before and a shortcut
    around (pre-norm). Tokens have learned positions. Id 0 is padding, which nothing depends on.

    Args:
        shape: (T,), the number of token ids of one input.
        classes: The number of classes.
        vocabulary: The number of token ids; the data give it.
        width: d, the size of a token's vector and of the features.
        layers: The number of layers.
        heads: The number of attention heads, which divide the width.
        dropout: The share of activations that are dropped in training.
        head: "linear", or "simplex" for fixed class directions (FedETF).

    Examples:
        >>> import torch
        >>> model = Transformer((16,), 3, vocabulary=100, width=32)
        >>> features, logits = model(torch.randint(100, (5, 16)))
        >>> features.shape, logits.shape
        (torch.Size([5, 32]), torch.Size([5, 3]))
    """

    head_name = "head"
    """The dotted name of the last layer."""

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        *,
        vocabulary: int = 0,
        width: int = 64,
        layers: int = 2,
        heads: int = 4,
        dropout: float = 0.1,
        head: str = "linear",
    ) -> None:
        super().__init__()
        self._check(shape, vocabulary, dropout)
        check_positive(classes=classes, width=width, layers=layers, heads=heads)
        require(width % heads == 0, f"model width = {width} does not split into {heads} heads")
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(shape[0], width)
        nn.init.normal_(self.tokens.weight, std=width**-0.5)
        nn.init.normal_(self.positions.weight, std=width**-0.5 / 4)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(EncoderLayer(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = make_head(head, width, classes)

    @staticmethod
    def _check(shape: Sequence[int], vocabulary: int, dropout: float) -> None:
        require(
            vocabulary > 0,
            "the model 'transformer' is for token ids and needs their number, vocabulary: the data "
            "source 'text', or a Dataset with a vocabulary, gives it",
        )
        check_sizes(shape=shape)
        require(
            len(shape) == 1,
            f"the model 'transformer' takes token ids of shape (T,), not {tuple(shape)}",
        )
        fits = isinstance(dropout, int | float) and 0 <= dropout < 1
        require(fits, f"model dropout = {dropout!r}: must be a number from 0 to below 1")

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids [B, T] -> (features [B, d], logits [B, C])."""
        filled = ids != PADDING
        filled[:, 0] |= ~filled.any(1)  # a text without tokens is one padding token
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        x = self.dropout(self.tokens(ids) + self.positions(places))
        for layer in self.layers:
            x = layer(x, filled)
        weights = filled.unsqueeze(-1).to(x.dtype)
        features = (self.norm(x) * weights).sum(1) / weights.sum(1)
        return features, self.head(features)


class EncoderLayer(nn.Module):
    """Self-attention and a perceptron of four times the width, both pre-norm with a shortcut."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.perceptron_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, filled: Tensor) -> Tensor:
        """Tokens [B, T, d], whether they are no padding [B, T] -> tokens [B, T, d]."""
        x = x + self.dropout(self._attend(self.attention_norm(x), filled))
        change: Tensor = self.dropout(self.narrow(F.gelu(self.widen(self.perceptron_norm(x)))))
        return x + change

    def _attend(self, x: Tensor, filled: Tensor) -> Tensor:
        by_head = self.queries_keys_values(x).unflatten(-1, (3, self.heads, -1))  # [B, T, 3, h, e]
        queries, keys, values = by_head.permute(2, 0, 3, 1, 4)
        mask = filled[:, None, None, :]
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        together: Tensor = self.attended(attended.transpose(1, 2).flatten(2))
        return together
