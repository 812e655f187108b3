"""`fedfm keys`, `fedfm serve` and `fedfm join`, with Flower's programs and with fakes of them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedfm.config import load_config, parse
from fedfm.core.errors import UserError
from fedfm.deploy.client.site import load_site
from fedfm.deploy.programs import processes
from fedfm.deploy.programs.addresses import free_address
from fedfm.deploy.programs.join import data_section
from fedfm.deploy.programs.keys import make_keys
from fedfm.deploy.programs.orphans import find_orphans
from fedfm.deploy.programs.processes import supervise
from tests.cli.tools import Command, sets

ROOT = Path(__file__).parents[3]
CONFIG = ("digits", *sets("rounds=1"))


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


def test_a_model_that_cannot_take_the_data_is_refused_by_the_client(
    command: Command,
    tmp_path,
):
    (tmp_path / "patients.csv").write_text("age,label\n" + "40,ill\n50,well\n" * 10)
    answer = command(*JOIN[:-1], "patients.csv", "--superlink", "127.0.0.1:1")
    assert answer.code == 2
    assert "use the model 'mlp'" in answer.err


def test_a_client_with_too_few_samples_is_refused_before_it_connects(command: Command, tmp_path):
    (tmp_path / "patients.csv").write_text("age,label\n" + "40,ill\n50,well\n" * 2)
    answer = command(
        *JOIN[:-1], "patients.csv", "--superlink", "127.0.0.1:1", *sets("model.name=mlp")
    )
    assert answer.code == 2
    assert "2 training samples are too few to take part" in answer.err


@pytest.mark.usefixtures("fake")
def test_a_client_with_a_batch_of_one_is_refused_before_it_connects(command: Command, tmp_path):
    (tmp_path / "patients.csv").write_text("age,label\n" + "40,ill\n50,well\n" * 6 + "45,ill\n")
    last = sets("model={name='mlp', norm='batch'}", "protocol={keep_last=true, batch_size=8}")
    answer = command(*JOIN[:-1], "patients.csv", "--superlink", "127.0.0.1:1", *last)
    assert answer.code == 2
    assert "this client: a batch of one sample" in answer.err
    assert "keep_last=false" in answer.err


@pytest.mark.parametrize("name", ["../b", "x y"])
def test_a_name_that_is_refused_leaves_nothing_behind(command: Command, tmp_path, name):
    before = sorted(tmp_path.rglob("*"))
    join = ("join", "digits", "--name", name, "--data", "share:0/10")
    answer = command(*join, "--superlink", "127.0.0.1:1")
    assert answer.code == 2
    assert sorted(tmp_path.rglob("*")) == before


def test_a_client_that_is_at_work_keeps_its_data(command: Command, fake, tmp_path):
    """Whoever joins once more under its name, with other data, is refused and changes nothing."""
    fake("flower-superlink", "")
    fake("flower-supernode", "#!/bin/sh\necho no route\nexit 1\n")
    join = (*JOIN[:-1], "share:0/10", "--superlink", "127.0.0.1:1")
    assert command(*join).code == 1
    files = {path: path.read_bytes() for path in (tmp_path / "out").glob("*.toml")}
    assert len(files) == 2
    with supervise(tmp_path / "out" / "flower", {}):
        answer = command(*JOIN[:-1], "share:1/10", "--superlink", "127.0.0.1:1")
    assert answer.code == 2
    assert "another command is at work in" in answer.err
    assert {path: path.read_bytes() for path in files} == files


def test_a_port_in_use(command: Command):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        answer = command(*SERVE, "--port", taken.getsockname()[1])
    assert answer.code == 2
    assert "choose another --port" in answer.err


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


# ---- with fakes of Flower's programs

LISTEN = """#!{python}
import socket, sys, time
host, port = (sys.argv[sys.argv.index(word) + 1] for word in ("--host", "--port"))
listening = socket.create_server((host, int(port)))
time.sleep(300)
"""
FLWR = """#!{python}
import json, os, sys
if sys.argv[1] == "log":
    print("round 1 of", os.environ["FEDFM_OUT"], "resume", os.environ["FEDFM_RESUME"])
else:
    runs = [{{"status": "{status}", "status-details": "an unlucky seed"}}]
    print(json.dumps({{"success": True, "run-id": "7", "runs": runs}}))
"""
REFUSED_NODE = """#!/bin/sh
echo '[code: 2004] Failed to activate SuperNode.'
exit 1
"""


@pytest.fixture
def fake(tmp_path, monkeypatch) -> Callable[[str, str], None]:
    """Put a program of ours in the place of one of Flower's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(processes, "find_flower", lambda: folder)

    def write(name: str, text: str, status: str = "") -> None:
        (folder / name).write_text(text.format(python=sys.executable, status=status))
        (folder / name).chmod(0o755)

    return write


@pytest.mark.parametrize(
    ("status", "code"),
    [("finished:completed", 0), ("finished:failed", 1), ("finished:stopped", 1)],
)
def test_how_a_run_ends(command: Command, fake, tmp_path, status, code):
    fake("flower-superlink", LISTEN)
    fake("flwr", FLWR, status)
    serve = (*SERVE, *sets("seed=5"), "--port", free_address().port)
    answer = command(*serve)
    assert answer.code == code, answer.err
    assert "already holds a run: resume it" in command(*serve).err
    assert command(*serve, "--resume").code == code
    assert f"round 1 of {tmp_path / 'out'} resume 1" in answer.out
    assert ("an unlucky seed" in answer.err) == bool(code)
    assert find_orphans(tmp_path / "out" / "flower") == []
    app = tomllib.loads((tmp_path / "out" / "app" / "pyproject.toml").read_text())["tool"]["flwr"]
    assert parse(json.loads(app["app"]["config"]["config"])) == load_config("digits", ["seed=5"])
    assert app["app"]["components"]["serverapp"] == "fedfm.deploy.server_app:app"


def test_why_a_run_failed_is_said_once_and_without_a_traceback(command: Command, fake, tmp_path):
    raised = '"round 1", "ERROR :     ServerApp raised an exception", "Traceback", "  File x"'
    fake("flower-superlink", LISTEN)
    flwr = FLWR.replace('"round 1 of"', f'*({raised}), sep="\\n"); print("of"')
    flwr = flwr.replace("an unlucky", "ServerApp failed with exception: an unlucky")
    fake("flwr", flwr, "finished:failed")
    answer = command(*SERVE, "--port", free_address().port)
    assert answer.code == 1
    assert "round 1\n" in answer.out
    assert "Traceback" not in answer.out
    assert "fedfm: the run ended as finished:failed: an unlucky seed\n" in answer.err
    assert "Traceback" in (tmp_path / "out" / "flower" / "run.log").read_text()


def test_a_superlink_that_dies_ends_the_command(command: Command, fake):
    fake("flower-superlink", LISTEN.replace("300", "2") + "sys.exit('out of memory')")
    fake("flwr", FLWR, "running")
    answer = command(*SERVE, "--port", free_address().port)
    assert answer.code == 1
    assert "out of memory" in answer.err


def test_a_client_that_is_not_let_in(command: Command, fake, tmp_path, monkeypatch):
    monkeypatch.setattr("fedfm.deploy.programs.join.PAUSE", 0.1)
    monkeypatch.setattr("fedfm.deploy.programs.join.PATIENCE", 0.5)
    fake("flower-superlink", "")
    fake("flower-supernode", REFUSED_NODE)
    answer = command(*JOIN, "--superlink", "127.0.0.1:1")
    assert answer.code == 1
    assert "does not let this client in" in answer.err
    assert answer.out.count("not let in yet") == 1
    assert answer.out.count("[code: 2004]") == 1
    assert "joining 127.0.0.1:1" in answer.out
    assert answer.out.count("flower-supernode --superlink 127.0.0.1:1 ") >= 2
    site = load_site(tmp_path / "out" / "site.toml")
    assert (site.name, site.out) == ("a", tmp_path / "out")
    assert load_config(str(site.config)) == load_config("digits")


def test_a_client_ends_when_it_has_the_model_and_the_server_is_gone(
    command: Command, fake, tmp_path, monkeypatch
):
    monkeypatch.setattr(processes, "GRACE", 0.5)
    result = tmp_path / "out" / "model.safetensors"
    result.parent.mkdir()
    result.write_text("of another federation")
    fake("flower-superlink", "")
    fake(
        "flower-supernode",
        "#!/bin/sh\n"
        "echo Connection attempt failed, retrying; echo 'SuperNode ID: 1'; sleep 1\n"
        f"echo the model > {result}; echo delivered; sleep 1\n"
        "echo Connection attempt failed, retrying; echo a busy server\n"
        "for n in 1 2 3 4 5; do echo Connection attempt failed, retrying; done; sleep 300\n",
    )
    answer = command(*JOIN, "--superlink", "127.0.0.1:1")
    assert answer.code == 0, answer.err
    assert answer.out.count("Connection attempt failed") == 2 + 3
    assert answer.out.endswith(f"its server has stopped; the model is in {result}\n")
    assert find_orphans(tmp_path / "out" / "flower") == []


def test_a_supernode_that_fails_is_not_a_server_that_refuses(command: Command, fake):
    fake("flower-superlink", "")
    fake("flower-supernode", "#!/bin/sh\necho 'Address already in use'\nexit 1\n")
    answer = command(*JOIN, "--superlink", "127.0.0.1:1")
    assert answer.code == 1
    assert "ended before the server had let it in" in answer.err
    assert "public key" not in answer.err


@pytest.mark.parametrize("said", ["CERTIFICATE_VERIFY_FAILED", "[SSL: WRONG_VERSION_NUMBER]"])
def test_a_client_that_does_not_trust_the_server(command: Command, fake, said):
    fake("flower-superlink", "")
    fake("flower-supernode", f"#!/bin/sh\necho '{said}'\nexit 1\n")
    answer = command(*JOIN, "--superlink", "127.0.0.1:1")
    assert answer.code == 1
    assert "the certificate is not for the name" in answer.err
    assert "public key" not in answer.err


def test_a_certificate_that_the_server_itself_does_not_trust(
    command: Command,
    fake,
):
    make_keys(Path("keys"), ["fl.example.org"], ["a"], 1)
    fake("flower-superlink", LISTEN)
    fake("flwr", "#!/bin/sh\necho Connection to the SuperLink is unavailable.\nexit 1\n")
    answer = command(*SERVE, "--port", free_address().port, "--keys", "keys/server")
    assert answer.code == 1
    assert "Is server.pem also valid for 127.0.0.1?" in answer.err


def test_two_clients_cannot_hide_from_each_other(command: Command, fake):
    fake("flower-superlink", LISTEN)
    fake("flwr", FLWR, "finished:completed")
    for clients, warned in ((2, True), (3, False)):
        out = ("--out", f"out{clients}", "--port", free_address().port)
        answer = command("serve", "digits", *out, *SECURE, *sets(f"clients={clients}"))
        assert answer.code == 0, answer.err
        assert ("each can subtract its own part" in answer.err) == warned


def test_noise_for_fewer_clients_than_there_are(command: Command, fake):
    fake("flower-superlink", LISTEN)
    fake("flwr", FLWR, "finished:completed")
    for clients, share, warned in (
        (10, 1.0, True),
        (9, 1.0, True),
        (8, 1.0, False),
        (80, 0.1, False),
    ):
        out = ("--out", f"out{clients}", "--port", free_address().port)
        size = sets("deployment.minimum=4", f"clients={clients}", f"participation={share}")
        answer = command("serve", "digits", *out, *PRIVATE, *size)
        assert answer.code == 0, answer.err
        assert ("as if only 4 took part" in answer.err) == warned


def test_a_site_file_must_expect_this_config(command: Command, fake, tmp_path):
    data = '\n[data]\nsource = "share"\nshare = 0\nof = 10\n'
    (tmp_path / "s.toml").write_text('name = "a"' + data)
    join = ("join", "digits", "--superlink", "127.0.0.1:1", "--site", "s.toml")
    assert "add `config" in command(*join).err
    (tmp_path / "s.toml").write_text('name = "a"\nconfig = "cifar10"' + data)
    assert "expects another config" in command(*join).err
    (tmp_path / "s.toml").write_text('name = "a"\nconfig = "digits"' + data)
    fake("flower-superlink", "")
    fake("flower-supernode", "#!/bin/sh\necho no route\nexit 1\n")
    said = command(*join, *sets("rounds=7")).err
    assert "training.rounds (s.toml 30, here 7)" in said
    answer = command(*join, *sets("threads=1"))
    assert answer.code == 1
    assert f"--node-config 'site=\"{tmp_path / 's.toml'}\"'" in answer.out


# ---- with Flower itself


class Standin:
    """`fedfm` with the stand-in app, in a process of its own."""

    def __init__(self, said: Path, *arguments: object) -> None:
        self.said = said
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        with said.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.deploy.standin", *map(str, arguments)],
                cwd=ROOT,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            )

    def wait_for(self, text: str) -> None:
        end = time.monotonic() + 90
        while text not in self.said.read_text():
            assert self.process.poll() is None, self.said.read_text()
            assert time.monotonic() < end, self.said.read_text()
            time.sleep(0.1)


@pytest.fixture
def standin(tmp_path) -> Iterator[Callable[..., Standin]]:
    started: list[Standin] = []

    def start(name: str, *arguments: object) -> Standin:
        out = ("--out", tmp_path / name)
        started.append(Standin(tmp_path / f"{name}.txt", *arguments, *out))
        return started[-1]

    yield start
    for each in started:
        each.process.terminate()
    for each in started:
        each.process.wait(30)


def test_a_federation_with_tls_and_authentication(standin, tmp_path):
    """Two clients are let in and answer, a third with a key of its own making is not."""
    keys, forged, port = tmp_path / "keys", tmp_path / "forged", free_address().port
    make_keys(keys, ["127.0.0.1"], ["a", "b"], days=1)
    make_keys(forged, ["127.0.0.1"], ["c"], days=1)
    (forged / "c" / "ca.pem").write_bytes((keys / "a" / "ca.pem").read_bytes())
    server = standin("server", "serve", *CONFIG, "--port", port, "--keys", keys / "server")
    server.wait_for("fedfm.deploy.programs.proxy")
    join = ("join", *CONFIG, "--superlink", f"127.0.0.1:{port}", "--data", "share:0/10")
    clients = [
        standin(name, *join, "--name", name, "--keys", folder / name)
        for name, folder in (("a", keys), ("b", keys), ("c", forged))
    ]
    clients[2].wait_for("Failed to activate SuperNode")
    server.process.wait(90)
    for client in clients:
        client.process.send_signal(signal.SIGINT)
    assert [client.process.wait(30) for client in clients] == [128 + signal.SIGINT] * 3
    assert server.process.returncode == 0
    said = server.said.read_text()
    assert f"out {tmp_path / 'server'} resume 1" in said
    assert re.search(r"round 0: a, b in \d", said)
    folders = [tmp_path / name / "flower" for name in ("server", "a", "b", "c")]
    assert [stray for folder in folders for stray in find_orphans(folder)] == []
    kept = [path.read_bytes() for path in (tmp_path / "server").rglob("*") if path.is_file()]
    assert not any(b"site.toml" in content for content in kept)
