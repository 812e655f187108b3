"""The server is killed at any message and started again: the result is the undisturbed run's."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fedfm.core.checkpoint import Damaged
from fedfm.core.errors import UserError
from tests.deploy.conftest import NODES, Fault, Federation, assert_same, facts_of, silent


@dataclass
class Photographer:
    """Copies what lies on all disks before a question goes out, and after clients answered it.

    That is what a SIGKILL leaves: of the answers to this question the server knows none yet.
    """

    source: Path
    album: Path
    after: Sequence[int] = NODES
    """The nodes after whose answers a picture is taken."""
    pictures: list[Path] = field(default_factory=list)

    def __call__(self, message, answer):
        node, kind = message.metadata.dst_node_id, facts_of(message)["kind"]
        if node == NODES[0]:
            self.take(f"before-{kind}")
        reply = answer()
        if node in self.after:
            self.take(f"after-{kind}")
        return reply

    def take(self, name):
        place = self.album / f"{len(self.pictures):03d}-{name}"
        self.pictures.append(Path(shutil.copytree(self.source, place)))


def assert_goes_on(run: Federation, photographer: Photographer) -> None:
    """From every picture, with clients started anew as well, to the same result."""
    wanted, state = run.run(photographer), run.state
    for picture in photographer.pictures:
        again = Federation(picture, run.config)
        result = again.run(resume=True)
        assert_same(again.state, state)
        for ours, theirs in zip(result.rounds, wanted.rounds, strict=True):
            assert ours.as_dict() | {"seconds": 0} == theirs.as_dict() | {"seconds": 0}, picture
        assert result.best.round == wanted.best.round


@pytest.mark.parametrize("method", ["fedfm", "scaffold", "moon"])
def test_the_server_killed_at_any_message(federation, tmp_path, method):
    run = federation(method, "training.rounds=2", clients=2)
    assert_goes_on(run, Photographer(run.folder, tmp_path / "album"))


def test_the_log_says_who_is_there_and_from_where_it_goes_on(federation, tmp_path, caplog):
    run = federation("fedavg", "training.rounds=2")
    photographer = Photographer(run.folder, tmp_path / "album")
    with caplog.at_level("INFO"):
        run.run(photographer)
    assert "3 clients, 4 classes: kind0, kind1, kind2, kind3" in caplog.text
    assert "continuing after round" not in caplog.text
    with caplog.at_level("INFO"):
        Federation(photographer.pictures[-1], run.config).run(resume=True)
    assert "continuing after round 2" in caplog.text


def test_the_server_killed_while_models_are_shared_rarely(federation, tmp_path):
    every = ("fedfm-lite.models_every=2", "training.rounds=4")
    run = federation("fedfm-lite", *every, clients=2)
    assert_goes_on(run, Photographer(run.folder, tmp_path / "album"))


def test_the_server_killed_in_a_secure_sum(federation, tmp_path):
    run = federation("fedavg", "deployment.secure=true", "training.rounds=2", clients=2)
    assert_goes_on(run, Photographer(run.folder, tmp_path / "album", after=()))


def test_a_client_absent_when_the_server_comes_back(federation):
    """It is greeted again before the next round and goes on with its own state."""
    run = federation("scaffold", "training.rounds=4")

    class Killed(Exception):
        pass

    def killed(message, answer):
        raise Killed

    with pytest.raises(Killed):
        run.run(Fault("train", killed, client=2, at=(2,)))
    run.run(Fault("hello", silent, at=(0, 1)), resume=True)
    wanted = run.simulated_without(lambda round, kind, client: (round, client) == (2, 1))
    assert_same(run.state, wanted, rtol=1e-5, atol=1e-6)


def test_a_restarted_server_does_not_wait_for_who_had_gone(federation, caplog):
    """A client that left for good must not hold up the others whenever the server comes back."""
    run = federation("fedavg", "training.rounds=4")

    def leave(message, answer):
        reply = answer()
        del run.grid.contexts[NODES[2]]
        return reply

    class Killed(Exception):
        pass

    def killed(message, answer):
        raise Killed

    leaving = Fault("train", leave, client=2)
    killing = Fault("train", killed, client=0, at=(3,))

    def tamper(message, answer):
        fault = leaving if message.metadata.dst_node_id == NODES[2] else killing
        return fault(message, answer)

    with caplog.at_level("INFO"), pytest.raises(Killed):
        run.run(tamper)
    assert [line for line in caplog.messages if "waiting" in line] == ["waiting for 3 clients"]
    caplog.clear()
    with caplog.at_level("INFO"):
        run.run(resume=True)
    assert [line for line in caplog.messages if "waiting" in line] == ["waiting for 2 clients"]
    assert run.state.round == 4


def test_the_server_killed_while_it_delivers_the_model(federation, caplog):
    """Those who have it are gone when it comes back; the others get it."""
    run = federation("fedavg", "training.rounds=1")
    result = run.run(Fault("deliver", silent))
    assert [(run.out(client) / "model.safetensors").exists() for client in range(3)] == [
        True,
        False,
        True,
    ]
    for client in (0, 2):
        del run.grid.contexts[NODES[client]]
    caplog.clear()
    with caplog.at_level("INFO"):
        assert run.run(resume=True).test_accuracy == result.test_accuracy
    assert "waiting for 1 client\n" in caplog.text
    assert (run.out(1) / "model.safetensors").exists()


def test_a_run_is_not_begun_that_would_lose_its_last_training(federation):
    with pytest.raises(UserError, match=r"models_every\b.*\b2\b.*\b3\b"):
        federation("fedfm-lite", "fedfm-lite.models_every=2", "training.rounds=3")


def test_damaged_members_are_told(federation):
    run = federation("fedavg", "training.rounds=1")
    run.run()
    (run.folder / "server/members.json").write_text("{}")
    with pytest.raises(Damaged, match=r"members\.json"):
        run.run(resume=True)


def test_a_client_that_comes_back_with_other_data_is_told(federation, caplog):
    fed = federation()
    fed.run()
    fed.run(resume=True)
    assert "data have changed since this client joined" not in caplog.text
    site = fed.folder / "c0" / "site.toml"
    site.write_text(site.read_text().replace("share = 0", "share = 1"))
    fed.run(resume=True)
    assert caplog.text.count("the data have changed since this client joined the federation") == 1
