"""Layers that several networks have, and checks of their options."""

from collections.abc import Sequence

from torch import nn

from fedfm.core.errors import require, unknown_name_error


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
        raise unknown_name_error(f"model {option}", str(value), known)


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
