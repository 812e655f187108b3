"""Textbook FedSA's options of FedFM: moving averages of anchors, a margin, a calibrated head.

This file was written from the project's table of updates and the options' descriptions, apart from
the library: its author did not read the library's methods, and it imports nothing but torch and its
sister files. (FedSA: Zhou et al. 2025. Its margin is a distance between anchors that changes from
round to round; here it is a number, in units of the cosine similarity.)

Notation: a_c the raw global anchor of class c, f the raw features of a sample, alpha the
temperature. The head of a model is its submodule ``head``, which maps features to logits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedfm.verify.textbook.fedfm import FedFM, FedFMLite
from fedfm.verify.textbook.parts import Anchors, Client, l2_loss, mean_or_zero, unit


def moved(old: Mapping[int, Tensor], new: Mapping[int, Tensor], keep: float) -> Anchors:
    """Moving average: a_c = keep a_c(old) + (1 - keep) a_c(new), of raw anchors.

    ``new`` has every class of ``old``. A class's first anchor is taken as it is.
    """
    return {c: keep * old[c] + (1 - keep) * new[c] if c in old else new[c] for c in new}


def cg_loss_with_margin(
    features: Tensor, labels: Tensor, anchors: Anchors, temperature: float, margin: float
) -> Tensor:
    """Contrastive guiding: -log s_c, s = softmax(z), z_n = (<a_n, f> - margin [n = c]) / alpha.

    a_n and f at unit length, c the sample's own class; classes and samples as without margin.
    """
    terms = []
    for f, c in zip(features, labels.tolist(), strict=True):
        if c not in anchors:
            continue
        z = {}
        for n, anchor in anchors.items():
            similarity = (unit(anchor) * unit(f)).sum()
            z[n] = (similarity - margin if n == c else similarity) / temperature
        terms.append(torch.logsumexp(torch.stack(list(z.values())), dim=0) - z[c])
    return mean_or_zero(terms, features)


def calibration_loss(head: nn.Module, anchors: Anchors) -> Tensor:
    """Loss of the head: (1 / m) sum_c CE(head(a_c), c), over the m classes that have an anchor.

    The anchors are raw, as the features that the head sees; they are constants, so that only the
    head has a gradient.
    """
    terms = []
    for c, anchor in anchors.items():
        logits = head(anchor.detach().unsqueeze(0))[0]
        terms.append(torch.logsumexp(logits, dim=0) - logits[c])
    return torch.stack(terms).mean()


@dataclass(kw_only=True)
class FedSA(FedFM):
    """FedFM with FedSA's options: ``moving_average``, ``margin`` and ``calibration``.

    The local loss is the method's + lambda Q(w; A) + calibration (1 / m) sum_c CE(head(a_c), c).
    The warm-up multiplies lambda alone.
    """

    moving_average: float = 0.0
    margin: float = 0.0
    calibration: float = 0.0

    def new_anchors(self, models: Sequence[nn.Module], cohort: Sequence[Client]) -> Anchors:
        """Global anchors: moving average of the last ones and the round's."""
        new = super().new_anchors(models, cohort)
        return moved(self.anchors, new, self.moving_average)

    def match(self) -> None:
        """The method's extra losses become the round's, if there are anchors."""
        anchors, strength = dict(self.anchors), self.strength_now()

        def matching(features: Tensor, labels: Tensor) -> Tensor:
            if self.guide == "l2":
                return strength * l2_loss(features, labels, anchors)
            how = self.temperature, self.margin
            return strength * cg_loss_with_margin(features, labels, anchors, *how)

        def calibrating(local: nn.Module) -> Tensor:
            return self.calibration * calibration_loss(local.get_submodule("head"), anchors)

        if anchors:
            self.method.extra_loss = matching
            self.method.model_loss = calibrating


@dataclass(kw_only=True)
class FedSALite(FedSA, FedFMLite):
    """FedFM-Lite with the same options."""
