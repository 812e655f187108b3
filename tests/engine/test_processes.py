"""Processes exchange facts and add tensors, each time with the same bits everywhere."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedfm.config import Config
from fedfm.core.trees import Tree
from fedfm.engine.processes import ALONE, ProcessGroup, connect
from fedfm.run.prepare import device_of
from tests.processes import run_together

SIZE = 3


def make_tree(rank: int) -> Tree:
    """Numbers of several types and shapes; one of the processes has its branches in other order."""
    rng = torch.Generator().manual_seed(rank)
    tree: Tree = {
        "w": torch.randn(4, 3, generator=rng),
        "nested": {"empty": {}, "count": torch.tensor([rank, 2**40]), "one": torch.tensor(0.1)},
        "nothing": torch.zeros(0),
        "exact": torch.randn(5, generator=rng, dtype=torch.float64),
    }
    return dict(reversed(tree.items())) if rank == 1 else tree


def work() -> dict[str, Any]:
    processes = connect()
    rank = processes.rank
    own = make_tree(rank)
    middle = {} if rank == 1 else own
    return {
        "facts": processes.gather({"rank": rank, "text": "ä" * rank}),
        "sum": processes.add(own),
        "sum without one": processes.add(middle),
        "nothing": processes.add({}),
        "largest": processes.find_largest({"x": torch.tensor([rank, -rank - 5])} if rank else {}),
        "trees": processes.spread({"only": torch.full((rank,), 1.5)} if rank else {}),
        "split": processes.split([torch.arange(5), torch.arange(1), torch.arange(0)]),
    }


def test_three_processes_exchange_facts_and_tensors():
    answers = run_together(SIZE, work)
    trees = [make_tree(rank) for rank in range(SIZE)]
    for rank, answer in enumerate(answers):
        assert answer["facts"] == [{"rank": 0, "text": ""}, {"rank": 1, "text": "ä"},
                                   {"rank": 2, "text": "ää"}]  # fmt: skip
        for name, which in (("sum", trees), ("sum without one", [trees[0], trees[2]])):
            assert_sum(answer[name], which)
            assert_same(answer[name], answers[0][name])
        assert answer["nothing"] == {}
        assert answer["largest"]["x"].tolist() == [2, -6]
        assert [t["only"].tolist() for t in answer["trees"][1:]] == [[1.5], [1.5, 1.5]]
        assert answer["trees"][0] == {}
        assert [*map(len, answer["split"])] == [len(range(rank, 5, 3)), int(rank == 2), 0]
    every = torch.cat([answer["split"][0] for answer in answers])
    assert sorted(every.tolist()) == [0, 1, 2, 3, 4]


def assert_sum(total: Tree, several: list[Tree]) -> None:
    assert total["nested"]["empty"] == {}
    for path in (("w",), ("nested", "count"), ("nested", "one"), ("nothing",), ("exact",)):
        expected = sum(pick(tree, path).double() for tree in several)
        found = pick(total, path)
        assert found.dtype == pick(several[0], path).dtype
        torch.testing.assert_close(found.double(), torch.as_tensor(expected), rtol=1e-6, atol=1e-6)


def assert_same(total: Tree, other: Tree) -> None:
    for name, leaf in total.items():
        assert_same(leaf, other[name]) if isinstance(leaf, dict) else check_bits(leaf, other[name])


def check_bits(value: Tensor, other: Tensor) -> None:
    assert torch.equal(value, other)


def pick(tree: Tree, path: tuple[str, ...]) -> Tensor:
    value: Any = tree
    for name in path:
        value = value[name]
    assert isinstance(value, Tensor)
    return value


def test_a_process_alone_keeps_what_it_has():
    tree = {"x": torch.ones(2)}
    assert connect() is ALONE
    assert ALONE.first
    assert ALONE.add(tree) is tree
    assert ALONE.find_largest(tree) is tree
    assert ALONE.spread(tree) == [tree]
    assert ALONE.gather(3) == [3]


@pytest.mark.parametrize(
    ("places", "own_gpus"),
    [
        ([["a", "gpu 1"], ["a", "gpu 2"]], True),
        ([["a", "gpu 1"], ["b", "gpu 1"]], True),
        ([["a", "gpu 1"], ["a", "gpu 1"]], False),
    ],
)
def test_nccl_is_used_only_if_no_processes_share_a_gpu(monkeypatch, places, own_gpus):
    """NCCL refuses a GPU of two processes; their sums go over the CPU. No GPU is used here."""
    group, gpu = object.__new__(ProcessGroup), torch.device("cuda", 0)
    vars(group).update(size=2, facts="gloo", timeout=None)
    monkeypatch.setattr(group, "gather", lambda mine: places)
    monkeypatch.setattr("fedfm.engine.processes._connect_gpus", lambda timeout: "nccl")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=1))
    group.settle(gpu)
    expected = (gpu, gpu, "nccl") if own_gpus else (gpu, torch.device("cpu"), "gloo")
    assert (group.device, group.transport, group.tensors) == expected


def test_each_process_of_a_machine_has_the_gpu_of_its_number(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert device_of(Config()) == torch.device("cuda")
    variables = {"RANK": 13, "LOCAL_RANK": 5, "WORLD_SIZE": 16, "MASTER_ADDR": 0, "MASTER_PORT": 0}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    assert device_of(Config()) == torch.device("cuda", 1)
    assert device_of(Config(device="cpu")) == torch.device("cpu")
