"""Every metric is scikit-learn's, however its samples are cut into clients, batches and padding."""

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedfm.core import trees
from fedfm.core.errors import UserError
from fedfm.methods.base import Batch
from fedfm.metrics import METRICS, Accuracy, Auc, Confusion, MacroF1, Metric, metric_class
from fedfm.metrics.measures import Measures, check_metric, to_plain


def predictions(seed: int, samples: int, classes: int) -> tuple[Tensor, Tensor]:
    """Logits [n, C] and labels [n]: noisy, with ties, and often without some of the classes."""
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(rng.integers(0, rng.integers(1, classes + 1), samples))
    logits = rng.normal(0, 3, (samples, classes)).round(1) + 2 * np.eye(classes)[labels]
    return torch.from_numpy(logits).float(), labels


def pad(logits: Tensor, labels: Tensor, parts: list[Tensor]) -> Batch:
    """A batch of several clients with different numbers of samples."""
    width = max(1, *map(len, parts))
    batch = Batch(
        torch.zeros(len(parts), width, 1),
        torch.zeros(len(parts), width, logits.shape[1]),
        torch.zeros(len(parts), width, dtype=torch.int64),
        torch.zeros(len(parts), width, dtype=torch.bool),
    )
    for k, part in enumerate(parts):
        batch.logits[k, : len(part)], batch.labels[k, : len(part)] = logits[part], labels[part]
        batch.mask[k, : len(part)] = True
    return batch


def cut(samples: int, seed: int, clients: int) -> list[Tensor]:
    owners = np.random.default_rng(seed).integers(0, clients, samples)
    return [torch.from_numpy(np.flatnonzero(owners == k)) for k in range(clients)]


def total(metric: Metric, logits: Tensor, labels: Tensor, parts: list[Tensor]) -> trees.Tree:
    """The statistics [S, ...] of the clients, summed over two batches of each."""
    halves = [[part[::2] for part in parts], [part[1::2] for part in parts]]
    first, second = (metric.statistic(pad(logits, labels, half)) for half in halves)
    return trees.tree_map(torch.add, first, second)


def expected(name: str, logits: Tensor, labels: Tensor) -> np.ndarray | float:
    from sklearn import metrics as sklearn  # takes a second: only where these tests run

    classes = range(logits.shape[1])
    chosen, scores = logits.argmax(1), torch.softmax(logits.double(), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn notes classes without samples
        match name:
            case "accuracy":
                return float(sklearn.accuracy_score(labels, chosen))
            case "balanced_accuracy":
                return float(sklearn.balanced_accuracy_score(labels, chosen))
            case "macro_f1":
                return float(sklearn.f1_score(labels, chosen, average="macro"))
            case "class_f1":
                found = sklearn.f1_score(labels, chosen, average=None, labels=classes)
                seen = [c in labels.tolist() + chosen.tolist() for c in classes]
                return np.where(seen, found, np.nan)
            case "log_loss":
                return float(sklearn.log_loss(labels, scores, labels=classes))
            case "confusion":
                return np.asarray(sklearn.confusion_matrix(labels, chosen, labels=classes))
    assert name == "calibration_error"
    confidence, right = scores.max(1).values.numpy(), (chosen == labels).numpy()
    bins = [(confidence > b / 15) & (confidence <= (b + 1) / 15) for b in range(15)]
    return float(sum(abs(right[b].sum() - confidence[b].sum()) for b in bins) / len(labels))


def exact_auc(logits: Tensor, labels: Tensor) -> float:
    """One class against the rest, averaged over the classes that some samples have."""
    from sklearn.metrics import roc_auc_score

    scores = torch.softmax(logits.double(), 1)
    present = [c for c in range(logits.shape[1]) if 0 < (labels == c).sum() < len(labels)]
    found = [roc_auc_score(labels == c, scores[:, c]) for c in present]
    return float(np.mean(found)) if found else float("nan")


ADDITIVE = [name for name in METRICS if name != "auc"]
draws = given(st.integers(0, 10**6), st.integers(1, 60), st.integers(2, 5), st.integers(1, 4))
few = settings(max_examples=25, deadline=None)


@pytest.mark.parametrize("name", ADDITIVE)
@few
@draws
def test_sums_over_clients_batches_and_padding_give_scikit_learn_s_value(
    name, seed, samples, classes, clients
):
    logits, labels = predictions(seed, samples, classes)
    metric = metric_class(name)()
    rows = total(metric, logits, labels, cut(samples, seed, clients))
    found = metric.value(trees.share(trees.sum_clients(rows)))[0]
    np.testing.assert_allclose(found.numpy(), expected(name, logits, labels), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ADDITIVE)
def test_the_value_of_each_client_is_that_of_its_own_samples(name):
    logits, labels = predictions(3, 50, 4)
    metric, parts = metric_class(name)(), cut(50, 3, 3)
    values = metric.value(total(metric, logits, labels, parts))
    for value, part in zip(values, parts, strict=True):
        wanted = expected(name, logits[part], labels[part])
        np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in METRICS if name != "confusion"])
def test_a_client_without_samples_has_no_value(name):
    logits, labels = predictions(3, 20, 4)
    metric = metric_class(name)()
    parts = [torch.arange(20), torch.arange(0)]
    values = metric.value(total(metric, logits, labels, parts))
    assert not values[0].isnan().all()
    assert values[1].isnan().all()


@few
@draws
def test_auc_is_exact_on_one_data_set_and_within_its_bins_elsewhere(
    seed, samples, classes, clients
):
    logits, labels = predictions(seed, samples, classes)
    metric = Auc()
    exact = metric.exact(logits, labels)
    assert float(exact) == pytest.approx(exact_auc(logits, labels), abs=1e-9, nan_ok=True)
    rows = total(metric, logits, labels, cut(samples, seed, clients))
    sums = trees.sum_clients(rows)
    binned = float(metric.value(trees.share(sums))[0])
    positives, others = sums["positives"], sums["samples"] - sums["positives"]
    pairs = positives.sum(1) * others.sum(1)
    bound = ((positives * others).sum(1) / pairs / 2)[pairs > 0].double().mean()
    assert abs(binned - float(exact)) <= float(bound) + 1e-6 or (len(labels.unique()) == 1)


@pytest.mark.parametrize("scale", [0.02, 1.0, 5.0])
def test_bins_of_auc_are_fine_enough_for_overlapping_classes(scale):
    """Also for a network that has hardly been trained, and for one that is very sure."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(4000) % 2
    scores = scale * (torch.randn(4000, generator=rng) + labels)
    logits = torch.stack([-scores, scores], 1)
    batch = pad(logits, labels, [torch.arange(4000)])
    binned = float(Auc().value(Auc().statistic(batch))[0])
    assert binned == pytest.approx(exact_auc(logits, labels), abs=2e-3)


def test_auc_of_one_class_has_no_value():
    logits = torch.randn(5, 3)
    assert Auc().exact(logits, torch.zeros(5, dtype=torch.int64)).isnan()


def test_predictions_that_are_not_finite_give_finite_sums():
    logits = torch.tensor([[[float("nan")] * 2, [float("inf"), 0.0], [0.0, 1e30]]])
    batch = Batch(logits, logits, torch.tensor([[0, 1, 0]]), torch.ones(1, 3, dtype=torch.bool))
    for kind in METRICS.values():
        for leaf in trees.leaves(kind().statistic(batch)):
            assert torch.isfinite(leaf).all(), kind.name


def test_metrics_that_share_a_statistic_compute_it_once(monkeypatch):
    calls = []
    original = metric_class("balanced_accuracy").statistic

    def counted(self, batch):
        calls.append(self.name)
        return original(self, batch)

    monkeypatch.setattr(metric_class("balanced_accuracy"), "statistic", counted)
    names = ("balanced_accuracy", "macro_f1", "class_f1")
    measures = Measures((Accuracy(), *(metric_class(name)() for name in names)))
    logits, labels = predictions(1, 20, 3)
    totals = measures.statistic(pad(logits, labels, [torch.arange(20)]))
    assert calls == ["balanced_accuracy"]
    assert totals.keys() == {"accuracy", "balanced_accuracy"}
    values = measures.values(totals)
    assert [*values] == ["accuracy", *names]
    assert float(values["macro_f1"][0]) == pytest.approx(expected("macro_f1", logits, labels))


@dataclass(frozen=True)
class TopK(Metric):
    """The true class is among the k most likely."""

    name = "topk"
    k: int = 2

    def statistic(self, batch):
        """Count."""
        best = batch.logits.topk(self.k, -1).indices
        right = (best == batch.labels.unsqueeze(-1)).any(-1) & batch.mask
        return {"right": right.sum(-1), "samples": batch.mask.sum(-1)}

    def value(self, total):
        """Divide."""
        return total["right"] / total["samples"]


def test_metrics_of_one_class_with_other_settings_share_nothing():
    other = type("Other", (TopK,), {"name": "other"})
    assert len(Measures((Accuracy(), TopK(2), other(3))).groups) == 3
    assert len(Measures((Accuracy(), TopK(2), other(2))).groups) == 2


def test_trying_metrics_out_gives_the_form_of_their_statistics():
    measures = Measures((Accuracy(), MacroF1(), Confusion(), Auc()))
    shapes = trees.flatten(measures.try_out(classes=4, features=3))
    assert shapes["accuracy/right"].shape == ()
    assert shapes["macro_f1/right"].shape == (4,)
    assert shapes["confusion/counts"].shape == (4, 4)
    assert shapes["auc/samples"].shape == (4, 512)


@dataclass(frozen=True)
class Wrong(TopK):
    """Breaks the contract in a way that its setting chooses."""

    name = "wrong"
    how: str = ""

    def statistic(self, batch):
        """Return something else than a tree with a client axis."""
        if self.how == "raises":
            raise KeyError("x")
        if self.how == "number":
            return 3
        found = super().statistic(batch)
        return trees.sum_clients(found) if self.how == "axis" else found

    def value(self, total):
        """Return one number for all clients."""
        return super().value(total).mean() if self.how == "value" else super().value(total)


@pytest.mark.parametrize("how", ["raises", "number", "axis", "value"])
def test_a_metric_that_breaks_the_contract_is_refused(how):
    with pytest.raises(UserError, match=r"^metric wrong: [^\n]+$"):
        Measures((Accuracy(), Wrong(how=how))).try_out(4, 3)
    Measures((Accuracy(), Wrong())).try_out(4, 3)


def test_what_is_not_a_metric_is_refused():
    unnamed = type("Unnamed", (Metric,), {})
    spaced = type("Spaced", (Metric,), {"name": "top 2"})
    formless = type("Formless", (Metric,), {"name": "formless", "form": "tensor"})
    for kind in (3, int, unnamed, spaced, formless):
        with pytest.raises(UserError):
            check_metric(kind)
    check_metric(TopK)


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(UserError, match="did you mean 'macro_f1'"):
        metric_class("macro-f1")


def test_values_without_a_number_are_null():
    assert to_plain(torch.tensor([0.5, float("nan")])) == [0.5, None]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(2, 5), st.integers(1, 3))
def test_what_samples_give_is_possible(seed, samples, classes, clients):
    """Of every client, and of their sum."""
    logits, labels = predictions(seed, samples, classes)
    parts = cut(samples, seed, clients)
    measures = Measures((Accuracy(), *(metric() for metric in METRICS.values())))
    totals = {
        name: total(group[0], logits, labels, parts) for name, group in measures.groups.items()
    }
    measures.check(totals)
    measures.check(trees.share(trees.sum_clients(totals)))


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("spoil", [lambda leaf: leaf - 10**6, lambda leaf: leaf + 10**6])
def test_what_no_samples_give_is_named(name, spoil):
    """Each statistic for itself, too small or too large."""
    logits, labels = predictions(3, 20, 3)
    other = metric_class("log_loss" if name == "accuracy" else name)
    measures = Measures((Accuracy(), other()))
    parts = cut(20, 3, 2)
    honest = {
        group: total(metrics[0], logits, labels, parts)
        for group, metrics in measures.groups.items()
    }
    for leaf in honest[name]:
        lie = honest | {name: honest[name] | {leaf: spoil(honest[name][leaf])}}
        with pytest.raises(UserError, match=r"^its statistics of \w+ are impossible$"):
            measures.check(lie)
    measures.check(honest)


def test_a_metric_without_rules_must_be_finite():
    class Sum(Metric):
        name = "sum"

        def value(self, total):
            return total["sum"]

    samples = torch.tensor([3, 3, 3])
    found = Sum().is_possible({"sum": torch.tensor([1e9, torch.inf, torch.nan])}, samples)
    assert found.tolist() == [True, False, False]
