"""`fedfm keys`, `fedfm serve` and `fedfm join`: alone, and together as processes."""

import errno
import json
import logging
import os
import socket
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedfm.config import load_config, parse
from fedfm.core.errors import UserError
from fedfm.deploy.client import worker as client_worker
from fedfm.deploy.client.join_preparation import data_section
from fedfm.deploy.client.node import Node
from fedfm.deploy.client.site import load_site
from fedfm.deploy.keys import folders as keys_module
from fedfm.deploy.keys.folders import make_keys
from fedfm.deploy.programs.addresses import Address, free_address
from fedfm.deploy.programs.processes import FlowerError, lock_folder
from fedfm.deploy.server import serve as programs
from fedfm.deploy.server.serve import Running, Serving
from tests.cli.tools import Command, sets
from tests.folders import assert_private

# ---- without Flower's programs


def test_the_keys_are_explained(command: Command):
    answer = command("keys", "my keys", "--server", "fl.example.org", "--client", "a")
    assert answer.code == 0
    assert "scp -r 'my keys/server' fl.example.org:keys" in answer.out
    assert "fedfm serve CONFIG --host fl.example.org --port 9092 --keys keys" in answer.out
    assert "--superlink fl.example.org:9092 --name a --data DATA --keys keys" in answer.out
    assert "In production" in answer.out
    assert command("keys", "my keys", "--server", "x", "--client", "a").code == 2


SERVE = ("serve", "digits", "--out", "out")
PRIVATE = sets(
    *("privacy.noise=1.0", "deployment.evaluate=server"),
    *("deployment.mean=[0.3]", "deployment.std=[0.4]"),
)
SECURE = sets("deployment.secure=true", f"deployment.classes={[*'0123456789']}")
JOIN = ("join", "digits", "--out", "out", "--name", "a", "--data", "share:0/10")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*SERVE, "--host", "0.0.0.0"), "without --keys anybody"),
        ((*SERVE, "--keys", "nowhere"), "not there: ca.pem, server.pem, server.key"),
        ((*SERVE, "--keys", "x", "--insecure"), "not both"),
        ((*SERVE, "--set", "round=1"), "did you mean 'training.rounds'"),
        ((*SERVE, *sets("model.name=mpl")), "'mpl': did you mean 'mlp'"),
        ((*SERVE, *sets("model.hiden=[3]")), "'hiden'"),
        ((*SERVE, *sets("data.name=cvs")), "'cvs': did you mean 'csv'"),
        ((*SERVE, *sets("deployment.classes=['a', 'a']")), "['a', 'a']"),
        (
            (*SERVE, *sets("deployment.evaluate=server", "data.name=csv", "data.path=nope.csv")),
            "nope.csv",
        ),
        ((*SERVE, "--set", "privacy.noise=1.0"), "evaluate = 'server'"),
        ((*SERVE, *sets("privacy.noise=1.0", "deployment.evaluate=server")), "mean and std"),
        ((*SERVE, *PRIVATE, "--set", "method=fednova"), "fednova"),
        ((*SERVE, *PRIVATE, "--set", "fedfm.anchors=uniform"), "'weighted'"),
        ((*SERVE, *PRIVATE, "--set", "deployment.minimum=11"), "rounds have 10"),
        ((*SERVE, *SECURE, "--set", "deployment.threshold=3"), "the 10 clients"),
        ((*SERVE, *SECURE, "--set", "deployment.threshold=11"), "threshold is 11"),
        ((*JOIN, "--superlink", "192.0.2.7:9092"), "without --keys anybody"),
        ((*JOIN, "--superlink", "127.0.0.1"), "not HOST:PORT"),
        ((*JOIN, "--superlink", "127.0.0.1:1", "--keys", "nowhere"), "not there: ca.pem, a.key"),
        ((*JOIN[:4], "--superlink", "127.0.0.1:1"), "--name and --data"),
        ((*JOIN, "--superlink", "127.0.0.1:1", "--site", "s.toml"), "--site has them"),
        ((*JOIN[:4], "--superlink", "127.0.0.1:1", "--site", "s.toml"), "--site has them"),
        ((*JOIN[:2], "--superlink", "127.0.0.1:1", "--site", "s.toml"), "no site file"),
    ],
)
@pytest.mark.usefixtures("inline")
def test_mistakes(command: Command, arguments, said):
    answer = command(*arguments)
    assert answer.code == 2
    assert said in " ".join(answer.err.split())


def test_a_private_federation_without_an_accountant_does_not_begin(
    command: Command,
    monkeypatch,
):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    answer = command(*SERVE, *PRIVATE)
    assert answer.code == 2
    assert "pip install '.[privacy]'" in answer.err


@pytest.mark.usefixtures("inline")
def test_a_model_that_cannot_take_the_data_is_refused_by_the_client(
    command: Command,
    tmp_path,
):
    (tmp_path / "patients.csv").write_text("age,label\n" + "40,ill\n50,well\n" * 10)
    answer = command(*JOIN[:-1], "patients.csv", "--superlink", "127.0.0.1:1")
    assert answer.code == 2
    assert "use the model 'mlp'" in answer.err


@pytest.mark.usefixtures("inline")
def test_a_client_with_too_few_samples_is_refused_before_it_connects(command: Command, tmp_path):
    (tmp_path / "patients.csv").write_text("age,label\n" + "40,ill\n50,well\n" * 2)
    answer = command(
        *JOIN[:-1], "patients.csv", "--superlink", "127.0.0.1:1", *sets("model.name=mlp")
    )
    assert answer.code == 2
    assert "2 training samples are too few to take part" in answer.err


@pytest.mark.usefixtures("inline")
def test_a_client_with_a_batch_of_one_is_refused_before_it_connects(command: Command, tmp_path):
    (tmp_path / "patients.csv").write_text("age,label\n" + "40,ill\n50,well\n" * 6 + "45,ill\n")
    last = sets("model={name='mlp', norm='batch'}", "protocol={keep_last=true, batch_size=8}")
    answer = command(*JOIN[:-1], "patients.csv", "--superlink", "127.0.0.1:1", *last)
    assert answer.code == 2
    assert "this client: a batch of one sample" in answer.err
    assert "keep_last=false" in answer.err


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("name", ["../b", "x y"])
def test_a_name_that_is_refused_leaves_nothing_behind(command: Command, tmp_path, name):
    before = sorted(tmp_path.rglob("*"))
    join = ("join", "digits", "--name", name, "--data", "share:0/10")
    answer = command(*join, "--superlink", "127.0.0.1:1")
    assert answer.code == 2
    assert sorted(tmp_path.rglob("*")) == before


def test_a_port_in_use(command: Command):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        answer = command(*SERVE, "--port", taken.getsockname()[1])
    assert answer.code == 2
    assert "choose another --port" in answer.err


def test_a_port_for_metrics_in_use(command: Command, tmp_path):
    """It is found before the run's folder is made: the corrected command can begin."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        answer = command(*SERVE, "--metrics", f"127.0.0.1:{taken.getsockname()[1]}")
    assert answer.code == 2
    assert "another port, or an address of this machine, for --metrics" in answer.err
    assert not (tmp_path / "out").exists()


def test_what_data_can_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    for name in ("table.csv", "images.tar"):
        (tmp_path / name).touch()
    table, images = str(tmp_path / "table.csv"), str(tmp_path / "images")
    here = str(tmp_path)
    assert data_section("share:1/3", None, None) == {"source": "share", "share": 1, "of": 3}
    assert data_section("table.csv", "y", None) == {"source": "csv", "path": table, "label": "y"}
    assert data_section("images", None, 32) == {"source": "folder", "path": images, "size": 32}
    assert data_section("images.tar", None, None)["source"] == "folder"
    entry = {"source": "python", "entry": "my.data:load", "path": here}
    assert data_section("my.data:load", None, None) == entry
    with pytest.raises(UserError, match=r"missing\.csv"):
        data_section("missing.csv", None, None)


# ---- the server, without clients


@pytest.fixture
def served(monkeypatch) -> list[Serving]:
    """What `fedfm serve` would run."""
    servings: list[Serving] = []
    monkeypatch.setattr(programs, "serve", lambda serving, services: servings.append(serving))
    return servings


def test_the_server_is_told_what_to_run(command: Command, served, tmp_path):
    answer = command(*SERVE, *sets("seed=5"), "--port", 9999, "--resume")
    assert answer.code == 0, answer.err
    (serving,) = served
    assert serving.config == load_config("digits", ["seed=5"])
    assert (serving.address, serving.resume) == (Address("127.0.0.1", 9999), True)
    assert serving.flower == tmp_path / "out" / "flower"
    assert not serving.uses_proxy
    assert "finished; files in out" in answer.out


def test_two_clients_cannot_hide_from_each_other(command: Command, served):
    for clients, warned in ((2, True), (3, False)):
        answer = command(*SERVE, *SECURE, *sets(f"clients={clients}"))
        assert answer.code == 0, answer.err
        assert ("each can subtract its own part" in answer.err) == warned


def test_noise_for_fewer_clients_than_there_are(command: Command, served):
    for clients, share, warned in (
        (10, 1.0, True),
        (9, 1.0, True),
        (8, 1.0, False),
        (80, 0.1, False),
    ):
        size = sets("deployment.minimum=4", f"clients={clients}", f"participation={share}")
        answer = command(*SERVE, *PRIVATE, *size)
        assert answer.code == 0, answer.err
        assert ("as if only 4 took part" in answer.err) == warned


def test_a_superlink_that_does_not_start_ends_the_command(command: Command, monkeypatch, tmp_path):
    broken = ["sh", "-c", "echo out of memory; exit 3"]
    monkeypatch.setattr(programs, "superlink_command", lambda *given: broken)
    answer = command(*SERVE, "--port", free_address().port)
    assert answer.code == 1
    assert "out of memory" in answer.err


def test_how_a_run_ends(command: Command, monkeypatch, tmp_path):
    """With a superlink: services work beside the run, and a failed run can be resumed."""
    seen: list[object] = []

    def run(grid, config, out) -> None:
        seen.append((out, config, list(grid.get_nodes())))
        if len(seen) == 2:
            raise UserError("too few clients")

    @contextmanager
    def service(running: Running) -> Iterator[None]:
        seen.append(running.control.list_nodes())
        try:
            yield
        finally:
            seen.append("end of the service")

    monkeypatch.setattr(programs, "run_federation", run)
    serving = Serving(load_config("digits"), tmp_path / "out", free_address())
    with pytest.raises(FlowerError, match="the run failed: too few clients"):
        programs.serve(serving, [service])
    assert seen == [[], (serving.out, serving.config, []), "end of the service"]
    assert "already holds a run: resume it" in command(*SERVE).err
    app = tomllib.loads((tmp_path / "out" / "app" / "pyproject.toml").read_text())["tool"]["flwr"]
    assert parse(json.loads(app["app"]["config"]["config"])) == serving.config
    assert app["app"]["components"]["serverapp"] == "fedfm.deploy.server_app:app"
    assert_private(tmp_path / "out")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_explained(command: Command, monkeypatch, number):
    """It is no mistake in the command: a service manager may try again, and the run goes on."""

    def run(grid, config, out) -> None:
        raise OSError(number, os.strerror(number), str(out / "checkpoint" / "x"))

    monkeypatch.setattr(programs, "run_federation", run)
    answer = command(*SERVE, "--port", free_address().port)
    assert answer.code == 1
    (line,) = [line for line in answer.err.splitlines() if line.startswith("fedfm:")]
    assert "the disk is full (out/checkpoint/x): make room" in line
    assert "--resume" in line
    assert "already holds a run" in command(*SERVE).err


def test_a_certificate_that_the_server_itself_does_not_trust(command: Command, monkeypatch):
    monkeypatch.setattr(keys_module, "ALWAYS", ())
    make_keys(Path("keys"), ["fl.example.org"], ["a"], 1)
    answer = command(*SERVE, "--port", free_address().port, "--keys", "keys/server")
    assert answer.code == 1
    assert "Is server.pem also valid for 127.0.0.1?" in answer.err


# ---- the client, without a server


@pytest.fixture
def inline(monkeypatch) -> None:
    """The worker works in this process, and the node finds no server."""
    logger = logging.getLogger("fedfm")
    before = set(logger.handlers)

    class Worker(client_worker.Worker):
        def close(self) -> None:
            for handler in set(logger.handlers) - before:
                logger.removeHandler(handler)
                handler.close()

    def run(node: Node) -> None:
        raise FlowerError("no route")

    monkeypatch.setattr("fedfm.deploy.client.join.WorkerProcess", Worker)
    monkeypatch.setattr(Node, "run", run)


@pytest.mark.usefixtures("inline")
def test_a_client_that_is_at_work_keeps_its_data(command: Command, tmp_path):
    """Whoever joins once more under its name, with other data, is refused and changes nothing."""
    join = (*JOIN[:-1], "share:0/10", "--superlink", "127.0.0.1:1")
    assert command(*join).code == 1
    files = {path: path.read_bytes() for path in (tmp_path / "out").glob("*.toml")}
    assert len(files) == 2
    with lock_folder(tmp_path / "out" / "flower"):
        answer = command(*JOIN[:-1], "share:1/10", "--superlink", "127.0.0.1:1")
    assert answer.code == 2
    assert "another command is at work in" in answer.err
    assert {path: path.read_bytes() for path in files} == files
    assert_private(tmp_path / "out")


@pytest.mark.usefixtures("inline")
def test_what_a_client_is_told(command: Command, tmp_path):
    answer = command(*JOIN, "--superlink", "127.0.0.1:1")
    assert answer.code == 1
    assert "no route" in answer.err
    assert "joining 127.0.0.1:1 as 'a'" in answer.out
    assert "joining" in (tmp_path / "out" / "flower" / "client.log").read_text()
    site = load_site(tmp_path / "out" / "site.toml")
    assert (site.name, site.out) == ("a", tmp_path / "out")
    assert load_config(str(site.config)) == load_config("digits")


@pytest.mark.usefixtures("inline")
def test_a_site_file_must_expect_this_config(command: Command, tmp_path):
    data = '\n[data]\nsource = "share"\nshare = 0\nof = 10\n'
    (tmp_path / "s.toml").write_text('name = "a"' + data)
    join = ("join", "digits", "--superlink", "127.0.0.1:1", "--site", "s.toml")
    assert "add `config" in command(*join).err
    (tmp_path / "s.toml").write_text('name = "a"\nconfig = "cifar10"' + data)
    assert "expects another config" in command(*join).err
    (tmp_path / "s.toml").write_text('name = "a"\nconfig = "digits"' + data)
    said = command(*join, *sets("rounds=7")).err
    assert "training.rounds (s.toml 30, here 7)" in said
    assert command(*join, *sets("threads=1")).code == 1
