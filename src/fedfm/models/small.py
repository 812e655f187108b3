"""Small networks, and the checks and layers that all networks share."""

from collections.abc import Sequence
from math import prod

from torch import nn

from fedfm.core.errors import require, unknown
from fedfm.models.adapter import BodyAndHead
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


def conv_block(inside: int, outside: int, norm: str, groups: int) -> list[nn.Module]:
    """Return the layers [B, inside, H, W] -> [B, outside, H, W]: convolution, norm if any, ReLU."""
    conv = nn.Conv2d(inside, outside, 3, padding=1, bias=norm == "none")
    norms = [] if norm == "none" else [norm_layer(norm, outside, groups)]
    return [conv, *norms, nn.ReLU()]


def norm_layer(norm: str, channels: int, groups: int) -> nn.Module:
    """Batch normalisation ("batch") or group normalisation ("group") of [B, channels, H, W]."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    require(
        channels % groups == 0,
        f"norm 'group': {channels} channels do not split into {groups} groups",
    )
    return nn.GroupNorm(groups, channels)


def image_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """Return the shape (C, H, W) of one image; refuse inputs that are not images."""
    check_sizes(shape=shape)
    require(
        len(shape) == 3,
        f"this model takes images (channels, height, width), but inputs have shape "
        f"{tuple(shape)}: use the model 'mlp'",
    )
    return shape[0], shape[1], shape[2]


def check_choice(option: str, value: str, known: Sequence[str]) -> None:
    """Refuse an unknown value of an option."""
    if value not in known:
        raise unknown(f"model {option}", str(value), known)


def check_positive(**options: object) -> None:
    """Refuse options that are not integers of at least 1."""
    for option, value in options.items():
        require(_positive(value), f"model {option} = {value!r}: must be a whole number above 0")


def check_sizes(**options: object) -> None:
    """Refuse options that are not lists of integers of at least 1."""
    for option, value in options.items():
        require(
            isinstance(value, list | tuple) and all(_positive(number) for number in value),
            f"model {option} = {value!r}: must be a list of whole numbers above 0",
        )


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
