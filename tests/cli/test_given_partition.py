"""Runs of given clients by the command line: columns, files of index lists, bad input."""

import json

import numpy as np
import pytest

from fedfm import Partition, UserError
from fedfm.config import load_config, parse
from fedfm.grid.identity import digest
from fedfm.run.prepare import follow_data, load_data
from tests.run.test_given_partition import DIGITS, LISTS, recorded, run, same


@pytest.fixture
def config(tmp_path, monkeypatch) -> str:
    """A config of a table with a column of sites."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal() + i % 2:.3f},{'nsw'[i % 3]},{'ab'[i % 2]}" for i in range(300)]
    (tmp_path / "sites.csv").write_text("\n".join(["x,site,label", *rows]))
    (tmp_path / "sites.toml").write_text(
        'method = "fedavg"\nexecutor = "stacked"\n[data]\nname = "csv"\npath = "sites.csv"\n'
        'client = "site"\n[model]\nname = "mlp"\n[partition]\nkind = "natural"\n'
        "[training]\nrounds = 2\nepochs = 1\n"
    )
    return "sites.toml"


def test_natural_clients_of_a_table_run_and_resume(config, command, tmp_path):
    answer = command("run", config, "--out", "run", "--format", "json")
    assert answer.code == 0
    assert len(json.loads(answer.out)["client_accuracies"]) == 3
    assert recorded(tmp_path / "run")["training"]["clients"] == 3
    assert "3 clients" in answer.err
    for again in (["run", config, "--out", "run", "--resume"], ["run", "run", "--resume"]):
        assert command(*again).code == 0


def test_a_config_with_its_number_of_clients_is_known_as_the_same(config):
    given = load_config(config)
    resolved, data = follow_data(given, load_data(given))
    assert (given.training.clients, resolved.training.clients) == (10, 3)
    assert data.clients == ("n", "s", "w")
    assert digest(resolved.as_toml()) == digest(given.as_toml())
    even = load_config(config, ["partition.kind=iid"])
    assert follow_data(even, data)[0] is even
    assert digest(even.with_clients(3).as_toml()) != digest(even.as_toml())


def test_the_number_of_clients_is_checked_with_what_privacy_needs(config):
    private = load_config(config, ["privacy.noise=1.0", "deployment.minimum=5"])
    with pytest.raises(UserError, match=r"minimum.*\b3\b"):
        follow_data(private, load_data(private))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.client=x"], "one"),
        (["data.client=nowhere"], "'nowhere'"),
        (["clients=7"], "clients = 7"),
        (["kind=own"], "partition.file"),
        (["kind=own", "file=none.npy"], "none.npy"),
        (["kind=own", "file=ids.txt"], ".npy or .json"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(config, command, tmp_path, changes, message):
    before = sorted(tmp_path.iterdir())
    if changes == ["data.client=x"]:
        (tmp_path / "sites.csv").write_text("y,x,label\n1,n,a\n2,n,b\n3,n,a\n4,n,b\n")
    sets = [word for change in changes for word in ("--set", change)]
    answer = command("run", config, "--out", "run", *sets)
    assert answer.code == 2
    assert message in answer.err
    assert len(answer.err.strip().splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def test_data_without_clients_are_no_natural_partition(command, tmp_path):
    answer = command("run", "digits", "--set", "kind=natural", "--out", "run")
    assert answer.code == 2
    assert "data.client" in answer.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", ["npy", "json"])
def test_a_file_may_hold_an_own_partition(tmp_path, monkeypatch, command, suffix):
    monkeypatch.chdir(tmp_path)
    ids = (np.arange(len(DIGITS.train)) % 3).tolist()
    if suffix == "npy":
        np.save("ids.npy", np.array(ids))
    else:
        lists = {name: [i for i, k in enumerate(ids) if k == c] for c, name in enumerate("nsw")}
        (tmp_path / "ids.json").write_text(json.dumps(lists))
    own = Partition("own", file=f"ids.{suffix}")
    found = run(partition=own, out="run")
    assert same(found, run(partition=ids))
    run(partition=own, out="run", resume=True)
    assert command("run", "run", "--resume").code == 0
    job, known = (parse({"partition": {"kind": "own", "file": f"ids.{suffix}", "digest": d}})
                  for d in ("", recorded(tmp_path / "run")["partition"]["digest"]))  # fmt: skip
    assert digest(job.as_toml()) == digest(known.as_toml())
    np.save("ids.npy", np.array(ids[::-1]))
    (tmp_path / "ids.json").write_text(json.dumps(ids[::-1]))
    assert command("run", "run", "--resume").code == 2


def test_a_recorded_own_partition_cannot_be_run_without_its_lists(tmp_path, command):
    run(partition=LISTS, out=tmp_path / "run")
    answer = command("run", str(tmp_path / "run"), "--resume")
    assert answer.code == 2
    assert "partition.file" in answer.err
    assert answer.err.count("\n") == 1
