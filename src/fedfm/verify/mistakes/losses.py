"""Mistakes in losses: FedNTD, FedLC, FedRS, balanced softmax, FedDecorr, FedUV."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedfm.core.trees import Tree
from fedfm.methods import BalancedSoftmax, Batch, FedDecorr, FedLC, FedNTD, FedRS, FedUV
from fedfm.methods.feddecorr import correlate
from fedfm.rounds.federation import Federation
from fedfm.verify.mistakes.planting import plant, plant_in

count_classes = Federation.count_classes


@plant_in(
    Federation,
    "count_classes",
    "counts are summed over clients (a public library)",
    FedLC(),
    FedRS(),
    BalancedSoftmax(),
)
def count_all_classes(self: Federation, cohort: list[int]) -> Tensor:
    """Give every client the counts of all."""
    total = count_classes(self, list(range(len(self.samples)))).sum(0, keepdim=True)
    return total.expand(len(cohort), -1)


@plant("cross-entropy is weighed with 1 - beta (another paper's copy)", strength=0.3)
class CrossEntropyWeighed(FedNTD):
    """Distillation comes at the cost of the task's loss."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        logits = batch.logits.movedim(-1, 1)
        task = F.cross_entropy(logits, batch.labels, reduction="none").mean(-1)
        return super().loss(batch, held) - self.strength * task


@plant("the true class takes part")
class TrueClassDistilled(FedNTD):
    """Knowledge of the true class is distilled, too."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        ours, theirs = batch.logits, batch.view_logits["received"]
        log_p, log_q = (F.log_softmax(z / self.temperature, dim=-1) for z in (ours, theirs))
        divergence = F.kl_div(log_p, log_q, reduction="none", log_target=True).sum(-1)
        return self.strength * self.temperature**2 * divergence.mean(-1)


@plant("tau^2 is left out", temperature=2.0)
class TemperatureNotSquared(FedNTD):
    """The gradient shrinks as tau grows."""

    def loss(self, batch: Batch, held: Tree) -> Tensor:
        return super().loss(batch, held) / self.temperature**2


@plant("the true class is in the sum (all public code)")
class TrueClassInSum(FedLC):
    """Plain cross-entropy of the calibrated logits."""

    def loss(self, batch: Batch, held: Tree) -> Tensor | None:
        return None


@plant("a class that the client lacks stays, without a margin")
class MissingClassStays(FedLC):
    """n^(-1/4) is 0 for n = 0."""

    def use_counts(self, counts: Tensor) -> Tree:
        shift = super().use_counts(counts)["shift"]
        return {"shift": shift.masked_fill(counts == 0, 0.0)}


@plant("factors are graded by counts (the authors' code)")
class FactorsGraded(FedRS):
    """a + (1 - a) n_c / max n."""

    def use_counts(self, counts: Tensor) -> Tree:
        share = counts / counts.amax(1, keepdim=True)
        return {"scale": self.alpha + (1 - self.alpha) * share}


@plant("graded factors are shares of the client's samples, not of its largest class", graded=True)
class Shares(FedRS):
    """a + (1 - a) n_c / n."""

    def use_counts(self, counts: Tensor) -> Tree:
        share = counts / counts.sum(1, keepdim=True)
        return {"scale": self.alpha + (1 - self.alpha) * share}


@plant("alpha goes to the classes that the client has")
class AlphaToHeldClasses(FedRS):
    """Missing classes keep their logits."""

    def use_counts(self, counts: Tensor) -> Tree:
        return super().use_counts((counts == 0).to(counts))


@plant("counts have 1 added, so missing classes stay")
class CountsSmoothed(BalancedSoftmax):
    """log(n + 1)."""

    def use_counts(self, counts: Tensor) -> Tree:
        return super().use_counts(counts + 1)


@plant("the logarithm is subtracted")
class LogarithmSubtracted(BalancedSoftmax):
    """Frequent classes lose."""

    def adjust_logits(self, batch: Batch, held: Tree) -> Tensor:
        shift: Tensor = held["shift"].unsqueeze(1)
        return batch.logits - shift.where(shift.isfinite(), -shift)


@plant("the term grows with the batch (the authors' code)")
class TermGrowsWithBatch(FedDecorr):
    """(B - 1)^2 / B times the mean of squared correlations."""

    def loss(self, batch: Batch, held: Tree) -> Tensor | None:
        plain, (size, width) = super().loss(batch, held), batch.features.shape[1:]
        return None if plain is None else plain * (size - 1) ** 2 / size * width / (width - 1)


@plant("the averaged term does not grow with B", averaged=True)
class Mean(FedDecorr):
    """The mean of squared correlations, whatever B."""

    def loss(self, batch: Batch, held: Tree) -> Tensor | None:
        whole, size = super().loss(batch, held), batch.features.shape[1]
        return None if whole is None else whole * size / (size - 1) ** 2


@plant("covariances instead of correlations")
class CovariancesNotCorrelations(FedDecorr):
    """Features of small variance may stay correlated."""

    def loss(self, batch: Batch, held: Tree) -> Tensor | None:
        deviation = batch.features.std(1, correction=0)
        products = correlate(batch.features) * deviation.unsqueeze(1) * deviation.unsqueeze(2)
        off: Tensor = products.square().sum((1, 2)) - products.diagonal(0, 1, 2).square().sum(1)
        return self.strength * off / batch.features.shape[-1] ** 2


@plant("the deviation is that of the logits")
class DeviationOfLogits(FedUV):
    """Deviations of logits are seldom below the bound."""

    def loss(self, batch: Batch, held: Tree) -> Tensor | None:
        uniformity = FedUV.loss(replace(self, variance=0.0), batch, held)
        if uniformity is None:
            return None
        missing: Tensor = (batch.logits.shape[-1] ** -0.5 - batch.logits.std(1)).relu()
        return self.variance * missing.mean(-1) + uniformity


@plant("the width has no gradient")
class WidthWithoutGradient(FedUV):
    """The median of the squared distances is taken for a number."""

    def loss(self, batch: Batch, held: Tree) -> Tensor | None:
        variance = FedUV.loss(replace(self, uniformity=0.0), batch, held)
        crowd = self.uniformity * crowd_by_number(batch.features)
        return None if variance is None else variance + crowd


def crowd_by_number(features: Tensor) -> Tensor:
    """Return the mean of exp(-||f_i - f_j||^2 / m) over i < j, m the detached median."""
    first, second = torch.combinations(torch.arange(features.shape[1])).unbind(1)
    squares = (features[:, first] - features[:, second]).square().sum(-1)
    median = squares.detach().median(1, keepdim=True).values
    return (-squares / median).exp().mean(1)


@plant("a fixed width has a gradient", fixed_width=True)
class MovingWidth(FedUV):
    """The option does nothing."""

    def loss(self, batch: Batch, held: Tree) -> Tensor | None:
        return FedUV.loss(replace(self, fixed_width=False), batch, held)
