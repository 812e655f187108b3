"""Weight-standardised convolutions (FedWS).

S. Qiao, H. Wang, C. Liu, W. Shen, A. Yuille. Micro-Batch Training with Batch-Channel Normalization
and Weight Standardization. 2019; with a gain, for federated learning: arXiv 2506.23516.
"""

import torch
from torch import Tensor, nn

from fedfm.core.errors import require

TINY = 1e-10
"""Added to a filter's variance."""


class StandardisedConv2d(nn.Conv2d):
    """A convolution with filters rho (w - mean w) / std w, over the weights w of each filter.

    The weights that are trained, sent and averaged are w. std is that of the n weights themselves,
    with n; the authors' code has n - 1, and adds 1e-5 to it.
    """

    rho: float

    def forward(self, input: Tensor) -> Tensor:
        """Map [B, I, H, W] -> [B, O, H', W']."""
        filters = standardise(self.weight, self.rho).to(input.dtype)
        result: Tensor = self._conv_forward(input, filters, self.bias)
        return result


def standardise(weight: Tensor, rho: float) -> Tensor:
    """Return standardised filters [..., O, I, h, w]: mean 0 and deviation rho over I, h and w."""
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    variance, mean = torch.var_mean(wide, (-3, -2, -1), correction=0, keepdim=True)
    return (wide - mean) * (rho * (variance + TINY).rsqrt())


def standardise_convolutions(module: nn.Module, rho: float, norm: str) -> None:
    """Let all convolutions of a module standardise their weights; rho = 0 changes nothing."""
    number = isinstance(rho, int | float) and not isinstance(rho, bool)
    require(number and rho >= 0, f"model standardise = {rho!r}: must be a number of at least 0")
    require(
        rho == 0 or norm != "none",
        "model standardise: convolutions with standardised weights need a norm after them: choose "
        "norm = 'group' or 'batch'",
    )
    for layer in module.modules() if rho else ():
        if type(layer) is nn.Conv2d:
            layer.__class__ = StandardisedConv2d
            setattr(layer, "rho", float(rho))  # noqa: B010 (mypy takes attributes for tensors)
