"""What goes wrong with clients: each time the round goes on without them, and the log says why.

"Without them" is exact: the result is the simulation's in which they did not answer.
"""

import errno
import os
import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from safetensors.torch import load_file

from fedfm.core import client_states
from fedfm.core.errors import UserError
from fedfm.core.files import partial_path
from fedfm.core.trees import flatten, unflatten
from fedfm.deploy.packets import PROTOCOL_VERSION, Packet, pack
from fedfm.deploy.payload import FACTS, TREES
from fedfm.deploy.server.server import TooFewClients
from fedfm.run.records import Score
from tests.deploy.conftest import NODES, Fault, assert_same, changed, facts_of, silent, unheard
from tests.deploy.inprocess import InProcessGrid

EXACT = {"rtol": 1e-5, "atol": 1e-6}
QUANTISED = {"rtol": 1e-3, "atol": 1e-4}
RARE = ("fedfm-lite.models_every=2", "training.rounds=4")
SECURE = "deployment.secure=true"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")


def missing(kind, round=1, client=1):
    """That client does not answer that question."""
    return lambda r, k, c: (r, k, c) == (round, kind, client)


def nobody_missing(round, kind, client):
    return False


def about(lines, client=1):
    """The lines that name a client or its node."""
    return [
        line for line in lines if f"client {client} " in line or f"node {NODES[client]} " in line
    ]


def assert_one_line(lines, *words, client=1):
    """One line in all, about that client, with these words."""
    assert len(lines) == 1, lines
    assert about(lines, client) == lines
    for word in words:
        assert word in lines[0]


# --- a client dies, and comes back ----------------------------------------------------------------


@pytest.mark.parametrize("deed", [silent, unheard])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "moon", "fedfm"])
def test_dead_while_it_trains(federation, warnings, method, deed):
    """With its own state as it was before, whether it had trained or not."""
    run = federation(method)
    result = run.run(Fault("train", deed, at=(1,)))
    assert_same(run.state, run.simulated_without(missing("train")), **EXACT)
    assert [record.failed for record in result.rounds] == [0, 1, 0]
    assert_one_line(warnings(), "no answer within")


@pytest.mark.parametrize("round", range(4))
@pytest.mark.parametrize("deed", [silent, unheard])
def test_dead_while_it_trains_on_its_own_model(federation, warnings, deed, round):
    run = federation("fedfm-lite", *RARE)
    run.run(Fault("train", deed, at=(round,)))
    assert_same(run.state, run.simulated_without(missing("train", round)), **EXACT)
    assert_one_line(warnings(), "no answer within")


@pytest.mark.parametrize("deed", [silent, unheard])
def test_dead_while_it_measures(federation, warnings, deed):
    """It is not asked to train either, and is back in the next round."""
    run = federation("fedfm")
    result = run.run(Fault("measure", deed))
    assert_same(run.state, run.simulated_without(missing("measure")), **EXACT)
    assert [record.failed for record in result.rounds] == [0, 1, 0]
    assert_one_line(warnings(), "no answer within")


def test_dead_while_it_judges_the_last_model(federation, warnings):
    run = federation()
    result = run.run(Fault("evaluate", silent))
    assert_same(run.state, run.simulated().state, **EXACT)
    everyone = run.simulation.evaluate(run.state.model).validation["accuracy"]
    assert result.rounds[-1].val_accuracy == pytest.approx(float(everyone[[0, 2]].mean()), abs=1e-6)
    assert_one_line(warnings(), "no answer within")


def test_dead_when_the_model_is_delivered(federation, warnings):
    """The others have it; the run is finished and whole."""
    run = federation("fedavg", "training.rounds=1", "model.norm=batch")
    result = run.run(Fault("deliver", silent))
    model = {**result.best.model.params, **result.best.model.buffers}
    for client in (0, 2):
        kept = load_file(run.out(client) / "model.safetensors")
        assert kept.keys() == model.keys()
        assert all(torch.equal(kept[name], leaf) for name, leaf in model.items())
    assert not (run.out(1) / "model.safetensors").exists()
    assert (run.folder / "server/summary.json").exists()
    assert_one_line(warnings(), "no answer within")


def test_dead_when_it_is_greeted(federation, warnings):
    """The others begin; it is greeted again before every round, and has the next number."""
    run = federation("fedavg", "training.rounds=2")
    result = run.run(Fault("hello", silent, at=(0, 1)))
    assert run.server.clients.members.numbers == {"c0": 0, "c2": 1, "c1": 2}
    assert result.rounds[1].floats_up == 1.5 * result.rounds[0].floats_up
    assert len(warnings()) == 2
    assert about(warnings()) == warnings()


@pytest.mark.parametrize("deed", [silent, unheard])
def test_dead_when_it_joins(federation, warnings, deed):
    """It joins before the first round."""
    run = federation()
    run.run(Fault("join", deed))
    assert_same(run.state, run.simulated().state, **EXACT)
    assert_one_line(warnings(), "no answer within")


def test_nobody_joins(federation):
    with pytest.raises(UserError, match=r"\b0\b.*'join'"):
        federation().run(lambda message, answer: asked_anything_but("join", message, answer))


def asked_anything_but(kind, message, answer):
    return None if facts_of(message)["kind"] == kind else answer()


def test_every_client_dies_once(federation, warnings):
    faults = [Fault("train", silent, client, at=(client,)) for client in range(3)]

    def tamper(message, answer):
        for fault in faults:
            if message.metadata.dst_node_id == NODES[fault.client]:
                return fault(message, answer)
        raise AssertionError

    run = federation("scaffold", "training.rounds=4")
    run.run(tamper)
    wanted = run.simulated_without(lambda round, kind, client: round == client)
    assert_same(run.state, wanted, **EXACT)
    assert [len(about(warnings(), client)) for client in range(3)] == [1, 1, 1]


def test_back_as_another_node(federation, warnings):
    """The same client by its name: same number, same state."""
    run = federation("scaffold", "training.rounds=4")
    context = run.grid.contexts[NODES[1]]

    def dies(message, answer):
        del run.grid.contexts[NODES[1]]

    def comes_back(message, answer):
        if facts_of(message).get("round") == 2:
            run.grid.contexts.setdefault(777, context)
        return Fault.__call__(fault, message, answer)

    fault = Fault("train", dies, at=(1,))
    run.run(comes_back)
    assert run.server.clients.members.nodes == {0: 100, 1: 777, 2: 102}
    gone = run.simulated_without(lambda round, kind, client: client == 1 and round in (1, 2))
    assert_same(run.state, gone, **EXACT)
    assert_one_line(warnings(), "no answer within")


def test_back_as_another_node_while_the_old_one_is_still_listed(federation, warnings):
    run = federation("scaffold", "training.rounds=4")
    context = run.grid.contexts[NODES[1]]
    seen = []

    def tamper(message, answer):
        node, facts = message.metadata.dst_node_id, facts_of(message)
        seen.append(facts.get("round"))
        if node == NODES[1] and facts.get("round") in (1, 2):
            run.grid.contexts[777] = context
            if facts["round"] == 2:
                del run.grid.contexts[NODES[1]]
            return None
        return answer()

    run.run(tamper)
    assert run.server.clients.members.nodes[1] == 777
    gone = run.simulated_without(lambda round, kind, client: client == 1 and round in (1, 2))
    assert_same(run.state, gone, **EXACT)
    waits = [line for line in warnings() if "node 777 waits" in line]
    assert len(waits) == 1
    assert len(about(warnings())) == 2


def test_all_nodes_gone(federation):
    run = federation()

    def tamper(message, answer):
        if facts_of(message).get("round") == 1:
            run.grid.contexts.clear()
            return None
        return answer()

    with pytest.raises(TooFewClients, match=r"\b0\b"):
        run.run(tamper)
    assert run.state.round == 1


# --- late, and twice ------------------------------------------------------------------------------


@pytest.fixture
def eager_transport(monkeypatch):
    """It delivers whatever it has, asked for or not."""

    def pull_messages(grid, ids):
        return [grid.replies.pop(id) for id in list(grid.replies)]

    monkeypatch.setattr(InProcessGrid, "pull_messages", pull_messages)


@pytest.mark.usefixtures("eager_transport")
def test_an_answer_that_comes_late_is_not_used(federation, warnings):
    run = federation("scaffold")
    kept = []

    def later(message, answer):
        kept.append(answer())

    def tamper(message, answer):
        if kept and facts_of(message).get("round") == 2:
            run.grid.replies["late"] = kept.pop()
        return Fault.__call__(fault, message, answer)

    fault = Fault("train", later, at=(1,))
    run.run(tamper)
    assert not kept
    assert_same(run.state, run.simulated_without(missing("train")), **EXACT)
    assert len(about(warnings())) == len(warnings()) == 2
    assert "unexpected answer" in warnings()[1]


@pytest.mark.usefixtures("eager_transport")
def test_an_answer_that_comes_twice_counts_once(federation, warnings):
    run = federation()

    def twice(message, answer):
        reply = answer()
        run.grid.replies["again"] = reply
        return reply

    run.run(Fault("train", twice, at=(1,)))
    assert_same(run.state, run.simulated().state, **EXACT)
    assert_one_line(warnings(), "unexpected answer")


# --- answers that are none ------------------------------------------------------------------------


def with_tensors(change):
    """The answer with other tensors; `change` gets and gives leaves by path."""

    def deed(message, answer):
        def altered(packet):
            trees = {name: unflatten(change(flatten(tree))) for name, tree in packet.trees.items()}
            return Packet(packet.facts, trees)

        return changed(answer(), altered)

    return deed


def first_of(leaves):
    """The name of the first change of the model."""
    return next(name for name in leaves if name.startswith("change/"))


def put(value):
    def change(leaves):
        name = first_of(leaves)
        leaves[name] = leaves[name].clone()
        leaves[name].view(-1)[0] = value
        return leaves

    return with_tensors(change)


def replaced(change):
    """With the first change of the model replaced."""
    return with_tensors(
        lambda leaves: leaves | {first_of(leaves): change(leaves[first_of(leaves)])}
    )


def with_content(content):
    def deed(message, answer):
        reply = answer()
        reply.content = content(reply.content)
        return reply

    return deed


def bytes_for_tensors(data):
    def content(old):
        array = Array(dtype="uint8", shape=(len(data),), stype="safetensors", data=data)
        return RecordDict({FACTS: old[FACTS], TREES: ArrayRecord(array_dict={"sum": array})})

    return with_content(content)


def text_for_facts(text):
    return with_content(
        lambda old: RecordDict({FACTS: ConfigRecord({"json": text}), TREES: old[TREES]})
    )


def flower_error(message, answer):
    answer()
    return Message(Error(code=1, reason="Traceback ...\nOSError: out of memory"), reply_to=message)


def from_another_node(message, answer):
    reply = answer()
    reply.metadata._src_node_id = NODES[2]
    return reply


def of_another_question(**facts):
    return lambda message, answer: changed(
        answer(), lambda packet: Packet({**packet.facts, **facts}, packet.trees)
    )


class Trap:
    """Something that a program would run if it unpickled what it received."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


BAD_ANSWERS = {
    "NaN": (put(float("nan")), "finite"),
    "infinity": (put(float("inf")), "finite"),
    "minus infinity": (put(float("-inf")), "finite"),
    "another shape": (replaced(lambda leaf: leaf[:-1]), "has shape"),
    "one dimension more": (replaced(lambda leaf: leaf[None]), "has shape"),
    "another type": (replaced(lambda leaf: leaf.double()), "has type"),
    "integers": (replaced(lambda leaf: leaf.long()), "has type"),
    "a tensor less": (
        with_tensors(lambda leaves: {n: x for n, x in leaves.items() if n != first_of(leaves)}),
        "is missing",
    ),
    "a tensor more": (
        with_tensors(lambda leaves: leaves | {"extra": torch.ones(3)}),
        "not expected",
    ),
    "no tensors": (with_tensors(lambda leaves: {}), "is missing"),
    "no sum": (with_content(lambda old: RecordDict({FACTS: old[FACTS]})), "no sum"),
    "nothing": (with_content(lambda old: RecordDict()), "packet"),
    "bytes at random": (bytes_for_tensors(b"\x17" * 1000), "packet"),
    "no bytes": (bytes_for_tensors(b""), "packet"),
    "a pickle": (bytes_for_tensors(pickle.dumps(Trap())), "packet"),
    "facts that are no JSON": (text_for_facts("{'round': 1"), "packet"),
    "facts that are no table": (text_for_facts("[1, 2]"), "table"),
    "facts without end": (text_for_facts("[" * 100_000), "packet"),
    "no facts": (text_for_facts("{}"), "another question"),
    "another round's facts": (of_another_question(number=1), "another question"),
    "another federation's": (of_another_question(token="0" * 16), "another question"),
    "another kind's": (of_another_question(kind="measure"), "another question"),
    "an error of Flower's": (flower_error, "OSError: out of memory"),
    "another node's": (from_another_node, "another node"),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_a_bad_answer_is_left_out(federation, warnings, name):
    deed, reason = BAD_ANSWERS[name]
    run = federation("scaffold", "training.rounds=2")
    result = run.run(Fault("train", deed))
    assert_same(run.state, run.simulated_without(missing("train", 0)), **EXACT)
    first, second = result.rounds
    assert (first.failed, second.failed) == (1, 0)
    assert first.bytes_up == 2 / 3 * second.bytes_up
    assert_one_line(warnings(), reason)


@pytest.mark.parametrize("name", ["NaN", "infinity"])
def test_bad_statistics_are_left_out(federation, warnings, name):
    value = {"NaN": float("nan"), "infinity": float("inf")}[name]
    run = federation("fedfm")

    def change(leaves):
        return {
            n: torch.full_like(x, value) if x.is_floating_point() else x for n, x in leaves.items()
        }

    run.run(Fault("measure", with_tensors(change)))
    assert_same(run.state, run.simulated_without(missing("measure")), **EXACT)
    assert_one_line(warnings(), "finite")


def test_a_replayed_answer_is_left_out(federation, warnings):
    """What it really said, but in the round before."""
    run = federation("fedavg", "training.rounds=2")
    said = []

    def tamper(message, answer):
        if message.metadata.dst_node_id != NODES[1] or facts_of(message)["kind"] != "train":
            return answer()
        said.append(answer())
        said[-1].content = said[0].content
        return said[-1]

    run.run(tamper)
    assert_same(run.state, run.simulated_without(missing("train", 1)), **EXACT)
    assert_one_line(warnings(), "another question")


def test_an_answer_over_the_limit_is_left_out(federation, warnings):
    run = federation("fedavg", "training.rounds=2", "deployment.message_limit=1")
    much = torch.zeros(2**18 + 1)
    run.run(Fault("train", with_tensors(lambda leaves: leaves | {"much": much})))
    assert_same(run.state, run.simulated_without(missing("train", 0)), **EXACT)
    assert_one_line(warnings(), "message_limit is 1,048,576")


@pytest.mark.parametrize("kind", [(), (SECURE,)])
def test_an_answer_much_larger_than_expected_is_left_out(federation, warnings, kind, monkeypatch):
    """Whatever message_limit is; the proxy finds the number in the run's folder."""
    monkeypatch.setattr("fedfm.deploy.server.messaging.ROOM", 2**20)
    run = federation("fedavg", "training.rounds=2", *kind)
    much = torch.zeros(2**18 + 2**14)
    run.run(Fault("train", with_tensors(lambda leaves: leaves | {"much": much})))
    assert_same(run.state, run.simulated_without(missing("train", 0)), **QUANTISED)
    assert_one_line(warnings(), "bytes; message_limit is")
    limit = int((run.folder / "server/message_limit").read_text())
    assert 2**20 < limit < 2**20 + 2**16


def test_a_reason_is_one_line_of_the_log(federation, warnings):
    """Whatever a client says, it writes no second line into the server's log."""
    said = of_another_question(
        error="no\nnode 100 is left out of 'train': a lie\x1b[2J" + "x" * 5000
    )
    federation("fedavg", "training.rounds=1").run(Fault("train", said))
    (line,) = warnings()
    assert line.isprintable()
    assert len(line) < 700


@pytest.mark.parametrize("told", [None, 7, {"name": "c1"}, {"name": "../etc", "classes": ["a"]}])
def test_a_bad_introduction_is_refused(federation, warnings, told):
    run = federation("fedavg", "training.rounds=1")
    run.run(Fault("hello", of_another_question(introduction=told)))
    assert run.server.clients.members.numbers == {"c0": 0, "c2": 1}
    assert_one_line(warnings(), "is refused", "introduction")


def test_a_client_with_other_messages_is_told_so(federation, warnings):
    """As one with an older version has."""

    def older(message, answer):
        message.content = pack(Packet(facts_of(message) | {"messages": 0}))
        return answer()

    run = federation("fedavg", "training.rounds=1", "deployment.wait=0.1")
    run.run(Fault("hello", older, at=range(9)))
    assert run.server.clients.members.numbers == {"c0": 0, "c2": 1}
    versions = f"messages are of version 0, this client's of {PROTOCOL_VERSION}"
    assert_one_line(warnings(), versions, "same FedFM")


# --- too few --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "kind"), [("fedavg", "train"), ("fedfm", "measure")])
def test_too_few_answers_stop_the_run_and_it_can_go_on(federation, method, kind):
    run = federation(method)

    def tamper(message, answer):
        facts = facts_of(message)
        dead = message.metadata.dst_node_id != NODES[0]
        return None if dead and (facts["kind"], facts.get("round")) == (kind, 1) else answer()

    with pytest.raises(TooFewClients, match=rf"'{kind}'.*\b1\b.*deployment\.minimum.*\b2\b"):
        run.run(tamper)
    assert run.state.round == 1
    run.run(resume=True)
    assert_same(run.state, run.simulated().state, **EXACT)


# --- a client's disk is lost ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "what", "reason"),
    [
        ("fedavg", "out", "joined"),
        ("fedavg", "out/federation.json", "joined"),
        ("scaffold", "out", "joined"),
        ("scaffold", "out/state", "state"),
        ("moon", "out/state", "state"),
    ],
)
def test_a_lost_disk(federation, warnings, method, what, reason):
    """The client says so, misses the round, is enrolled again and starts as a new one would."""
    run = federation(method, "training.rounds=4")

    def disk_dies(message, answer):
        place = run.out(1).parent / what
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        return answer()

    result = run.run(Fault("train", disk_dies, at=(1,)))
    enrolment_only = what.endswith("json")
    gone = run.simulated_without(missing("train"), {} if enrolment_only else {1: 1})
    assert_same(run.state, gone, **EXACT)
    assert [record.failed for record in result.rounds] == [0, 1, 0, 0]
    assert_one_line(warnings(), reason)


def test_a_disk_that_is_lost_before_the_round_begins(federation, warnings):
    """With two handshakes the first one finds out, and the server remembers after the second."""
    run = federation("scaffold,fedfm", "training.rounds=6")

    def disk_dies(message, answer):
        shutil.rmtree(run.out(1).parent / "out/state")
        return answer()

    result = run.run(Fault("measure", disk_dies, at=(2,)))
    assert_same(run.state, run.simulated_without(missing("measure", 3), {3: 1}), **EXACT)
    assert [record.failed for record in result.rounds] == [0, 0, 0, 1, 0, 0]
    assert_one_line(warnings(), "state")


@pytest.mark.parametrize("pattern", ["global-*", "state/*"])
@pytest.mark.parametrize("damage", ["removed", "cut"])
def test_a_lost_or_damaged_model(federation, warnings, pattern, damage):
    """Of a client that goes on from its own, between two sharings of models."""
    run = federation("fedfm-lite", *RARE)

    def disk_dies(message, answer):
        (file,) = run.out(1).glob(pattern)
        content = file.read_bytes()
        if damage == "removed":
            file.unlink()
        else:
            file.write_bytes(content[:-5])
        return answer()

    run.run(Fault("train", disk_dies, at=(1,)))
    assert_same(run.state, run.simulated_without(missing("train"), {1: 1}), **EXACT)
    assert_one_line(warnings(), "this client")


# --- a full disk ------------------------------------------------------------------------------


def fill(file: Path) -> None:
    """Let the disk be full when this file is written next: its content goes to /dev/full."""
    partial_path(file).symlink_to("/dev/full")


@on_linux
@pytest.mark.parametrize("name", ["state-000002.safetensors", "manifest.json"])
def test_the_servers_disk_is_full_while_it_writes_a_checkpoint(federation, name):
    """The server ends and names the file; the checkpoint before is whole, and it goes on."""
    run, undisturbed = federation("scaffold"), federation("scaffold")
    undisturbed.run()

    def disk_fills_up(message, answer):
        fill(run.folder / "server" / "checkpoint" / name)
        return answer()

    with pytest.raises(OSError, match="No space") as problem:
        run.run(Fault("train", disk_fills_up, at=(1,)))
    assert problem.value.filename.endswith(name)
    assert run.state.round == 1
    run.run(resume=True)
    assert_same(run.state, undisturbed.state)


def test_a_clients_disk_is_full_while_it_keeps_its_state(federation, warnings, caplog, monkeypatch):
    """Both sides say so; it misses the round and takes part in the next with the state before."""
    run = federation("scaffold", "training.rounds=4")

    def write(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def disk_fills_up(message, answer):
        with monkeypatch.context() as patch:
            patch.setattr(client_states, "write_atomically", write)
            return answer()

    result = run.run(Fault("train", disk_fills_up, at=(1,)))
    assert_same(run.state, run.simulated_without(missing("train")), **EXACT)
    assert [record.failed for record in result.rounds] == [0, 1, 0, 0]
    assert_one_line(warnings(), "its disk is full")
    (line,) = [line for line in caplog.messages if "make room" in line]
    assert "client-000001-000002.safetensors" in line
    assert not [record for record in caplog.records if record.exc_info]


@on_linux
def test_a_clients_disk_is_full_when_the_model_is_delivered(federation, warnings):
    """It gets the model when the server is started again."""
    run = federation("fedavg", "training.rounds=1")

    def disk_fills_up(message, answer):
        fill(run.out(1) / "model.safetensors")
        return answer()

    run.run(Fault("deliver", disk_fills_up))
    assert_one_line(warnings(), "its disk is full")
    assert not (run.out(1) / "model.safetensors").exists()
    run.run(resume=True)
    assert (run.out(1) / "model.safetensors").exists()


# --- secure sums ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["keys", "shares", "measure", "train"])
@pytest.mark.parametrize("deed", [silent, unheard])
def test_dead_in_a_secure_sum(federation, warnings, kind, deed):
    run = federation("fedfm", SECURE, "training.rounds=3")
    at = (2,) if kind in ("keys", "shares") else (1,) if kind == "train" else (0,)
    result = run.run(Fault(kind, deed, at=at))
    asked = "measure" if kind != "train" else "train"
    assert_same(run.state, run.simulated_without(missing(asked)), **QUANTISED)
    assert [record.failed for record in result.rounds] == [0, 1, 0]
    assert_one_line(warnings())


@pytest.mark.parametrize("deed", [silent, unheard, flower_error])
def test_dead_after_its_part_of_a_secure_sum(federation, warnings, deed):
    """What it sent counts: the others take its masks away."""
    run = federation("fedavg", SECURE)
    result = run.run(Fault("reveal", deed, at=(2,)))
    assert_same(run.state, run.simulated().state, **QUANTISED)
    assert [record.failed for record in result.rounds] == [0, 0, 0]
    assert_one_line(warnings())


def with_fact(name, value):
    return of_another_question(**{name: value})


@pytest.mark.parametrize(
    ("kind", "deed"),
    [
        ("keys", with_fact("public", "{}")),
        ("shares", with_fact("letters", {"0": "x"})),
        ("train", with_tensors(lambda words: {n: x[:-1] for n, x in words.items()})),
        ("train", bytes_for_tensors(b"\x17" * 1000)),
    ],
)
def test_a_bad_answer_in_a_secure_sum_is_left_out(federation, warnings, kind, deed):
    """More of them in test_sums.py."""
    run = federation("fedavg", SECURE, "training.rounds=2")
    run.run(Fault(kind, deed, at=(0,) if kind == "train" else (1,)))
    assert_same(run.state, run.simulated_without(missing("train", 0)), **QUANTISED)
    assert_one_line(warnings())


@pytest.mark.parametrize("kind", ["keys", "shares", "train", "reveal"])
def test_too_few_for_a_secure_sum(federation, kind):
    run = federation("fedavg", SECURE)
    number = {"keys": 2, "shares": 2, "train": 1, "reveal": 2}[kind]
    faults = {NODES[client]: Fault(kind, silent, client, at=(number,)) for client in (1, 2)}

    def tamper(message, answer):
        fault = faults.get(message.metadata.dst_node_id)
        return fault(message, answer) if fault else answer()

    left = 0 if kind == "shares" else 1
    with pytest.raises(TooFewClients, match=rf"\b{left}\b.*\b2\b"):
        run.run(tamper)
    assert run.state.round == 1
    run.run(resume=True)
    assert_same(run.state, run.simulated().state, **QUANTISED)


def test_packing_the_answer_again_changes_nothing(federation):
    """The tests' own tools are no fault."""
    run = federation("fedavg", "training.rounds=1")
    run.run(Fault("train", lambda message, answer: changed(answer(), lambda packet: packet)))
    assert_same(run.state, run.simulated_without(nobody_missing), **EXACT)
    assert pack(Packet({}))[FACTS]["json"] == "{}"


@pytest.mark.parametrize(("share", "chosen"), [(1.0, 4), (0.67, 2)])
def test_rounds_that_other_clients_measured_are_not_compared(
    federation, monkeypatch, share, chosen
):
    """The second round is the best by far, in the eyes of two; three came back, and have a say."""
    judged = iter([(0.5, (0, 1, 2)), (0.9, (0, 1)), (0.6, (0, 1, 2)), (0.7, (0, 1, 2))])

    def make_score(collected, measures):
        validation, judges = next(judged)
        return Score(validation, validation, judges=judges)

    monkeypatch.setattr("fedfm.deploy.server.server.make_score", make_score)
    fed = federation("fedavg", "training.rounds=4", f"training.participation={share}")
    result = fed.run()
    assert result.best.round == chosen
    kept = fed.progress.best
    assert kept is not None
    assert (kept.round, kept.judges) == (chosen, result.best.judges)
