"""Who may take part: clients come together, agree by name, and are told apart."""

import logging
import re
from itertools import count

import numpy as np
import pytest
from flwr.proto.node_pb2 import NodeInfo

from fedfm.core.checkpoint import Damaged
from fedfm.core.errors import UserError
from fedfm.core.sorting import natural_key
from fedfm.deploy.server.members import Members
from tests.deploy.conftest import NODES, Fault, Federation, facts_of, silent, write_site

KINDS = ("apple", "brick", "cloud")
CENTRES = 3 * np.eye(3, 4)
OWN = """
import numpy as np, torch
from fedfm.data import Dataset, Split
def made():
    table = torch.tensor(np.loadtxt({path!r}), dtype=torch.float32)
    split = Split(table[:, 1:], table[:, 0].long())
    return Dataset("own", split, split, {classes!r})
"""


def points(kind: str, samples: int, seed: int, columns: int = 4):
    """Samples of a class, which lies where its name says."""
    draw = np.random.default_rng(seed)
    near = CENTRES[KINDS.index(kind)] + 0.3 * draw.standard_normal((samples, 4))
    return np.tile(near, 2)[:, :columns]


def write_table(place, name, kinds, columns=4, shown=None):
    """A client with a CSV of these classes; `shown` says what it calls them."""
    place.mkdir(parents=True, exist_ok=True)
    header = ",".join("abcdefgh"[:columns])
    rows = [
        ",".join(f"{x:.3f}" for x in row) + f",{(shown or {}).get(kind, kind)}"
        for i, kind in enumerate(kinds)
        for row in points(kind, 30, i, columns)
    ]
    (place / "own.csv").write_text(f"{header},label\n" + "\n".join(rows) + "\n")
    write_site(place, name, {"source": '"csv"', "path": '"own.csv"'})


def write_entry(place, name, kinds):
    """A client with a function whose classes are in an order of its own."""
    place.mkdir(parents=True, exist_ok=True)
    rows = [[label, *row] for label, k in enumerate(kinds) for row in points(k, 30, label)]
    np.savetxt(place / "own.txt", np.array(rows))
    module = f"entry_of_{name}_{abs(hash(str(place)))}"
    (place / f"{module}.py").write_text(OWN.format(path=str(place / "own.txt"), classes=kinds))
    write_site(place, name, {"source": '"python"', "entry": f'"{module}:made"'})


@pytest.fixture
def meeting(federation):
    """Makes a federation whose clients bring their own; `write` is called with their folders."""

    def make(*writers, settings=()) -> Federation:
        given = ("training.rounds=4", "training.lr=0.1", f"training.clients={len(writers)}")
        made = federation("fedavg", *given, *settings, clients=0)
        for number, write in zip(count(), writers, strict=False):
            write(made.folder / f"c{number}")
        return Federation(made.folder, made.config)

    return make


def table_of(name, *kinds, **options):
    return lambda place: write_table(place, name, kinds, **options)


def entry_of(name, *kinds):
    return lambda place: write_entry(place, name, kinds)


# --- classes by name ------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [(), ("cloud", "apple", "brick")])
def test_classes_are_agreed_by_name(meeting, warnings, wanted):
    """Nobody has all of them, and everybody numbers them in another way."""
    run = meeting(
        table_of("one", "apple", "brick"),
        entry_of("two", "cloud", "brick"),
        table_of("three", "cloud", "apple"),
        settings=[f"deployment.classes={list(wanted)}", "training.rounds=10"],
    )
    result = run.run()
    assert run.server.clients.agreement.classes == (wanted or KINDS)
    assert result.test_accuracy > 0.95
    assert warnings() == []


@pytest.mark.parametrize(
    ("misfit", "settings", "pattern"),
    [
        (table_of("odd", "apple", columns=5), (), r"\b5 \(float32\).* 4 \(float32\)"),
        (
            table_of("odd", "apple", shown={"apple": "pear"}),
            ("deployment.classes=['apple', 'brick', 'cloud']",),
            r"'odd'.*\bpear\b.*\b3\b",
        ),
        (table_of("one", "apple"), (), "another client 'one'"),
    ],
)
def test_a_client_that_does_not_fit_is_refused_and_the_others_train(
    meeting, warnings, misfit, settings, pattern
):
    others = (table_of("one", "apple", "brick"), table_of("two", "brick", "cloud"))
    run = meeting(*others, misfit, settings=settings)
    result = run.run()
    (line,) = warnings()
    assert line.startswith(f"node {NODES[2]} is refused: ")
    assert re.search(pattern, line)
    assert run.server.clients.members.numbers == {"one": 0, "two": 1}
    assert len(result.rounds) == 4


def test_a_latecomer_that_does_not_fit_is_refused_once(meeting, warnings):
    others = (table_of("one", "apple", "brick"), table_of("two", "brick", "cloud"))
    run = meeting(*others, table_of("odd", "apple", columns=5))
    context = run.grid.contexts.pop(NODES[2])

    def tamper(message, answer):
        if facts_of(message).get("round") == 0:
            run.grid.contexts[NODES[2]] = context
        return answer()

    run.run(tamper)
    (line,) = warnings()
    assert re.search(r"\b5 \(float32\).* 4 \(float32\)", line)


def test_a_latecomer_takes_part_from_the_next_round_on(meeting, warnings):
    others = (table_of("one", "apple", "brick"), table_of("two", "brick", "cloud"))
    run = meeting(*others, table_of("late", "apple", "cloud"))
    context = run.grid.contexts.pop(NODES[2])

    def tamper(message, answer):
        if facts_of(message).get("round") == 1:
            run.grid.contexts[NODES[2]] = context
        return answer()

    result = run.run(tamper)
    sent = [record.floats_up for record in result.rounds]
    assert sent == [sent[0], sent[0], 1.5 * sent[0], 1.5 * sent[0]]
    assert run.server.clients.members.numbers["late"] == 2
    assert warnings() == []


def test_too_few_clients_that_fit(meeting):
    with pytest.raises(UserError, match="1 of at least 2 clients have joined"):
        meeting(table_of("one", "apple", "brick"), table_of("one", "apple")).run()


def test_no_client_at_all(meeting):
    run = meeting(table_of("one", "apple"), table_of("two", "apple"))
    run.grid.contexts.clear()
    with pytest.raises(UserError, match="0 of at least 2 clients have joined"):
        run.run()


def test_a_client_that_never_answers_a_greeting(meeting, warnings):
    """It costs a timeout each time, and nothing else."""
    tables = [table_of(name, "apple", "brick") for name in ("one", "two", "three")]
    result = meeting(*tables, settings=["training.rounds=2"]).run(
        Fault("hello", silent, at=range(10))
    )
    assert [record.failed for record in result.rounds] == [0, 0]
    assert len(warnings()) == 3


# --- names and numbers ----------------------------------------------------------------------------


def introduction(name: str, columns: str = "") -> dict[str, object]:
    known = {"name": name, "classes": ["a", "b"], "shape": [4], "dtype": "float32"}
    return known | {"columns": [*columns]}


def test_numbers_follow_names_as_people_count(tmp_path):
    members = Members(tmp_path / "members.json")
    told = {node: introduction(name) for node, name in enumerate(["c10", "c2", "c1"])}
    assert members.admit(told) == [0, 1, 2]
    assert members.numbers == {"c1": 0, "c2": 1, "c10": 2}
    assert sorted(["b", "a10", "a9", "10", "9"], key=natural_key) == ["9", "10", "a9", "a10", "b"]


def test_numbers_are_for_good(tmp_path):
    path = tmp_path / "members.json"
    members = Members(path)
    members.admit({1: introduction("x"), 2: introduction("y")})
    members.save()
    again = Members.load(path, ())
    assert (again.numbers, again.token) == (members.numbers, members.token)
    assert again.nodes == {}
    assert again.admit({9: introduction("y"), 8: introduction("a")}) == [1, 2]
    assert again.nodes == {1: 9, 2: 8}


def test_two_federations_have_different_tokens(tmp_path):
    assert Members(tmp_path / "a").token != Members(tmp_path / "b").token


def test_a_refused_node_is_asked_again_when_it_has_been_away(tmp_path, caplog):
    members = Members(tmp_path / "members.json")
    with caplog.at_level(logging.WARNING):
        members.admit({1: introduction("x"), 2: {"name": "?"}})
    assert members.find_strangers([1, 2]) == []
    assert members.find_strangers([1]) == []
    assert members.find_strangers([1, 2]) == [2]


def test_a_node_that_is_gone_is_forgotten_and_its_number_kept(tmp_path):
    members = Members(tmp_path / "members.json")
    members.admit({1: introduction("x"), 2: introduction("y")})
    members.close()
    assert members.find_strangers([2, 3]) == [3]
    assert members.nodes == {1: 2}
    assert members.admit({3: introduction("x")}) == [0]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"numbers": {"a": "b"}}', "\x00"])
def test_damaged_files_are_told(tmp_path, text):
    (tmp_path / "members.json").write_text(text)
    with pytest.raises(Damaged, match=r"members\.json"):
        Members.load(tmp_path / "members.json", ())


def test_nobody_takes_part_under_the_name_of_anothers_key(meeting, warnings, monkeypatch):
    """Flower knows which key a node has, and fedfm serve registers keys by name."""
    met = meeting(
        *(lambda place, n=name: write_table(place, n, KINDS) for name in ("one", "two", "three"))
    )
    registered = dict(zip(NODES, ("one", "two", "two"), strict=True))
    nodes = [NodeInfo(node_id=node, name=name) for node, name in registered.items()]
    looks = iter([nodes])
    monkeypatch.setattr(met.grid, "get_nodes", lambda: next(looks, nodes[:2]))
    met.run()
    assert set(met.server.clients.members.numbers) == {"one", "two"}
    assert [line for line in warnings() if "its name is 'three'" in line]


def test_who_was_refused_at_the_start_mends_it_and_comes_again(meeting, caplog):
    """A typing mistake at one client is no end of the federation, and that client hears of it."""
    wrong = table_of("two", "apple", "brick", shown={"brick": "birck"})
    met = meeting(
        table_of("one", *KINDS),
        wrong,
        settings=("deployment.classes=['apple', 'brick', 'cloud']", "deployment.wait=60"),
    )

    def mended(message, answer):
        reply = answer()
        if facts_of(message)["kind"] == "refused":
            write_table(met.folder / "c1", "two", ("apple", "brick"))
            context = met.grid.contexts.pop(NODES[1])
            met.grid.contexts[NODES[2]] = context
        return reply

    met.run(mended)
    assert set(met.server.clients.members.numbers) == {"one", "two"}
    (heard,) = [line for line in caplog.messages if "the server refuses this client" in line]
    assert "class birck" in heard


def test_until_it_begins_those_who_are_there_agree(tmp_path, caplog):
    """Whoever came first, and has gone, has no say; who is refused may turn out to be right."""
    members = Members(tmp_path / "members.json")
    swapped, right = "badc", "abcd"
    assert members.admit({1: introduction("c1", columns=swapped)}) == [0]
    members.admit({2: introduction("c2", columns=right)})
    assert members.nodes == {0: 1}
    assert re.search("'a'.*'b'", members.unsent[2])
    assert members.admit({3: introduction("c3", columns=right)}) == [0, 1]
    assert members.nodes == {0: 2, 1: 3}
    assert re.search("'b'.*'a'", members.unsent[1])
    members.unsent.clear()
    assert members.find_strangers([2, 3, 4]) == [4]
    assert members.find_strangers([3, 4]) == [4]
    assert members.nodes == {0: 3}
    assert members.unsent == {}, "nobody hears anything twice"
    members.close()
    assert members.find_strangers([4]) == [4]
    members.admit({4: introduction("c4", columns=swapped)})
    assert list(members.refused) == [4], "what was agreed stands"


def test_whose_data_were_trained_on_is_kept(tmp_path):
    """A report tells them from the config's."""
    members = Members(tmp_path / "members.json")
    members.admit({1: introduction("x") | {"share": True}})
    assert not members.own_data
    members.admit({2: introduction("y")})
    members.close()
    members.save()
    assert Members.load(tmp_path / "members.json", ()).own_data


def test_a_namesake_is_admitted_when_the_other_has_gone(tmp_path):
    members = Members(tmp_path / "members.json")
    members.admit({7: introduction("x")})
    members.admit({3: introduction("x"), 4: introduction("y")})
    assert members.nodes == {0: 7, 1: 4}
    assert "another client 'x'" in members.refused[3]
    members.find_strangers([3, 4])
    assert members.nodes == {0: 3, 1: 4}
    assert members.refused == {}
