"""Networks as users write them: free parameters, attention, recurrence, dropout of every kind."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfm.verify.fixtures import CLASSES

IMAGES, TOKENS, VECTORS, IDS, VOLUMES = (3, 8, 8), (6, 8), (12,), (6,), (2, 4, 4, 4)
"""The shapes of one sample."""
VOCABULARY = 20


class Headed(nn.Module):
    """A body, whose output is flattened or pooled, and a head."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.body(x)
        features = (y[0] if isinstance(y, tuple) else y).flatten(1)
        return features, self.head(features)


class Block(nn.Module):
    """Attention called by hand and a perceptron, with dropout of activations and of weights."""

    def __init__(self, width: int = 8, heads: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.first, self.second = nn.LayerNorm(width), nn.RMSNorm(width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            self.inputs(self.first(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        )
        rate = self.rate if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, dropout_p=rate)
        x = x + self.dropout(self.output(attended.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.narrow(F.gelu(self.wide(self.second(x)))))


class VisionTransformer(nn.Module):
    """Patches, a class token and positions that are free parameters, blocks, the head."""

    def __init__(self, dropout: float = 0.0, width: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 5, width))
        self.blocks = nn.Sequential(Block(dropout=dropout), Block(dropout=dropout))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        features = self.norm(self.blocks(x))[:, 0]
        return features, self.head(features)


class ScaledBlock(nn.Module):
    """A depthwise convolution and a perceptron, scaled by a parameter, dropped whole at random."""

    def __init__(self, width: int, dropped: float) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm, self.dropped = nn.GroupNorm(2, width), dropped
        self.wide, self.narrow = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(2 * width, width, 1)
        self.scale = nn.Parameter(torch.rand(width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        change = self.narrow(F.silu(self.wide(self.norm(self.depthwise(x))))) * self.scale
        if self.training and self.dropped:
            change = change * (torch.rand(len(x), 1, 1, 1, device=x.device) >= self.dropped)
        return x + change


class Tied(nn.Module):
    """Embeddings that are read, and multiplied with, at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 8, padding_idx=0)
        self.head = nn.Linear(VOCABULARY, CLASSES)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        features = F.linear(self.tokens(ids).mean(1), self.tokens.weight)
        return features, self.head(features)


class Words(nn.Module):
    """Embeddings with positions that are the same for every sample, and attention of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, 8), nn.Embedding(6, 8)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True), 2
        )
        self.head = nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        features = self.encoder(x, src_key_padding_mask=ids == 0).mean(1)
        return features, self.head(features)


class SelfAttention(nn.Module):
    """torch's attention of tokens to themselves."""

    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        attended: Tensor = self.attention(x, x, x, need_weights=self.weights)[0]
        return attended


class Noisy(nn.Module):
    """Adds noise that is the same for all samples of a batch, and drops by a call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(12, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.inner(x)
        if self.training:
            features = F.dropout(
                features + 0.1 * torch.randn(8, dtype=x.dtype, device=x.device), 0.25
            )
        return features, self.head(features)


class Averaging(nn.Module):
    """Keeps an average of its inputs in a buffer that it replaces."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(12))
        self.slope = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.slope * (x - self.mean)


Made = tuple[Callable[[], nn.Module], tuple[int, ...]]
MAPPED: dict[str, Made] = {
    "vision transformer": (VisionTransformer, IMAGES),
    "vision transformer, dropout": (lambda: VisionTransformer(0.2), IMAGES),
    "layer scale": (lambda: Headed(nn.Sequential(nn.Conv2d(3, 4, 2, 2), ScaledBlock(4, 0)), 64),
                    IMAGES),
    "stochastic depth": (
        lambda: Headed(nn.Sequential(nn.Conv2d(3, 4, 2, 2), ScaledBlock(4, 0.5)), 64), IMAGES),
    "tied": (Tied, IDS),
    "encoder": (Words, IDS),
    "attention": (lambda: Headed(SelfAttention(False), 48), TOKENS),
    "attention, weights": (lambda: Headed(SelfAttention(True), 48), TOKENS),
    "root mean square norm": (lambda: Headed(nn.RMSNorm(8), 48), TOKENS),
    "instance norm": (
        lambda: Headed(nn.InstanceNorm2d(3, affine=True, track_running_stats=True), 192), IMAGES),
    "convolution of sequences": (lambda: Headed(nn.Conv1d(6, 4, 3, padding="same"), 32), TOKENS),
    "convolution of volumes": (
        lambda: Headed(nn.Sequential(nn.Conv3d(2, 3, 3), nn.BatchNorm3d(3)), 24), VOLUMES),
    "transposed": (lambda: Headed(nn.ConvTranspose2d(3, 2, 3, stride=2), 578), IMAGES),
    "circular": (lambda: Headed(nn.Conv2d(3, 2, 3, padding=1, padding_mode="circular"), 128),
                 IMAGES),
    "batch norm and slopes": (
        lambda: Headed(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.PReLU(4)), 144),
        IMAGES),
    "noise of a batch": (Noisy, VECTORS),
    "averaging": (lambda: Headed(nn.Sequential(Averaging(), nn.Linear(12, 6)), 6), VECTORS),
    "softmax over the batch": (lambda: Headed(nn.Sequential(nn.Linear(12, 6), nn.Softmax(0)), 6),
                               VECTORS),
}  # fmt: skip
"""Networks that are mapped over clients by torch.func."""
ONE_BY_ONE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[str]]] = {
    "lstm": (
        lambda: Headed(
            nn.LSTM(8, 6, 2, dropout=0.5, batch_first=True, bidirectional=True), 72
        ), TOKENS, ["body"]),
    "gru": (lambda: Headed(nn.Sequential(nn.Linear(8, 8), nn.GRU(8, 6, batch_first=True)), 36),
            TOKENS, ["body.1"]),
    "cumulative average": (
        lambda: Headed(nn.Sequential(nn.Linear(12, 6), nn.BatchNorm1d(6, momentum=None)), 6),
        VECTORS, ["body.1"]),
}  # fmt: skip
"""Networks with a layer that computes one client after another, and its name."""
FOLDED: dict[str, Made] = {
    "dropout": (lambda: Headed(nn.Sequential(nn.Linear(12, 6), nn.Dropout(0.5)), 6), VECTORS),
    "dropout of maps": (lambda: Headed(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout2d(0.5)), 144),
                        IMAGES),
    "random slopes": (lambda: Headed(nn.Sequential(nn.Linear(12, 6), nn.RReLU()), 6), VECTORS),
    "alpha dropout": (lambda: Headed(nn.Sequential(nn.Linear(12, 6), nn.AlphaDropout(0.3)), 6),
                      VECTORS),
    "depthwise": (lambda: Headed(nn.Conv2d(3, 6, 3, groups=3), 216), IMAGES),
    "norms and activations": (
        lambda: Headed(nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.Conv2d(4, 6, 3, groups=2),
            nn.BatchNorm2d(6), nn.ReLU()), 96), IMAGES),
    "embedding": (lambda: Headed(nn.Embedding(VOCABULARY, 4, padding_idx=3), 24), IDS),
}  # fmt: skip
"""Networks whose clients are concatenated in the batch."""
EVERY: dict[str, Made] = MAPPED | FOLDED | {n: made[:2] for n, made in ONE_BY_ONE.items()}


def make(name: str, seed: int = 0) -> nn.Module:
    """Return a network of `EVERY` in double precision."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return EVERY[name][0]().double()
