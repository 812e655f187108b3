"""Executors on samples that are dicts, tuples and token ids."""

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfm import models
from fedfm.core.trees import tree_map
from fedfm.data import Dataset, Split
from fedfm.engine.choice import make_executor
from fedfm.engine.device_data import StagedData
from fedfm.engine.executors import LoopExecutor
from fedfm.engine.networks import copy_model
from fedfm.methods import FedAvg, FedFM, Moon
from fedfm.rounds.round import open_round
from fedfm.verify import fixtures

SAMPLES, CLASSES = sum(fixtures.SIZES), fixtures.CLASSES


class Gated(nn.Module):
    """Linear layers on a float input, gated by flags, which can be stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, CLASSES)

    def forward(
        self, x: Tensor, kept: Tensor, *, scale: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        x = torch.where(kept, x, 0.0)
        features = torch.tanh(self.inner(x if scale is None else x * scale.unsqueeze(-1)))
        return features, self.head(features)


class Words(nn.Module):
    """The mean of embeddings, with constants that a state dict leaves out, and dropout."""

    positions: Tensor

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(12, 8), nn.Embedding(5, 8)
        self.register_buffer("positions", torch.arange(5), persistent=False)
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        assert ids.dtype == torch.int64
        features = (
            self.dropout(self.tokens(ids) + self.places(self.positions.clone())).tanh().mean(1)
        )
        return features, self.head(features)


def make_data(kind: str) -> Dataset:
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (SAMPLES,), generator=rng)
    x = torch.randn(SAMPLES, 6, generator=rng) + labels.unsqueeze(1)
    kept = torch.rand(SAMPLES, 6, generator=rng) < 0.7
    scale = torch.rand(SAMPLES, generator=rng) + 0.5
    ids = torch.randint(12, (SAMPLES, 5), generator=rng)
    inputs = {"dict": {"x": x, "kept": kept, "scale": scale}, "tuple": (x, kept), "ids": ids}[kind]
    split = Split(inputs, labels)
    return Dataset("made", split, split, tuple("abcde"), keep_order=True)


def make_network(kind: str, **options: float) -> nn.Module:
    torch.manual_seed(1)
    return Words(**options) if kind == "ids" else Gated()


def after(executor, kind: str, *pieces, rounds: int = 3, **options: float):
    module, data = make_network(kind, **options), make_data(kind)
    if executor != "loop":
        device_data = fixtures.make_device_data(data, module)
        executor = make_executor(executor, module, device_data)
    fed = fixtures.make_federation(module, data, *pieces, executor=executor)
    return fixtures.play_rounds(fixtures.start_steady(fed), fed, rounds).model


def assert_close(one, other) -> None:
    tree_map(torch.testing.assert_close, one._asdict(), other._asdict())


PIECES = [FedAvg(), FedFM(strength=1.0, start_round=1), Moon(mu=0.5)]


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: piece.name)
@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_stacked_clients_learn_what_clients_in_a_loop_learn(kind, piece):
    assert_close(after("stacked", kind, piece), after("loop", kind, piece))


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: piece.name)
def test_ids_are_trained_together_with_the_same_dropout_as_in_a_loop(piece, caplog):
    with caplog.at_level(logging.WARNING):
        ends = [after(name, "ids", piece, dropout=0.3) for name in ("threads", "stacked", "loop")]
    assert_close(ends[0], ends[2])
    assert_close(ends[1], ends[2])
    assert not caplog.records


@pytest.mark.parametrize("kind", ["dict", "tuple", "ids"])
def test_a_client_takes_the_steps_of_a_plain_loop(kind):
    module, data = make_network(kind), make_data(kind)
    fed = fixtures.make_federation(module, data, FedAvg(), executor="loop")
    result = fed.executor.train(open_round(fixtures.start(fed), fed).job)
    optimizer = torch.optim.SGD(module.parameters(), 0.05, 0.9, weight_decay=1e-3)
    for batch in fed.plan(0, 0).batches:
        inputs, labels = data.train.inputs, data.train.labels[batch]
        if kind == "dict":
            logits = module(**{name: leaf[batch] for name, leaf in inputs.items()})[1]
        elif kind == "tuple":
            logits = module(*(leaf[batch] for leaf in inputs))[1]
        else:
            logits = module(inputs[batch])[1]
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(logits, labels))
        optimizer.step()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(result.model.params[name][0], parameter.detach())


def test_dropout_on_ids_draws_the_same_again():
    first = after("loop", "ids", FedAvg(), dropout=0.5)
    torch.manual_seed(99)
    assert_close(after("loop", "ids", FedAvg(), dropout=0.5), first)
    without = after("loop", "ids", FedAvg())
    assert not torch.equal(without.params["head.weight"], first.params["head.weight"])


@pytest.mark.parametrize("kind", ["dict", "ids"])
def test_evaluation_in_parts_counts_every_sample_once(kind):
    module, data = make_network(kind), make_data(kind)
    executor = LoopExecutor(module, fixtures.make_device_data(data, module))
    model = copy_model(module).map(lambda tree: tree_map(lambda leaf: leaf.unsqueeze(0), tree))

    def sum_logits(batch):
        return {"sum": (batch.logits * batch.mask.unsqueeze(-1)).sum(1)}

    whole = executor.measure(model, fixtures.split_samples(), sum_logits)
    executor.samples_at_once = 3
    tree_map(
        torch.testing.assert_close,
        executor.measure(model, fixtures.split_samples(), sum_logits),
        whole,
    )


def test_staged_trees_fetch_the_same_samples():
    module, data = make_network("dict"), make_data("dict")
    source = fixtures.make_device_data(data, module)
    fed = fixtures.make_federation(module, data, FedAvg())
    stage, plan = StagedData(source), fed.plan(0, 2)
    (staged,) = stage.fill([plan])
    there, here = stage.data.fetch(staged.indices)[0], source.fetch(plan.indices)[0]
    assert here["kept"].dtype == torch.bool
    assert all(torch.equal(there[name], here[name]) for name in here)
    assert len(stage.data.labels) < SAMPLES


def test_ids_are_fetched_as_they_are_and_count_as_vectors():
    data = fixtures.make_device_data(make_data("ids"), make_network("ids").double())
    ids, _ = data.fetch(torch.tensor([[3, 1], [0, 2]]))
    assert torch.equal(ids, data.inputs[[3, 1, 0, 2]].view(2, 2, 5))
    assert data.sample_size == 5 * 64
    floats = fixtures.make_device_data(make_data("dict"), Gated().double())
    assert floats.fetch(torch.tensor([0]))[0]["x"].dtype == torch.float64
    assert floats.sample_size == 6 + 6 + 1


def test_constants_are_not_sent_and_no_client_changes_them():
    class Counting(Words):
        def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
            outputs = super().forward(ids)
            self.positions.copy_(self.positions.roll(1))  # as no network should
            return outputs

    module, data = Counting(), make_data("ids")
    assert copy_model(module).buffers == {}
    fed = fixtures.make_federation(module, data, FedAvg(), executor="loop")
    job = open_round(fixtures.start(fed), fed).job
    together = fed.executor.train(job).model.params
    alone = fed.executor.train(job.rows(slice(3, 4))).model.params
    assert all(torch.equal(leaf[3], alone[name][0]) for name, leaf in together.items())


def test_a_trained_model_loads_into_the_network_it_came_from():
    module = make_network("ids")
    end = after("loop", "ids", FedAvg())
    module.load_state_dict(end.params | end.buffers)
    assert models.feature_dim(module, make_data("ids").example) == 8
