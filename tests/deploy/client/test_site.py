"""A client's own data: every kind of site file, mistakes in them, shares as the simulation's."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfm import data
from fedfm.config import Config, parse
from fedfm.core.errors import UserError
from fedfm.data import partition as partitions
from fedfm.data.augment import PAPERS
from fedfm.data.batches import plan_batches
from fedfm.data.holdout import hold_out, hold_out_client
from fedfm.deploy.agreement import Agreement, apply_agreement, introduce
from fedfm.deploy.client.site import load_site, parse_site
from fedfm.deploy.client.sources import CsvSource
from fedfm.deploy.normalisation import compute_normalisation
from fedfm.deploy.server.introductions import agree
from tests.data.samples import pixels, png, tree
from tests.test_docs import ROOT, blocks

DOCUMENT = ROOT / "docs/your-site.md"
CSV = {"source": "csv", "path": "patients.csv", "label": "diagnosis"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A site's folder; its modules are forgotten afterwards."""
    monkeypatch.setenv("FEDFM_DATA", str(tmp_path / "cache"))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write_data(folder: Path) -> None:
    """The images and the table that the document speaks of."""
    files = {
        f"{part}/{label}/{i}.png": png(pixels(i, 20, 20))
        for part, label, i in np.ndindex(2, 2, 5)
        for part, label in [(("train", "test")[part], ("healthy", "ill")[label])]
    }
    tree(folder / "scans", files)
    rows = [f"{i},{i % 7},{'yes' if i % 2 else 'no'}" for i in range(20)]
    letters = [f"letter number {i}\t{'soon' if i % 2 else 'later'}" for i in range(20)]
    (folder / "letters.tsv").write_text("text\tlabel\n" + "\n".join(letters) + "\n")
    (folder / "patients.csv").write_text("age,pressure,diagnosis\n" + "\n".join(rows) + "\n")


def python_site(folder: Path, code: str, entry: str = "own:made"):
    (folder / "own.py").write_text(code)
    return parse_site({"name": "c", "data": {"source": "python", "entry": entry}}, folder)


# --- the document ---------------------------------------------------------------------------------


def test_the_documented_site_files_work_as_they_are(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    write_data(folder)
    module, show = blocks(DOCUMENT, "python")
    (folder / "archive.py").write_text(module)
    (folder / "federation.toml").write_text("seed = 1\n")
    sites = {}
    for text in blocks(DOCUMENT, "toml"):
        name = text.split('"')[1]
        (folder / f"{name}.toml").write_text(text)
        sites[name] = load_site(Path(f"{name}.toml"))
    loaded = {name: site.load_data(Config()) for name, site in sites.items()}
    assert loaded["hospital-a"].shape == loaded["hospital-c"].shape == (1, 16, 16)
    assert loaded["hospital-a"].classes == loaded["hospital-c"].classes == ("healthy", "ill")
    assert loaded["hospital-b"].classes == ("no", "yes")
    assert (loaded["clinic-d"].shape, loaded["clinic-d"].classes) == ((64,), ("later", "soon"))
    assert sites["hospital-a"].out == folder / "runs/hospital-a"
    assert sites["hospital-a"].config == str(folder / "federation.toml")
    assert sites["hospital-b"].out == folder / "runs/hospital-b"
    assert sites["hospital-b"].introduce(loaded["hospital-b"]).columns == ("age", "pressure")
    assert len(loaded["digits-0"].test) == 36
    exec(show, {})
    said = capsys.readouterr().out
    assert "'classes': ['healthy', 'ill'], 'shape': [1, 16, 16], 'dtype': 'uint8'" in said
    assert str(folder) not in said


# --- site files -----------------------------------------------------------------------------------


def test_paths_are_relative_to_the_site_file(tmp_path):
    table = {"name": "a", "out": "kept", "config": "digits", "data": CSV}
    site = parse_site(table, tmp_path)
    assert site.out == tmp_path / "kept"
    assert site.config == "digits"
    assert isinstance(site.data, CsvSource)
    assert site.data.path == tmp_path / "patients.csv"
    (tmp_path / "digits").write_text("seed = 1")
    assert parse_site(table, tmp_path).config == str(tmp_path / "digits")
    elsewhere = parse_site({**table, "out": "/var/kept", "config": "~/my.toml"}, tmp_path)
    assert elsewhere.out == Path("/var/kept")
    assert elsewhere.config == str(Path.home() / "my.toml")


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"nmae": "b"}, "'nmae': did you mean 'name'"),
        ({"name": ""}, r"\b64\b.*''"),
        ({"name": "a/b"}, "'a/b'"),
        ({"name": "..", "out": "x"}, r"'\.\.'"),
        ({"name": "a" * 65}, r"\b64\b.*a{65}"),
        ({"name": 3}, "name: .*string"),
        ({"threads": -1}, r"threads: .*\b0\b"),
        ({"device": "gpu"}, "device: .*'cuda'"),
        ({"data": 3}, "data: "),
        ({"data": {}}, r"'source'.*\[data\].*folder, csv, parquet, npz, text, python"),
        ({"data": {"source": "cvs"}}, "'cvs': did you mean 'csv'"),
        ({"data": {"source": "csv"}}, r"'path'.*\[data\]"),
        ({"data": {**CSV, "lable": "x"}}, "'lable': did you mean 'label'"),
        ({"data": {**CSV, "size": 3}}, "'size'.*drop, fill, header, label, merge, missing"),
        ({"data": {"source": "folder", "path": "x", "size": 0}}, r"data\.size: "),
        ({"data": {"source": "python", "entry": "own.made"}}, "'package.module:function'"),
        ({"data": {"source": "python", "entry": "../own:made"}}, "'package.module:function'"),
        ({"data": {"source": "share", "share": 3, "of": 3}}, r"data\.share\b.*\b2\b.*\b3\b"),
        ({"data": {"source": "share", "share": 0}}, r"'of'.*\[data\]"),
    ],
)
def test_mistakes_in_a_site_file_are_explained(tmp_path, changes, pattern):
    with pytest.raises(UserError, match=f"^here: .*{pattern}"):
        parse_site({"name": "a", "data": CSV} | changes, tmp_path, "here")


def test_a_clients_table_may_have_gaps_columns_to_drop_and_labels_to_merge(tmp_path):
    rows = [f"{i},{'?' if i % 5 else i},{i},{i % 4}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["id,age,weight,label", *rows]))
    table: dict[str, Any] = {"source": "csv", "path": "t.csv", "drop": ["id"], "fill": "mean"}
    table["merge"] = {"ill": ["1", "2", "3"]}
    site = parse_site({"name": "a", "data": table}, tmp_path)
    own = site.load_data(Config())
    assert (own.classes, own.shape) == (("0", "ill"), (2,))
    assert site.introduce(own).columns == ("age", "weight")


def test_a_clients_categories_are_refused(tmp_path):
    rows = [f"{'mf'[i % 2]},{i % 2}" for i in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["sex,label", *rows]))
    site = parse_site({"name": "a", "data": {"source": "csv", "path": "t.csv"}}, tmp_path)
    with pytest.raises(UserError, match=r"row 2, column 'sex': 'm'"):
        site.load_data(Config())


def test_a_site_file_that_is_none_is_named(tmp_path):
    with pytest.raises(UserError, match=r"\bno\b.*a\.toml"):
        load_site(tmp_path / "a.toml")
    for content in (b"name = ", b"\xff"):
        (tmp_path / "a.toml").write_bytes(content)
        with pytest.raises(UserError, match=r"a\.toml.*TOML"):
            load_site(tmp_path / "a.toml")
    (tmp_path / "a.toml").write_text("name = 'a'")
    with pytest.raises(UserError, match=r"a\.toml: .*'data'"):
        load_site(tmp_path / "a.toml")


def test_a_client_may_hold_images_of_one_class(folder):
    image = png(pixels(1, 6, 6))
    tree(folder / "scans", {"train/ill/1.png": image, "test/ill/2.png": image})
    site = parse_site({"name": "a", "data": {"source": "folder", "path": "scans"}}, folder)
    assert site.load_data(Config()).classes == ("ill",)


# --- the Python entry point -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "pattern"),
    [
        ("made = 3", "'own:made'.*function"),
        ("other = 3", "'own'.*'made'"),
        ("import nothing_of_this_name", "'own'.*nothing_of_this_name"),
        ("def made(:", "'own'.*SyntaxError"),
        ("def made(): return 3", r"'own:made'.*\bint\b.*fedfm\.data\.Dataset"),
        ("def made(path): pass", "'own:made'.*TypeError"),
        ("def made(): return 1 / 0", "'own:made'.*ZeroDivisionError: division by zero"),
    ],
)
def test_an_entry_point_that_gives_no_data_says_why(folder, code, pattern):
    with pytest.raises(UserError, match=pattern):
        python_site(folder, code).load_data(Config())


def test_a_module_that_is_nowhere_is_wanted_beside_the_site_file(folder):
    site = python_site(folder, "", entry="nowhere_at_all.inner:made")
    with pytest.raises(UserError, match=rf"nowhere_at_all\.py\b.*{folder}"):
        site.load_data(Config())
    assert str(folder) not in sys.path


def test_a_module_may_import_its_neighbours_when_it_is_called(folder):
    (folder / "neighbour.py").write_text("from fedfm import data\ngiven = data.load('digits')\n")
    code = "def made():\n    from neighbour import given\n    return given\n"
    assert len(python_site(folder, code).load_data(Config()).classes) == 10


# --- shares ---------------------------------------------------------------------------------------


def config_of(kind: str = "niid1", clients: int = 4, seed: int = 3, **training: object) -> Config:
    return parse(
        {
            "seed": seed,
            "partition": {"kind": kind, "missing": 2},
            "training": {"clients": clients, **training},
        }
    )


def share_of(config: Config, client: int):
    table = {"source": "share", "share": client, "of": config.training.clients}
    return parse_site({"name": f"share-{client}", "data": table}, Path())


@pytest.mark.parametrize("kind", ["iid", "niid1", "niid2", "niid3"])
def test_shares_train_and_validate_on_the_simulations_samples(kind):
    config, whole = config_of(kind), data.load("digits")
    clients, seed = config.training.clients, config.seed
    labels = whole.train.labels.numpy()
    shards = partitions.deal_labels(labels, 10, clients, config.partition, seed)
    expected = zip(*hold_out(shards, 0.2, seed), strict=True)
    for client, simulated in enumerate(expected):
        own = share_of(config, client).load_data(config)
        for places, samples in zip(
            hold_out_client(client, np.arange(len(own.train)), 0.2, seed), simulated, strict=True
        ):
            assert np.array_equal(shards[client][places], samples)
            assert torch.equal(own.train.inputs[places], whole.train.inputs[samples])
            assert torch.equal(own.train.labels[places], whole.train.labels[samples])


@given(
    samples=st.sets(st.integers(0, 10**6), min_size=3, max_size=60).map(sorted),
    client=st.integers(0, 50),
    seed=st.integers(0, 10),
    keep_last=st.booleans(),
)
def test_places_in_a_shard_stand_for_its_samples(samples, client, seed, keep_last):
    shard = np.array(samples)
    by_sample = hold_out_client(client, shard, 0.3, seed)
    by_place = hold_out_client(client, np.arange(len(shard)), 0.3, seed)
    for samples_there, places in zip(by_sample, by_place, strict=True):
        assert np.array_equal(samples_there, shard[places])
    there, here = (
        plan_batches(training, epochs=2, batch_size=4, keep_last=keep_last, augmentation=PAPERS,
             key=(seed, 5, client))
        for training in (by_sample[0], by_place[0])
    )  # fmt: skip
    assert there.indices.tolist() == shard[here.indices].tolist()
    assert (there.sizes, there.seed) == (here.sizes, here.seed)
    assert there.draws is not None
    assert here.draws is not None
    assert torch.equal(there.draws, here.draws)


def test_shares_together_have_the_whole_test_set_and_its_normalisation():
    config, whole = config_of("niid3", clients=5), data.load("digits")
    sites = [share_of(config, client) for client in range(5)]
    shares = [site.load_data(config) for site in sites]
    assert sum(len(share.test) for share in shares) == len(whole.test)
    for client, share in enumerate(shares):
        assert torch.equal(share.test.inputs, whole.test.inputs[client::5])
        assert torch.equal(share.test.labels, whole.test.labels[client::5])
        assert (share.mean, share.std) == (whole.mean, whole.std)
    told = [site.compute_moments(share) for site, share in zip(sites, shares, strict=True)]
    mean, std = compute_normalisation({key: sum(each[key] for each in told) for key in told[0]})
    assert mean == pytest.approx(whole.mean, rel=1e-14)
    assert std == pytest.approx(whole.std, rel=1e-14)


def test_shares_agree_on_the_data_sets_own_classes_in_their_order(monkeypatch):
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    whole = replace(data.load("digits"), classes=names)
    monkeypatch.setattr("fedfm.run.prepare.load_data", lambda config: whole)
    config = config_of()
    shares = [share_of(config, client).load_data(config) for client in range(4)]
    agreement, refused = agree({k: introduce(f"c{k}", d) for k, d in enumerate(shares)})
    assert agreement == Agreement(classes=names, shape=(1, 8, 8), dtype="uint8")
    assert not refused
    for share in shares:
        assert torch.equal(apply_agreement(share, agreement).train.labels, share.train.labels)


@pytest.mark.parametrize("kind", ["natural", "feature"])
def test_shares_have_the_test_samples_of_their_client(monkeypatch, kind):
    names = ("north", "south", "west", "east")
    splits = [data.load("digits").train, data.load("digits").test]
    own = [replace(s, clients=torch.arange(len(s)) % 4) for s in splits]
    whole = replace(data.load("digits"), train=own[0], test=own[1], clients=names)
    monkeypatch.setattr("fedfm.run.prepare.load_data", lambda config: whole)
    config = config_of(kind)
    divided, shards = partitions.divide(whole, 4, config.partition, config.seed)
    for client in range(4):
        share = share_of(config, client).load_data(config)
        assert (share.clients, share.train.clients, share.test.clients) == ((), None, None)
        assert torch.equal(share.train.inputs, divided.train.inputs[shards[client]])
        assert torch.equal(
            share.test.inputs, divided.test.inputs[torch.as_tensor(divided.test.clients) == client]
        )


def test_a_share_of_another_number_of_clients_is_refused():
    with pytest.raises(UserError, match=r"\b4\b.*training\.clients\b.*\b3\b"):
        share_of(config_of(clients=4), 1).load_data(config_of(clients=3))
