"""A head whose class directions are fixed: the vertices of a simplex (FedETF).

Z. Li, X. Shang, R. He, T. Lin, C. Wu. No Fear of Classifier Biases: Neural Collapse Inspired
Federated Learning with Synthetic and Fixed Classifier. ICCV 2023 (Eq. 3 and 7).
"""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfm.core.errors import unknown_name_error


class Simplex(nn.Module):
    """Logits s M^T f of unit vectors f: [B, C] -> [B, C], with M = sqrt(C / (C - 1)) (I - 11^T/C).

    The columns of M are the vertices of a simplex around 0, one for each class. s is learned and
    starts at 1. The paper turns M by a fixed rotation P; what comes before is linear and learned,
    so that P is the identity here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, C] of projected features [B, C]."""
        return self.scale * self.cosines(x)

    def cosines(self, x: Tensor) -> Tensor:
        """Return M^T x / ||x|| in the precision of the scale."""
        unit = F.normalize(x.to(self.scale.dtype), dim=-1)
        classes, centred = x.shape[-1], unit - unit.mean(-1, keepdim=True)
        length: float = (classes / (classes - 1)) ** 0.5
        return centred * length


def make_head(kind: str, features: int, classes: int) -> nn.Module:
    """Return the head [B, features] -> [B, classes]: "linear", or "simplex" after a projection."""
    linear = nn.Linear(features, classes)
    if kind == "linear":
        return linear
    if kind == "simplex":
        return nn.Sequential(OrderedDict(projection=linear, simplex=Simplex()))
    raise unknown_name_error("model head", str(kind), ("linear", "simplex"))
