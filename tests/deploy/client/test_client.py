"""A client: what it lets out, what it refuses, and how much it may take."""

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

import fedfm
from fedfm.core.errors import UserError
from fedfm.core.trees import flatten, leaves
from fedfm.deploy.client import runtime
from fedfm.deploy.client.answerer import explain_to_server
from fedfm.deploy.client.client import Client
from fedfm.deploy.client_app import reply
from fedfm.deploy.packets import Packet, pack, unpack
from fedfm.deploy.payload import FACTS, TREES
from fedfm.run.prepare import device_of
from tests.deploy.conftest import LIMIT, NODES, Fault, Federation, facts_of, write_site

MARKER = "patients-of-ward-nine"
GENERIC = "it could not answer; its own log says why"


def everything_in(message: Message) -> bytes:
    """All bytes of a message's content."""
    content = message.content
    texts = [
        str(value).encode() for each in content.config_records.values() for value in each.values()
    ]
    arrays = [array.data for each in content.array_records.values() for array in each.values()]
    return b"\n".join([*map(str.encode, content.keys()), *texts, *arrays])


class Eavesdropper:
    """Keeps every byte that clients send."""

    def __init__(self):
        self.heard = b""

    def __call__(self, message, answer):
        said = answer()
        self.heard += everything_in(said)
        return said

    def heard_of(self, *secrets) -> bool:
        return any(str(secret).encode() in self.heard for secret in secrets)


@pytest.fixture
def table_sites(federation, table):
    """A federation whose clients have tables of their own, in a folder with a telling name."""

    def make(*overrides: str) -> Federation:
        made = federation("scaffold", "training.rounds=2", *overrides)
        header, *rows = table.read_text().splitlines()
        for k in range(3):
            place = made.folder / f"c{k}"
            (place / MARKER).mkdir()
            (place / MARKER / f"{MARKER}.csv").write_text("\n".join([header, *rows[k::3]]) + "\n")
            write_site(place, f"c{k}", {"source": '"csv"', "path": f'"{MARKER}/{MARKER}.csv"'})
        return made

    return make


# --- what leaves a client -------------------------------------------------------------------------


@pytest.mark.parametrize("secure", ["false", "true"])
def test_no_path_leaves_a_client(table_sites, tmp_path, secure):
    ears = Eavesdropper()
    result = table_sites(f"deployment.secure={secure}").run(ears)
    assert len(result.rounds) == 2
    assert b"kind0" in ears.heard
    assert not ears.heard_of(tmp_path, MARKER, "site.toml", ".csv")


def test_no_path_leaves_a_client_whose_data_are_gone(table_sites, tmp_path, warnings):
    run, ears = table_sites(), Eavesdropper()
    (run.folder / "c1" / MARKER / f"{MARKER}.csv").unlink()
    run.run(ears)
    assert not ears.heard_of(tmp_path, MARKER, "site.toml", ".csv", "No such file")
    assert [GENERIC in line for line in warnings()] == [True]


@pytest.mark.parametrize("damage", ["bad cell", "no site", "bad site", "bad entry"])
def test_no_text_of_an_error_leaves_a_client(table_sites, tmp_path, warnings, damage):
    run, ears = table_sites(), Eavesdropper()
    place = run.folder / "c1"
    if damage == "bad cell":
        path = place / MARKER / f"{MARKER}.csv"
        path.write_text(path.read_text().replace(".", MARKER, 1))
    elif damage == "no site":
        (place / "site.toml").unlink()
    elif damage == "bad site":
        (place / "site.toml").write_text(f"{MARKER} = 1")
    else:
        (place / "leaky.py").write_text(f"def made():\n    raise KeyError('{MARKER}')\n")
        write_site(place, "c1", {"source": '"python"', "entry": '"leaky:made"'})
    run.run(ears)
    assert not ears.heard_of(tmp_path, MARKER, "KeyError", "site.toml")
    assert [GENERIC in line for line in warnings()] == [True]


def test_no_text_of_an_error_in_training_leaves_a_client(table_sites, warnings, monkeypatch):
    def breaks(*arguments):
        raise RuntimeError(f"{MARKER} is open")

    def tamper(message, answer):
        with monkeypatch.context() as patch:
            if (message.metadata.dst_node_id, facts_of(message)["kind"]) == (NODES[1], "train"):
                patch.setattr("fedfm.deploy.client.client.answer_train", breaks)
            return ears(message, answer)

    ears = Eavesdropper()
    table_sites().run(tamper)
    assert not ears.heard_of(MARKER)
    assert [GENERIC in line for line in warnings()] == [True, True]


def test_only_refusals_are_told():
    assert (
        explain_to_server(UserError("/home/me"))
        == explain_to_server(OSError("/home/me"))
        == GENERIC
    )


# --- what a client takes --------------------------------------------------------------------------


def test_nothing_is_unpickled():
    source = Path(fedfm.__file__).parent
    for file in [*source.glob("deploy/**/*.py"), *source.glob("core/**/*.py")]:
        text = file.read_text()
        assert not re.search(r"\b(pickle|marshal|shelve|torch\.load|eval|exec)\b\(?", code(text)), (
            file
        )


def code(text: str) -> str:
    """A module without its comments and texts."""
    return re.sub(r'"""(.|\n)*?"""|#.*|"[^"\n]*"', "", text)


class Trap:
    """Something that a program would run if it unpickled what it received."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


@pytest.mark.parametrize("kind", ["hello", "train"])
def test_a_pickle_is_refused(federation, kind):
    run = federation()
    data = pickle.dumps(Trap())
    array = Array(dtype="uint8", shape=(len(data),), stype="torch", data=data)
    text = json.dumps({"kind": kind, "token": "t", "number": 1})
    content = RecordDict({FACTS: ConfigRecord({"json": text})})
    content[TREES] = ArrayRecord(array_dict={"model": array})
    answer = asked(run, content)
    assert answer["error"].startswith("the message is not a packet")


def asked(run: Federation, content: RecordDict, client: int = 1) -> dict[str, Any]:
    """The facts that a client answers to a question of this content."""
    message = Message(content, NODES[client], "query.hello", ttl=10)
    return facts_of(reply(message, run.grid.contexts[NODES[client]]))


@pytest.mark.parametrize("facts", [{}, {"kind": "dance"}, {"kind": "train"}, {"kind": "reveal"}])
def test_questions_that_make_no_sense_get_an_answer(federation, facts):
    content = RecordDict({FACTS: ConfigRecord({"json": json.dumps(facts)})})
    assert isinstance(asked(federation(), content)["error"], str)


def test_a_question_over_the_client_s_own_limit(federation, warnings):
    run = federation("fedavg", "training.rounds=1", "model.hidden=[500, 600]")
    data = {"source": '"share"', "share": 1, "of": 3}
    write_site(run.folder / "c1", "c1", data, message_limit=1)
    result = run.run()
    assert [record.failed for record in result.rounds] == [1]
    for line in warnings():
        assert line.startswith(f"node {NODES[1]} is left out")
        assert "message_limit is 1,048,576" in line


def test_a_client_with_another_config(federation, warnings):
    run = federation("fedavg", "training.rounds=1")
    own = run.config.as_toml() | {"device": "auto"}
    own["training"] |= {"lr": 0.5}
    (run.folder / "c1/own.toml").write_text(tomli_w.dumps(own))
    data = {"source": '"share"', "share": 1, "of": 3}
    write_site(run.folder / "c1", "c1", data, config='"own.toml"')
    run.run()
    (line,) = warnings()
    assert "config is not this client's: training.lr (client 0.5, server 0.02); use" in line


def test_a_client_with_a_batch_of_one_that_cannot_be_trained_on_is_left_out(federation, caplog):
    """It introduces itself to nobody, and its own log says why."""
    run = federation("fedavg", "training.rounds=1", "model.norm=batch", "training.keep_last=true")
    rows = "a,b,c,d,e,f,label\n" + "".join(f"{k},0,1,2,3,4,kind{k % 4}\n" for k in range(15))
    (run.folder / "c1/own.csv").write_text(rows)
    write_site(run.folder / "c1", "c1", {"source": '"csv"', "path": '"own.csv"'})
    assert run.run().rounds[0].failed == 0
    assert "not answered: this client: a batch of one sample" in caplog.text
    assert not (run.out(1) / "federation.json").exists()


def test_a_config_that_changes_between_hello_and_join(federation, warnings):
    """What a client keeps to is what it agreed to: noise cannot be talked away."""
    run = federation("fedavg", "training.rounds=1")
    own = run.config.as_toml()
    (run.folder / "c1/own.toml").write_text(tomli_w.dumps(own))
    data = {"source": '"share"', "share": 1, "of": 3}
    write_site(run.folder / "c1", "c1", data, config='"own.toml"')
    own["training"] |= {"lr": 0.5}

    def other_config(message, answer):
        asked = unpack(message.content, LIMIT)
        facts = {**asked.facts, "config": json.dumps(own)}
        message.content = pack(Packet(facts, asked.trees))
        return answer()

    run.run(Fault("join", other_config, at=range(9)))
    assert any("training.lr (client 0.02, server 0.5)" in line for line in warnings())
    assert not (run.out(1) / "federation.json").exists()


def test_a_federation_that_is_not_this_client_s(federation):
    """It has joined one, and answers another's questions as one that it has not joined."""
    run = federation("fedavg", "training.rounds=1")
    run.run()
    facts = {"kind": "train", "token": "another", "number": 1}
    answer = asked(run, RecordDict({FACTS: ConfigRecord({"json": json.dumps(facts)})}))
    assert answer["lost"] is True
    assert "has not joined this federation" in answer["error"]


HUNGRY = """
import json, sys
from pathlib import Path
from typing import Any
from flwr.app import ConfigRecord, Context, Message, RecordDict
from fedfm.config import load_config
from fedfm.deploy.client_app import reply
from fedfm.deploy.packets import PROTOCOL_VERSION as VERSION
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
config = json.dumps(load_config("digits").as_toml())
context = Context(1, 7, {"site": sys.argv[1]}, RecordDict(), {})
for megabytes in (1, 2000, 1):
    (Path(sys.argv[1]).parent / "much").write_text(str(megabytes))
    facts = {"kind": "hello", "config": config, "token": "t", "number": 1, "messages": VERSION}
    content = RecordDict({"facts": ConfigRecord({"json": json.dumps(facts)})})
    answer = reply(Message(content, 7, "query.hello", ttl=10), context)
    print(answer.content.config_records["facts"]["json"])
"""
OWN = """
from pathlib import Path
from typing import Any
import torch
from fedfm.data import Dataset, Split
def made():
    megabytes = int((Path(__file__).parent / "much").read_text())
    large = torch.ones(megabytes * 2**20, dtype=torch.uint8)
    split = Split(large[:4096].view(64, 1, 8, 8), torch.arange(64) % 2)
    return Dataset("own", split, split, ("a", "b"))
"""


def test_a_client_that_wants_more_memory_than_it_may_take(tmp_path):
    """It says so, and answers the next question."""
    (tmp_path / "own.py").write_text(OWN)
    data = {"source": '"python"', "entry": '"own:made"'}
    write_site(tmp_path, "c1", data, memory_limit=1500)
    command = [sys.executable, "-c", HUNGRY, str(tmp_path / "site.toml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    little, much, little_again = map(json.loads, done.stdout.splitlines())
    assert "introduction" in little
    assert "introduction" in little_again
    assert "it does not have enough memory" in much["error"]


@pytest.mark.parametrize("method", ["fedfm", "fedfm-lite", "fedproto", "scaffold"])
def test_what_the_server_sends_gets_to_where_the_client_trains(federation, monkeypatch, method):
    """A device without memory stands for a GPU: everything of a task is there."""
    seen: list[str] = []
    whole = Client._task

    def task(client, question, kind):
        monkeypatch.setattr(runtime, "device_of", lambda config: torch.device("meta"))
        client.cache.clear()
        ask, _ = whole(client, question, kind)
        monkeypatch.setattr(runtime, "device_of", device_of)
        client.cache.clear()
        seen.extend(leaf.device.type for leaf in leaves({**ask.model._asdict(), "down": ask.down}))
        assert kind != "train" or ask.round < 1 or flatten(ask.down)
        return whole(client, question, kind)

    monkeypatch.setattr(Client, "_task", task)
    federation(method).run()
    assert set(seen) == {"meta"}
