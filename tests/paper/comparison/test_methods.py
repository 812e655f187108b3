"""Every method of the comparison trains under its protocol, alike in both executors."""

import math

import pytest
import torch

from fedfm.data.dataset import Dataset
from fedfm.grid.recipe import Cell, expand_cells
from fedfm.paper.catalogue import load_recipe
from fedfm.run.prepare import build_model, load_data
from fedfm.run.records import Result
from fedfm.run.runner import run_configs
from tests.paper.comparison.tiny import HELD_OUT, TINY

RECIPES = ("field-published", "field", "field-anchors", "field-matching")
FORMS = ("FedLC, strength = 1, all classes",)
"""What field-tune has beside the values of settings."""


def cells() -> dict[str, Cell]:
    """The cells under Dirichlet 0.1, by recipe and method."""
    found = {}
    for name in (*RECIPES, "field-tune"):
        overrides = TINY if name == "field-published" else HELD_OUT
        for cell in expand_cells(load_recipe(name), False, overrides):
            label = " ".join([name, *list(cell.labels.values())[2:]])
            wanted = name != "field-tune" or cell.labels["setting"] in FORMS
            if cell.labels["skew"] == "Dirichlet 0.1" and wanted and "alone" not in label:
                found[label] = cell
    return found


CELLS = cells()


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_data(next(iter(CELLS.values())).resolved)


def train(cell: Cell, digits: Dataset, executor: str) -> Result:
    config = cell.resolved.model_copy(update={"executor": executor, "device": "cpu"})
    network = build_model(config, digits).double()
    return run_configs([config], data=digits, networks=[network])[0]


@pytest.mark.parametrize("label", CELLS)
def test_a_method_trains_under_the_protocol_in_both_executors(label, digits):
    config = CELLS[label].resolved
    assert (config.model.options["norm"], config.model.options["groups"]) == ("group", 2)
    assert (config.training.clip_norm, config.training.lr_schedule) == (10.0, "exponential")
    assert config.partition.refill
    loop, stacked = (train(CELLS[label], digits, name) for name in ("loop", "stacked"))
    for one, other in zip(loop.rounds, stacked.rounds, strict=True):
        assert one.train_loss is not None
        assert math.isfinite(one.train_loss)
        assert one.failed == other.failed == 0
        assert one.test_accuracy == other.test_accuracy
        assert one.val_accuracy == other.val_accuracy
    for name, leaf in loop.best.model.params.items():
        assert torch.isfinite(leaf).all(), name
        torch.testing.assert_close(leaf, stacked.best.model.params[name], rtol=1e-8, atol=1e-10)


def test_every_method_of_the_comparison_is_among_them():
    assert len(CELLS) == 8 + 11 + 6 + 9 + len(FORMS)
