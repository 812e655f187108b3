"""ResNet-18 and ResNet-50 (He et al., 2016), with the parameter names of torchvision.

A torchvision state dict loads strictly (stem "imagenet", norm "batch", 1000 classes). As there,
the stride of a bottleneck sits in its 3x3 convolution ("v1.5").
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedfm.models.layers import check_choice, check_positive, image_shape, norm_layer
from fedfm.models.simplex import make_head
from fedfm.models.standardised import standardise_convolutions

Norm = Callable[[int], nn.Module]
"""Makes a normalisation layer for a number of channels."""


def conv(inside: int, outside: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias whose output is [H / stride, W / stride]."""
    return nn.Conv2d(inside, outside, size, stride, padding=size // 2, bias=False)


def shortcut(inside: int, outside: int, stride: int, norm: Norm) -> nn.Module:
    """Return the shortcut of a block: the identity if shapes agree, else a 1x1 convolution."""
    if inside == outside and stride == 1:
        return nn.Identity()
    return nn.Sequential(conv(inside, outside, 1, stride), norm(outside))


def add_relu(x: Tensor, shortcut: Tensor | None) -> Tensor:
    """Return ReLU(x + shortcut)."""
    return F.relu(x if shortcut is None else x + shortcut, inplace=True)


def activate(norm: nn.Module, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
    """Return ReLU(norm(x) + shortcut), in one pass if the norm has a fused kernel."""
    fused: Callable[[Tensor, Tensor | None], Tensor] | None = getattr(norm, "activate", None)
    return fused(x, shortcut) if fused else add_relu(norm(x), shortcut)


def branch(conv: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return conv(x), and x for the shortcut; a fused kernel adds the gradients of both."""
    fused: Callable[[Tensor], tuple[Tensor, Tensor]] | None = getattr(conv, "branch", None)
    return fused(x) if fused else (conv(x), x)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions: [B, inside, H, W] -> [B, width, H / stride, W / stride]."""

    expansion: ClassVar[int] = 1

    def __init__(self, inside: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = conv(inside, width, 3, stride)
        self.bn1 = norm(width)
        self.conv2 = conv(width, width, 3)
        self.bn2 = norm(width)
        self.downsample = shortcut(inside, width, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, inside, H, W] -> [B, width, H / stride, W / stride]."""
        y, x = branch(self.conv1, x)
        y = activate(self.bn1, y)
        return activate(self.bn2, self.conv2(y), self.downsample(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions: [B, inside, H, W] -> [B, 4 width, H / stride, W / stride]."""

    expansion: ClassVar[int] = 4

    def __init__(self, inside: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        outside = width * self.expansion
        self.conv1 = conv(inside, width, 1)
        self.bn1 = norm(width)
        self.conv2 = conv(width, width, 3, stride)
        self.bn2 = norm(width)
        self.conv3 = conv(width, outside, 1)
        self.bn3 = norm(outside)
        self.downsample = shortcut(inside, outside, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, inside, H, W] -> [B, 4 width, H / stride, W / stride]."""
        y, x = branch(self.conv1, x)
        y = activate(self.bn2, self.conv2(activate(self.bn1, y)))
        return activate(self.bn3, self.conv3(y), self.downsample(x))


def _make_projection(inputs: int, outputs: int) -> nn.Module:
    """Return a projection head [B, inputs] -> [B, outputs], or for 0 outputs nothing."""
    if not outputs:
        return nn.Identity()
    check_positive(projection=outputs)
    return nn.Sequential(nn.Linear(inputs, inputs), nn.ReLU(), nn.Linear(inputs, outputs))


class ResNet(nn.Module):
    """Four stages of residual blocks for images.

    Args:
        shape: (C, H, W) of one image.
        classes: The number of classes.
        stem: "imagenet" (7x7 convolution and max-pool, each of stride 2) or "cifar" (one 3x3
            convolution of stride 1, for small images); by default that of the paper's network.
        norm: "batch" or "group", under the same parameter names.
        groups: The number of groups of group norm.
        width: The number of channels of the first stage.
        standardise: rho of weight-standardised convolutions (FedWS); 0: plain convolutions.
        head: "linear", or "simplex" for fixed class directions (FedETF).
        projection: The number of features after a projection head, as MOON's authors use it: two
            linear layers, which the last layer follows; 0: none.

    Examples:
        >>> small = ResNet18((1, 28, 28), 10, stem="cifar", norm="group", groups=8, width=8)
        >>> small.fc
        Linear(in_features=64, out_features=10, bias=True)
    """

    block: ClassVar[type[BasicBlock | Bottleneck]]
    depths: ClassVar[tuple[int, int, int, int]]
    default_stem: ClassVar[str]
    head_name = "fc"
    """The dotted name of the last layer."""

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        *,
        stem: str | None = None,
        norm: str = "batch",
        groups: int = 32,
        width: int = 64,
        standardise: float = 0.0,
        head: str = "linear",
        projection: int = 0,
    ) -> None:
        stem = stem or self.default_stem
        check_choice("stem", stem, ("imagenet", "cifar"))
        check_choice("norm", norm, ("batch", "group"))
        check_positive(groups=groups, width=width, classes=classes)
        super().__init__()
        large, make_norm = stem == "imagenet", partial(norm_layer, norm, groups=groups)
        self.conv1 = conv(image_shape(shape)[0], width, 7 if large else 3, 2 if large else 1)
        self.bn1 = make_norm(width)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if large else nn.Identity()
        self.layer1 = self._stage(0, width, width, make_norm)
        self.layer2 = self._stage(1, width * self.block.expansion, width * 2, make_norm)
        self.layer3 = self._stage(2, width * 2 * self.block.expansion, width * 4, make_norm)
        self.layer4 = self._stage(3, width * 4 * self.block.expansion, width * 8, make_norm)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        pooled = width * 8 * self.block.expansion
        self.projection = _make_projection(pooled, projection)
        self.fc = make_head(head, projection or pooled, classes)
        self._initialise()
        standardise_convolutions(self, standardise, norm)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return images [B, C, H, W] -> (features [B, d], logits [B, classes])."""
        x = self.maxpool(activate(self.bn1, self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        features = self.projection(torch.flatten(self.avgpool(x), 1))
        return features, self.fc(features)

    def _stage(self, index: int, inside: int, width: int, norm: Norm) -> nn.Sequential:
        """Return the blocks of a stage; except in the first stage, the first one halves the map."""
        first = self.block(inside, width, 1 if index == 0 else 2, norm)
        outside = width * self.block.expansion
        rest = (self.block(outside, width, 1, norm) for _ in range(self.depths[index] - 1))
        return nn.Sequential(first, *rest)

    def _initialise(self) -> None:
        """Initialise convolutions by Kaiming normal (fan out); keep torch's defaults elsewhere."""
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


class ResNet18(ResNet):
    """ResNet-18: d = 512 features at the width of 64; its default stem is "imagenet".

    The arguments are those of `ResNet`.

    Examples:
        >>> import torch
        >>> features, logits = ResNet18((3, 32, 32), 10, stem="cifar")(torch.zeros(2, 3, 32, 32))
        >>> features.shape, logits.shape
        (torch.Size([2, 512]), torch.Size([2, 10]))
    """

    block = BasicBlock
    depths = (2, 2, 2, 2)
    default_stem = "imagenet"


class ResNet50(ResNet):
    """ResNet-50: d = 2048 features at the width of 64; its default stem is "cifar".

    The arguments are those of `ResNet`.

    Examples:
        >>> import torch
        >>> features, logits = ResNet50((3, 32, 32), 10, width=8)(torch.zeros(2, 3, 32, 32))
        >>> features.shape, logits.shape
        (torch.Size([2, 256]), torch.Size([2, 10]))
    """

    block = Bottleneck
    depths = (3, 4, 6, 3)
    default_stem = "cifar"
