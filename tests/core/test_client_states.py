"""What clients keep: the same in memory and on disk, and part of the checkpoint."""

from dataclasses import replace

import pytest
import torch

from fedfm import Partition, Training, UserError, compose, models, simulate
from fedfm.config import make_config
from fedfm.core.checkpoint import Damaged
from fedfm.core.client_states import InMemory, OnDisk
from fedfm.engine.networks import copy_model, describe_task
from fedfm.methods import FedFMLite, FedProx, Moon, Scaffold
from tests.run.test_simulation import blobs

SHORT = Training(clients=8, rounds=6, epochs=1, batch_size=8, lr=0.05, participation=0.5)
STATEFUL = [Scaffold(), Moon(), FedFMLite(strength=1.0, start_round=0, models_every=3)]
IDS = [piece.name for piece in STATEFUL]


def network():
    torch.manual_seed(0)
    return models.build("mlp", shape=(6,), classes=4, hidden=[8], norm="batch")


def run(piece, where, **options):
    return simulate(
        network(), blobs(), piece, training=SHORT, partition=Partition("iid"), client_states=where,
        executor="stacked", **options,
    )  # fmt: skip


def same(ours, theirs) -> bool:
    return all(torch.equal(value, theirs.best.model.params[name])
               for name, value in ours.best.model.params.items())  # fmt: skip


@pytest.mark.parametrize("piece", STATEFUL, ids=IDS)
def test_memory_and_disk_give_the_same_run(piece, tmp_path):
    memory = run(piece, "memory")
    assert same(memory, run(piece, "disk"))
    assert same(memory, run(piece, "disk", out=tmp_path / "run"))


@pytest.mark.parametrize("piece", STATEFUL, ids=IDS)
@pytest.mark.parametrize("stop", range(1, 6))
def test_a_run_with_states_on_disk_resumes_at_any_round(piece, stop, tmp_path):
    class Stop(Exception):
        pass

    def watch(record):
        if record.round == stop:
            raise Stop

    with pytest.raises(Stop):
        run(piece, "disk", out=tmp_path / "run", watch=watch)
    (tmp_path / "run/clients").mkdir(exist_ok=True)
    (tmp_path / "run/clients/client-000001-999999.safetensors").write_bytes(b"left by a crash")
    resumed = run(piece, "disk", out=tmp_path / "run", resume=True)
    assert same(run(piece, "memory"), resumed)


def test_each_client_has_one_file_after_a_round(tmp_path):
    run(Scaffold(), "disk", out=tmp_path / "run")
    files = [path.name for path in (tmp_path / "run/clients").iterdir()]
    assert len(files) == len({name.split("-")[1] for name in files}) <= 8


def test_a_store_is_a_value(tmp_path):
    for empty in (InMemory(), OnDisk(tmp_path)):
        one = empty.update({3: {"a": torch.ones(2)}}, round=1)
        two = one.update({3: {"a": torch.zeros(2)}, 5: {"a": torch.ones(1)}}, round=2)
        assert list(empty) == []
        assert one.get(3)["a"].tolist() == [1.0, 1.0]
        assert two.get(3)["a"].tolist() == [0.0, 0.0]
        assert sorted(two) == [3, 5]
        assert two.get(4) == {}
        assert list(two.clear()) == []


def test_the_disk_is_chosen_where_memory_would_not_do():
    task = describe_task(network(), copy_model(network()), classes=1, features=1)
    config = make_config(Scaffold(), partition=Partition(), training=SHORT, seed=0, executor="loop")
    assert not config.keeps_states_on_disk(task)
    many = config.model_copy(update={"training": replace(SHORT, clients=10**9)})
    assert many.keeps_states_on_disk(task)
    assert config.model_copy(update={"client_states": "disk"}).keeps_states_on_disk(task)
    with pytest.raises(UserError, match=r"client_states.*'auto'.*'memory'.*'disk'"):
        make_config(Scaffold(), client_states="tape")


def test_a_piece_of_ones_own_that_keeps_something_refuses_rare_exchanges():
    """What clients keep is forgotten when models are shared."""

    class Keeping(FedProx):
        name = "keeping"

        def client_state(self, task):
            return {"visits": torch.zeros(())}

    with pytest.raises(UserError, match=r"^keeping\b.*\b2\b"):
        compose([Keeping(), FedFMLite(models_every=2)])


def test_a_file_that_is_lost_or_spoilt_is_named(tmp_path):
    states = OnDisk(tmp_path).update({0: {"x": torch.ones(2)}, 1: {"x": torch.ones(2)}}, 1)
    first, second = sorted(tmp_path.iterdir())
    first.unlink()
    second.write_bytes(b"no tensors")
    for client, file in enumerate((first, second)):
        with pytest.raises(Damaged, match=file.name):
            states.get(client)


@pytest.mark.parametrize("piece", ["scaffold", "feddyn", "fednova", "moon"])
def test_pieces_that_need_every_model_refuse_rare_exchanges(piece):
    from fedfm.methods import PIECES

    with pytest.raises(UserError, match=rf"^{piece}\b.*\b2\b"):
        compose([PIECES[piece](), FedFMLite(models_every=2)])
    assert compose([PIECES[piece](), FedFMLite()]).share_every == 1
