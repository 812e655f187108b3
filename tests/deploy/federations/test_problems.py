"""Tables, texts and dicts, deployed: each site has its own file, and the simulation agrees."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from fedfm import UserError, data, load
from fedfm.config import Config, load_config
from fedfm.data.concatenate import join
from fedfm.data.dataset import Dataset
from fedfm.deploy.client.site import parse_site
from fedfm.deploy.packets import unpack
from fedfm.models import MODELS
from fedfm.run.prepare import build_model
from fedfm.run.simulation import Simulation
from tests.deploy.conftest import LIMIT, SETTINGS, Federation, assert_same, facts_of, write_site
from tests.deploy.federations.test_equality import assert_equal_runs

SITES = ("ankara", "bern", "cairo")
GOOD, BAD, NEUTRAL = ("good", "great"), ("bad", "dull"), ("film", "plot", "the", "a", "scene")
WORDS = (*NEUTRAL, *GOOD, *BAD)


def simulate_sites(run: Federation, datasets: Sequence[Dataset]) -> Federation:
    """The federation, with a simulation of these data sets, one for each site."""
    whole = join(dict(zip(SITES, datasets, strict=True)))
    made = Simulation(build_model(run.config, whole), whole, run.config)
    run.__dict__["simulation"] = made
    return run


def natural(tmp_path: Path, source: str, *overrides: str) -> Federation:
    """A federation of the files in tmp_path / "data", one for each site."""
    given = (f"data.name={source}", f"data.path={tmp_path / 'data'}", "partition={kind='natural'}")
    config = make_config(*given, *overrides)
    options = config.data.model_dump(exclude={"name", "path"}, exclude_none=True)
    datasets = []
    for number, name in enumerate(SITES):
        (file,) = (tmp_path / "data").glob(f"{name}.*")
        site = {"source": json.dumps(source), "path": json.dumps(str(file))}
        write_site(tmp_path / f"c{number}", name, site)
        datasets.append(data.load(source, path=file, **options))
    return simulate_sites(Federation(tmp_path, config), datasets)


def make_config(*overrides: str) -> Config:
    kept = [each for each in SETTINGS if not each.startswith(("data", "partition"))]
    clients = f"training.clients={len(SITES)}"
    return load_config("digits", (*kept, "method=fedavg", clients, *overrides))


# --- tables ---------------------------------------------------------------------------------------

CATEGORIES = "data.categories={sex=['f', 'm'], ward=['a', 'b', 'missing']}"
FILL = "data.fill={age=50, pressure=120}"


@pytest.fixture
def tables(tmp_path) -> Callable[..., Federation]:
    """Makes a federation of hospitals whose tables have gaps and categories."""
    (tmp_path / "data").mkdir()
    rng = np.random.default_rng(0)
    for number, name in enumerate(SITES):
        rows = []
        for _ in range(40 + 10 * number):
            ill = rng.random() < 0.3 + 0.2 * number
            age = "?" if rng.random() < 0.1 * number else f"{rng.normal(50 + 10 * ill, 8):.1f}"
            pressure = "" if number == 2 else f"{rng.normal(120 + 15 * ill, 10):.1f}"
            sex, ward = "fm"[int(rng.random() < 0.5)], "ab"[number % 2] if number else ""
            rows.append(f"{age},{pressure},{sex},{ward},{'ill' if ill else 'healthy'}")
        header = "age,pressure,sex,ward,label"
        (tmp_path / "data" / f"{name}.csv").write_text("\n".join([header, *rows]) + "\n")

    def make(*overrides: str) -> Federation:
        return natural(tmp_path, "csv", CATEGORIES, FILL, *overrides)

    return make


ADAMW = ("training.optimizer=adamw", "training.lr=0.005", "training.clip_norm=1.0")
COSINE = ("training.lr_schedule=cosine", "training.lr_final=0.1")


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("fedavg", ()),
        ("fedfm", (*ADAMW, *COSINE, "metrics=['auc', 'log_loss', 'macro_f1']")),
        ("scaffold", ("training.clip_norm=0.5", *COSINE)),
    ],
)
def test_tables_with_gaps_and_categories(tables, method, overrides):
    result, wanted = assert_equal_runs(tables(f"method={method}", *overrides))
    for ours, theirs in zip(result.rounds, wanted.records, strict=True):
        for split, values in theirs.metrics.items():
            for name, value in values.items():
                near = 0.05 if (split, name) == ("test", "auc") else 1e-4  # few samples in bins
                assert ours.metrics[split][name] == pytest.approx(value, abs=near), name


@pytest.mark.parametrize("method", ["fedbn", "ditto"])
def test_hospitals_with_models_of_their_own(tables, method):
    run = tables(f"method={method}", "model.norm=batch", *ADAMW)
    assert_equal_runs(run, accuracies=False)
    classifier = load(run.out(2))
    assert [column.name for column in classifier.data.columns] == ["age", "pressure", "sex", "ward"]
    assert classifier.data.columns[1].fill == 120


def test_a_hospital_with_a_category_that_nobody_agreed_on_says_so(tables, tmp_path):
    run = tables()
    file = tmp_path / "data" / "bern.csv"
    file.write_text(file.read_text() + "50,120,x,b,ill\n")
    site = parse_site({"name": "bern", "data": {"source": "csv", "path": str(file)}}, tmp_path)
    with pytest.raises(UserError, match=r"column 'sex': x is not among the categories"):
        site.load_data(run.config)


def test_a_site_of_its_own_may_give_other_categories_which_do_not_fit(tables, tmp_path):
    run = tables()
    data = {"source": "csv", "path": str(tmp_path / "data" / "bern.csv")}
    other = data | {"categories": {"sex": ["m", "f"], "ward": ["a", "b", "missing"]}}
    columns = [
        site.introduce(site.load_data(run.config)).columns
        for site in (parse_site({"name": "bern", "data": each}, tmp_path) for each in (data, other))
    ]
    assert columns[0][2:4] == ("sex = f", "sex = m")
    assert columns[1][2:4] == ("sex = m", "sex = f")


# --- texts ----------------------------------------------------------------------------------------

# The keys' bias of attention has no gradient but rounding, which Adam would turn into steps
SGD = ("training.optimizer=sgd", "training.lr=0.05", "training.weight_decay=0")


@pytest.fixture
def texts(tmp_path) -> Callable[..., Federation]:
    """Makes a federation of sites with short texts, some of whose words no list has."""
    (tmp_path / "data").mkdir()
    rng = np.random.default_rng(0)
    for number, name in enumerate(SITES):
        rows = []
        for n in range(30 + 10 * number):
            words = [*rng.choice(NEUTRAL, 3), rng.choice(GOOD if n % 2 else BAD), f"{name}{n % 4}"]
            rows.append(f"{' '.join(rng.permutation(words))}\t{'good' if n % 2 else 'bad'}")
        (tmp_path / "data" / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    (tmp_path / "words.txt").write_text("\n".join(WORDS) + "\n")

    def make(*overrides: str) -> Federation:
        given = (
            f"data.words={tmp_path / 'words.txt'}",
            "data.length=6",
            "model={name='transformer', width=16, layers=1, heads=2}",
        )
        return natural(tmp_path, "text", *given, *SGD, *overrides)

    return make


@pytest.mark.parametrize("method", ["fedavg", "fedfm", "fedper"])
def test_texts_of_every_site(texts, method):
    run = texts(f"method={method}")
    assert_equal_runs(run, accuracies=method != "fedper")
    if method != "fedper":
        classifier = load(run.folder / "server")
        assert classifier.data.vocabulary[2:] == WORDS


def test_texts_under_secure_sums(texts):
    secure = (
        "deployment.secure=true",
        "deployment.minimum=3",
        "deployment.classes=['bad', 'good']",
    )
    run = texts(*secure)
    result, wanted = run.run(), run.simulated()
    assert_same(run.state, wanted.state, rtol=1e-3, atol=1e-3)
    assert result.rounds[-1].test_accuracy == pytest.approx(wanted.records[-1].test_accuracy)


def test_no_message_of_a_client_has_a_word_of_its_texts(texts):
    seen: list[str] = []

    def noted(message, answer):
        reply = answer()
        seen.append(json.dumps(facts_of(reply)) + " ".join(unpack(reply.content, LIMIT).trees))
        return reply

    run = texts("training.rounds=1")
    run.run(noted)
    assert len(seen) > 3 * len(SITES)
    private = [f"{name}{n}" for name in SITES for n in range(4)]
    assert not [word for word in (*private, *NEUTRAL[:2], "great") for text in seen if word in text]


# --- arrays, and inputs that are dicts ------------------------------------------------------------

ARCHIVE = """
import torch
from fedfm.data import Dataset, Split

def tokens():
    draw = torch.Generator().manual_seed({seed})
    labels = torch.arange(60) % 2
    ids = torch.randint(2, 9, (60, 5), generator=draw)
    ids[:, 0] = labels
    mask = torch.rand(60, 5, generator=draw) < 0.8
    mask[:, 0] = True
    inputs = {{"ids": ids, "mask": mask}}
    parts = [{{k: v[rows] for k, v in inputs.items()}} for rows in (slice(45), slice(45, 60))]
    return Dataset(
        "tokens", Split(parts[0], labels[:45]), Split(parts[1], labels[45:]), ("no", "yes")
    )
"""


class MaskedMean(nn.Module):
    """The mean of the embeddings of tokens that the mask keeps, and a linear layer."""

    def __init__(self, shape: object, classes: int) -> None:
        super().__init__()
        assert shape == {"ids": (5,), "mask": (5,)}
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, classes)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        kept = mask.unsqueeze(-1).to(self.table.weight.dtype)
        features = (self.table(ids) * kept).sum(1) / kept.sum(1)
        return features, self.head(features)


def test_inputs_that_are_a_dict_of_ids_and_masks(tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS, "masked", MaskedMean)
    datasets = []
    for number, name in enumerate(SITES):
        folder, code = tmp_path / f"c{number}", ARCHIVE.format(seed=number)
        write_site(folder, name, {"source": '"python"', "entry": f'"archive{number}:tokens"'})
        (folder / f"archive{number}.py").write_text(code)
        space: dict[str, Any] = {}
        exec(code, space)
        datasets.append(space["tokens"]())
    model = ("model={name='masked'}", "partition={kind='natural'}", *ADAMW)
    config = make_config("method=fedfm", "fedfm.start_round=1", *model)
    assert_equal_runs(simulate_sites(Federation(tmp_path, config), datasets))


def test_a_site_file_names_a_source_that_there_is():
    with pytest.raises(UserError, match="did you mean 'text'"):
        parse_site({"name": "a", "data": {"source": "texts", "path": "x"}}, Path())


def test_arrays_of_every_site(tmp_path):
    (tmp_path / "data").mkdir()
    rng = np.random.default_rng(0)
    for name in SITES:
        labels = np.arange(40) % 2
        images = (rng.integers(0, 100, (40, 8, 8)) + 100 * labels[:, None, None]).astype(np.uint8)
        parts = {"train": slice(30), "test": slice(30, 40)}
        arrays: dict[str, Any] = {f"{part}_images": images[rows] for part, rows in parts.items()}
        arrays |= {f"{part}_labels": labels[rows] for part, rows in parts.items()}
        np.savez(tmp_path / "data" / f"{name}.npz", **arrays)
    assert_equal_runs(natural(tmp_path, "npz", "model={name='cnn'}"))
