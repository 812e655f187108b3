"""Textbook FedWS: convolutions with standardised filters.

This file was written from the paper's formula and the project's table of its updates, apart from
the library: its author did not read the library's layer, and it imports nothing but torch.

A filter is the weights w of one output channel, [I, h, w]. The network convolves with rho (w - mean
w) / std w; the w themselves are trained, decayed, sent and averaged, and the gradient is that of
the loss with respect to w, through mean and deviation.
"""

import torch
from torch import Tensor, nn


def standardised(w: Tensor, rho: float, as_code: bool = False) -> Tensor:
    """Filter [I, h, w]: rho (w - mean w) / sqrt(sum (w - mean w)^2 / n), with n = I h w weights.

    So its mean is 0 and its deviation rho. With ``as_code``, the public code's form, whose
    deviation is sqrt(sum (w - mean w)^2 / (n - 1)) + 1e-5.
    """
    n = w.numel()
    centred = w - w.sum() / n
    squares = (centred * centred).sum()
    deviation = (squares / (n - 1)).sqrt() + 1e-5 if as_code else (squares / n).sqrt()
    return rho * centred / deviation


class StandardisedConvolution(nn.Module):
    """Convolution with the weights and bias of another, its filters standardised one by one."""

    def __init__(self, plain: nn.Conv2d, rho: float, as_code: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(plain.weight.detach().clone())
        self.bias = None if plain.bias is None else nn.Parameter(plain.bias.detach().clone())
        self.rho = rho
        self.as_code = as_code
        self.stride, self.padding = plain.stride, plain.padding

    def forward(self, x: Tensor) -> Tensor:
        """Convolution of x [B, I, H, W] with the standardised filters: [B, O, H', W']."""
        filters = torch.stack([standardised(w, self.rho, self.as_code) for w in self.weight])
        return nn.functional.conv2d(x, filters, self.bias, self.stride, self.padding)
