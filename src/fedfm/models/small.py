"""Small networks."""

from collections.abc import Sequence
from math import prod

from torch import nn

from fedfm.models.adapter import BodyAndHead
from fedfm.models.layers import check_choice, check_positive, check_sizes, conv_block, image_shape
from fedfm.models.simplex import make_head
from fedfm.models.standardised import standardise_convolutions


class SmallCNN(BodyAndHead):
    """3x3 convolutions with ReLU and max-pooling, one hidden layer, the head.

    Each convolution is followed by a 2x2 max-pool as long as the map is at least 4x4.

    Args:
        shape: (C, H, W) of one image.
        classes: The number of classes.
        channels: The channels of each convolution.
        features: d, the width of the hidden layer.
        norm: "none", "batch" or "group".
        groups: The number of groups of group norm.
        standardise: rho of weight-standardised convolutions (FedWS); 0: plain convolutions.
        head: "linear", or "simplex" for fixed class directions (FedETF).

    Examples:
        >>> import torch
        >>> features, logits = SmallCNN((3, 32, 32), 10)(torch.zeros(5, 3, 32, 32))
        >>> features.shape, logits.shape
        (torch.Size([5, 64]), torch.Size([5, 10]))
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        *,
        channels: Sequence[int] = (16, 32),
        features: int = 64,
        norm: str = "none",
        groups: int = 8,
        standardise: float = 0.0,
        head: str = "linear",
    ) -> None:
        inside, height, width = image_shape(shape)
        check_choice("norm", norm, ("none", "batch", "group"))
        check_positive(features=features, groups=groups, classes=classes)
        check_sizes(channels=channels)
        layers: list[nn.Module] = []
        for outside in channels:
            layers += conv_block(inside, outside, norm, groups)
            if min(height, width) >= 4:
                layers.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
            inside = outside
        layers += [nn.Flatten(), nn.Linear(inside * height * width, features), nn.ReLU()]
        super().__init__(nn.Sequential(*layers), make_head(head, features, classes))
        standardise_convolutions(self, standardise, norm)


class MLP(BodyAndHead):
    """Linear layers with ReLU, the head.

    The features are the output of the last hidden layer; with no hidden layer, the flat input
    (softmax regression).

    Args:
        shape: The shape of one input, which is flattened.
        classes: The number of classes.
        hidden: The widths of the hidden layers.
        norm: "none" or "batch".
        head: "linear", or "simplex" for fixed class directions (FedETF).

    Examples:
        >>> import torch
        >>> features, logits = MLP((20,), 3, hidden=[16])(torch.zeros(5, 20))
        >>> features.shape, logits.shape
        (torch.Size([5, 16]), torch.Size([5, 3]))
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        *,
        hidden: Sequence[int] = (128, 64),
        norm: str = "none",
        head: str = "linear",
    ) -> None:
        check_choice("norm", norm, ("none", "batch"))
        check_positive(classes=classes)
        check_sizes(shape=shape, hidden=hidden)
        inside = prod(shape)
        layers: list[nn.Module] = [nn.Flatten()]
        for outside in hidden:
            layers.append(nn.Linear(inside, outside))
            layers += [nn.BatchNorm1d(outside)] if norm == "batch" else []
            layers.append(nn.ReLU())
            inside = outside
        super().__init__(nn.Sequential(*layers), make_head(head, inside, classes))
