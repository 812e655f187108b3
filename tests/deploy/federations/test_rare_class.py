"""What the server can tell about a class that one client has, from all bytes that it receives.

Two federations differ only in who has the class. All that the server can read of each client is
equal in both, and the rest looks random; so nothing tells which of the two it is.
"""

import json
import re

import pytest
import torch

from fedfm.core.errors import UserError
from fedfm.core.trees import Tree
from fedfm.deploy.agreement import hide_classes
from fedfm.deploy.checks import check_deployable
from fedfm.deploy.errors import Refusal
from fedfm.deploy.server.secure_sums import SecureSums
from tests.deploy.conftest import CLASSES, NODES, SECURE, facts_of, tensors_of, write_site
from tests.deploy.test_agreement import told

RARE = "kind3"
SIZE = 30
"""Rows of every client, of each kind of federation."""
SECRET = {"public", "letters", "shares"}
"""Facts that are keys, encrypted, or shares of random secrets."""


def write_table(folder, name, classes, seed):
    """A client's table with these classes."""
    draw = torch.Generator().manual_seed(seed)
    rows = [
        ",".join([*(f"{value:.4f}" for value in torch.randn(6, generator=draw).tolist()), label])
        for _, label in zip(range(SIZE), SIZE * [*classes], strict=False)
    ]
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "rows.csv").write_text("a,b,c,d,e,f,label\n" + "\n".join(rows) + "\n")
    write_site(folder / name, name, {"source": '"csv"', "path": '"rows.csv"'})


@pytest.fixture
def views(federation, monkeypatch):
    """A federation where `holder` has the class: its sums, and what the server gets of clients."""

    def make(holder: int, *overrides: str):
        run = federation("fedfm", "training.rounds=2", SECURE, *overrides)
        for client in range(3):
            classes = CLASSES if client == holder else CLASSES[:3]
            write_table(run.folder, f"c{client}", classes, seed=client)
        received: dict[int, list[tuple[str, Tree, Tree]]] = {client: [] for client in range(3)}

        totals: list[Tree] = []
        record = lambda collector, total, clients: totals.append(total)  # noqa: E731
        monkeypatch.setattr(SecureSums, "_check_total", record)

        def listen(message, answer):
            reply = answer()
            client = message.metadata.dst_node_id - NODES[0]
            kind = facts_of(message)["kind"]
            received[client].append((kind, facts_of(reply), tensors_of(reply)))
            return reply

        run.run(listen)
        return run, totals, received

    return make


def readable(facts):
    """The facts without what is random; of that, its form."""
    form = {
        key: re.sub(r"[0-9A-Za-z+/=_-]{20,}", "x", str(facts[key])) for key in SECRET & {*facts}
    }
    return json.dumps({k: v for k, v in facts.items() if k not in {*SECRET, "token"}} | form)


def test_nothing_that_the_server_receives_tells_who_has_a_class(views):
    (_, _, one), (_, _, other) = views(0), views(1)
    for client in range(3):
        assert len(one[client]) == len(other[client]) > 10
        for (kind, facts, tensors), (kind2, facts2, tensors2) in zip(
            one[client], other[client], strict=True
        ):
            assert kind == kind2
            assert readable(facts) == readable(facts2)
            assert len(json.dumps(facts)) == len(json.dumps(facts2))
            assert tensors.keys() == tensors2.keys()
            for name, words in tensors.items():
                assert name.startswith("words/")
                assert words.shape == tensors2[name].shape
                assert (words == tensors2[name]).double().mean() < 0.01


def test_no_hello_lists_the_classes_of_a_client(views):
    run, _, received = views(0)
    for client in range(3):
        (introduction,) = [f["introduction"] for k, f, _ in received[client] if k == "hello"]
        assert introduction["classes"] == CLASSES
        assert introduction["name"] == f"c{client}"
    text = (run.folder / "server/members.json").read_text()
    assert json.loads(text)["agreement"]["classes"] == CLASSES


def test_the_sum_over_the_class_is_known_but_not_whose_it_is(views):
    """It is the count of the only client that has the class, whoever that is."""
    for holder in (0, 1):
        _, totals, _ = views(holder)
        reports = [total["reports"] for total in totals if "reports" in total]
        counts = next(each["fedfm"]["count"] for each in reports if "fedfm" in each)
        assert 0 < int(counts[CLASSES.index(RARE)]) <= SIZE // len(CLASSES)
        assert int(counts[0]) > int(counts[CLASSES.index(RARE)])


# --- the config names the classes -----------------------------------------------------------------


def test_secure_sums_need_the_classes_in_the_config(federation):
    config = federation("fedavg", SECURE, "deployment.classes=[]").config
    with pytest.raises(UserError, match=r"^[^\n]*classes = \[[^\n]*$"):
        check_deployable(config)


def test_a_client_does_not_list_its_classes_whatever_the_server_asks():
    with pytest.raises(Refusal, match=r"deployment\.classes"):
        hide_classes(told("a", classes=("x", "y")), ())


def test_only_the_client_s_log_names_a_class_that_the_config_lacks(caplog):
    with pytest.raises(Refusal) as refusal:
        hide_classes(told("a", classes=("x", "scleroderma")), ("x", "y"))
    assert "scleroderma" not in str(refusal.value)
    assert "scleroderma" in caplog.text
    hidden = hide_classes(told("a", classes=("y",)), ("x", "y"))
    assert hidden.classes == ("x", "y")
