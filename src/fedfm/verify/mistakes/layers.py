"""Mistakes in layers: FedWS's standardised convolutions."""

import torch
from torch import Tensor

from fedfm.engine.stacking import convolution
from fedfm.methods import FedAvg
from fedfm.models import standardised
from fedfm.verify.mistakes.planting import plant_in

FILTER = (-3, -2, -1)


@plant_in(standardised, "standardise", "FedWS: each input channel is standardised", FedAvg())
def standardise_kernels(weight: Tensor, rho: float) -> Tensor:
    """Bring every h x w kernel to mean 0 and deviation rho."""
    variance, mean = torch.var_mean(weight, (-2, -1), correction=0, keepdim=True)
    return rho * (weight - mean) / variance.sqrt()


@plant_in(standardised, "standardise", "FedWS: the deviation is that of n - 1", FedAvg())
def standardise_unbiased(weight: Tensor, rho: float) -> Tensor:
    """Divide by the deviation of the authors' code, without its 1e-5."""
    variance, mean = torch.var_mean(weight, FILTER, keepdim=True)
    return rho * (weight - mean) / variance.sqrt()


@plant_in(standardised, "standardise", "FedWS: the mean stays", FedAvg())
def keep_mean(weight: Tensor, rho: float) -> Tensor:
    """Divide by the deviation alone."""
    return rho * weight / weight.std(FILTER, correction=0, keepdim=True)


@plant_in(standardised, "standardise", "FedWS: mean and deviation have no gradient", FedAvg())
def detach_moments(weight: Tensor, rho: float) -> Tensor:
    """Take both for numbers."""
    variance, mean = torch.var_mean(weight.detach(), FILTER, correction=0, keepdim=True)
    return rho * (weight - mean) / variance.sqrt()


@plant_in(convolution, "standardise", "FedWS: moments are those of all clients", FedAvg())
def mix_clients(weight: Tensor, rho: float) -> Tensor:
    """Standardise a filter of a stack [S, O, I, h, w] over the clients, too."""
    variance, mean = torch.var_mean(weight, (0, *FILTER), correction=0, keepdim=True)
    return rho * (weight - mean) / variance.sqrt()
