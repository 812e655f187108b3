"""Runs on token ids and on samples that are dicts and tuples, from beginning to end."""

import random

import pytest
import torch
from torch import Tensor, nn

from fedfm import FedAvg, FedFM, Partition, Training, models, simulate
from fedfm.config import load_config
from fedfm.core.errors import UserError
from fedfm.data import Dataset, Split
from fedfm.features.feature_space import load_features
from fedfm.run.prepare import load_data
from fedfm.run.runner import run_configs

CONFIG = """
seed = 1
method = "fedavg"
[data]
name = "text"
path = "{0}/train.tsv"
test_path = "{0}/test.tsv"
header = false
text = "1"
label = "2"
length = 8
[model]
name = "transformer"
width = 16
layers = 1
heads = 2
[partition]
kind = "niid1"
beta = 1.0
[training]
clients = 3
rounds = 8
epochs = 3
batch_size = 10
lr = 0.2
momentum = 0.0
"""
WORDS = {"0": ("dull", "weak", "boring"), "1": ("fine", "moving", "funny")}


def write_texts(path, count: int, seed: int) -> None:
    """Write texts of filler words and one or two words that tell the class."""
    rng = random.Random(seed)
    filler = [f"word{i}" for i in range(20)]
    lines = []
    for i in range(count):
        label = "01"[i % 2]
        words = [*rng.choices(filler, k=rng.randint(2, 5)), rng.choice(WORDS[label])]
        rng.shuffle(words)
        lines.append(f"{' '.join(words)}\t{label}\n")
    path.write_text("".join(lines))


@pytest.fixture
def config(tmp_path):
    write_texts(tmp_path / "train.tsv", 240, seed=0)
    write_texts(tmp_path / "test.tsv", 80, seed=1)
    file = tmp_path / "texts.toml"
    file.write_text(CONFIG.format(tmp_path))
    return load_config(str(file))


def test_text_needs_only_a_config(config, tmp_path):
    (result,) = run_configs([config], outs=[tmp_path / "run"])
    assert result.test_accuracy > 0.9
    features, labels = load_features(tmp_path / "run", load_data(config))
    assert (features.shape, labels.shape) == ((80, 16), (80,))


def make_pairs(count: int, seed: int) -> Split:
    """Return ids, a mask and numbers; the numbers tell the class."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    ids = torch.randint(1, 8, (count, 6), generator=rng)
    x = torch.randn(count, 3, generator=rng) + 2 * labels.unsqueeze(1)
    return Split({"ids": ids, "mask": ids > 2, "x": x}, labels)


class Both(nn.Module):
    """A network of ids, their mask and numbers, which returns logits."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(8, 4)
        self.classify = nn.Linear(7, 2)

    def forward(self, ids: Tensor, mask: Tensor, x: Tensor) -> Tensor:
        assert (ids.dtype, mask.dtype, x.dtype) == (torch.int64, torch.bool, torch.float32)
        tokens = (self.tokens(ids) * mask.unsqueeze(-1)).mean(1)
        return self.classify(torch.cat([tokens, x], 1))


def make_data(kind: type = dict, shift: int = 0) -> Dataset:
    def convert(split: Split) -> Split:
        parts = split.inputs | {"ids": split.inputs["ids"] + shift}
        return Split(parts if kind is dict else tuple(parts.values()), split.labels)

    return Dataset("pairs", convert(make_pairs(120, 0)), convert(make_pairs(40, 1)), ("no", "yes"))


FEW = Training(clients=3, rounds=4, epochs=2, batch_size=8, lr=0.1)


@pytest.mark.parametrize("kind", [dict, tuple])
@pytest.mark.parametrize("method", [FedAvg(), FedFM(strength=0.1, start_round=1)])
def test_samples_are_passed_as_keywords_or_positions(kind, method):
    torch.manual_seed(0)
    model = models.WithFeatures(Both(), head="classify")
    dealt = Partition("niid1", beta=1.0)
    result = simulate(model, make_data(kind), method, partition=dealt, training=FEW)
    assert result.test_accuracy > 0.9
    best = result.best.model
    model.load_state_dict(best.params | best.buffers)


@pytest.mark.parametrize(("shift", "ids"), [(3, "4 to 10"), (-2, "-1 to 5")])
def test_ids_that_the_network_lacks_are_refused_before_training(shift, ids, tmp_path):
    model = models.WithFeatures(Both(), head="classify")
    with pytest.raises(UserError, match=f"ids run from {ids}.*outside of its embed") as problem:
        simulate(model, make_data(shift=shift), FedAvg(), training=FEW, out=tmp_path / "run")
    assert "\n" not in str(problem.value)
    assert not (tmp_path / "run").exists()


def test_a_model_for_ids_refuses_data_without_a_vocabulary():
    with pytest.raises(UserError, match="for token ids"):
        simulate("transformer", "digits", FedAvg(), training=FEW)
