"""Textbook FedETF: a classifier that is fixed from the beginning, a simplex.

This file was written from the paper and the project's table of its updates, apart from the library:
its author did not read the library's methods, and it imports nothing but torch and its sister
files.

Notation: z the features of a sample, C classes, k the dimension of the simplex (C in the paper).
"""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn

from fedfm.verify.textbook.losses import BalancedSoftmax
from fedfm.verify.textbook.parts import unit


def simplex(rotation: Tensor) -> Tensor:
    """Simplex equiangular tight frame [k, C]: M = sqrt(C / (C - 1)) P (I - 1 1^T / C).

    ``rotation`` is P [k, C], whose columns are orthonormal. The columns of M, one per class, have
    length 1, and any two of them the inner product -1 / (C - 1).
    """
    classes = rotation.shape[1]
    centred = torch.eye(classes, dtype=rotation.dtype) - 1.0 / classes
    return sqrt(classes / (classes - 1)) * rotation @ centred


def simplex_logits(
    features: Tensor, weight: Tensor, bias: Tensor, vertices: Tensor, scale: Tensor
) -> Tensor:
    """Logits [B, C] of features [B, d]: s M^T u, u = v / ||v||, v = W z + b.

    ``weight`` is W [k, d] and ``bias`` b [k], the learnable projection; ``vertices`` is M [k, C],
    which is fixed; ``scale`` is s, one learnable number.
    """
    rows = []
    for z in features:
        u = unit(weight @ z + bias)
        rows.append(torch.stack([scale * (vertices[:, c] * u).sum() for c in range(len(bias))]))
    return torch.stack(rows)


class SimplexNet(nn.Module):
    """A body, and on top of it a projection, a fixed simplex and a learnable scale from 1.

    Its features are those of the body. Trained, averaged and decayed are the body, the projection
    and the scale; M is the same at the server and at all clients, and in no message.
    """

    def __init__(self, body: nn.Module, projection: nn.Linear, rotation: Tensor) -> None:
        super().__init__()
        self.body = body
        self.projection = projection
        self.scale = nn.Parameter(torch.ones((), dtype=rotation.dtype))
        self.vertices = simplex(rotation)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features of the body, and the simplex's logits."""
        z = self.body(x)
        w, b = self.projection.weight, self.projection.bias
        return z, simplex_logits(z, w, b, self.vertices, self.scale)


@dataclass(kw_only=True)
class FedETF(BalancedSoftmax):
    """FedETF (Li et al. 2023): balanced softmax on a network with a fixed simplex.

    The network, a ``SimplexNet`` or one that equals it, is all that it adds; server as FedAvg.
    Predictions are the largest logit, without the counts. The paper's personal fine-tuning
    afterwards is left out.
    """
