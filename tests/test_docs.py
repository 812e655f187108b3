"""What the documents show is true: code runs, configs parse, links lead somewhere."""

import json
import re
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedfm import Partition, Training, simulate
from fedfm.config import builtin_names, load_config, parse
from fedfm.grid.recipe import expand_cells
from fedfm.methods import PIECES
from fedfm.metrics import METRICS
from fedfm.models import MODELS
from fedfm.paper.catalogue import load_recipe
from fedfm.run.prepare import build_model, load_data
from fedfm.run.runner import run_configs
from fedfm.verify import verify

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "bench/README.md"])


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


def test_the_readmes_python_prints_what_it_shows_up_to_rounding(capsys):
    (code,), (shown,) = (blocks(ROOT / "README.md", language) for language in ("python", "text"))
    exec(code, {})
    accuracy, floats = capsys.readouterr().out.split("%")
    assert floats == shown.split("%")[1]
    assert float(accuracy) == pytest.approx(float(shown.split("%")[0]), abs=3)


def test_the_places_that_the_architecture_names_are_there():
    text = (ROOT / "docs/architecture.md").read_text()
    named = re.findall(r"`([\w/]+(?:\.py|/))`", text)
    assert len(named) > 40
    for path in named:
        assert (ROOT / "src/fedfm" / path).exists() or (ROOT / path).exists(), path
    rooms = {each.name for each in (ROOT / "src/fedfm").iterdir() if each.is_dir()}
    assert {path.split("/")[0] for path in named} >= rooms - {"__pycache__"}


def test_the_documented_config_is_the_default_and_names_every_key():
    text, *examples = blocks(ROOT / "docs/configs.md", "toml")
    table, default = tomllib.loads(text), parse({}).as_toml()
    dominance = [each["partition"].pop("dominance") for each in (table, default)]
    assert dominance[0] == pytest.approx(dominance[1])
    assert table == default
    for example in examples:
        assert parse(tomllib.loads(example)).as_toml() != default


def run_blocks(path: Path, capsys) -> str:
    """Run a document's Python from top to bottom; returns what it printed."""
    scope: dict[str, object] = {}
    for code in blocks(path, "python"):
        exec(code, scope)
    return capsys.readouterr().out


def test_the_optimizer_guide_s_config_parses_and_its_python_runs(capsys):
    path = ROOT / "docs/training.md"
    (text,) = blocks(path, "toml")
    training = parse(tomllib.loads(text)).training
    assert (training.optimizer, training.clip_norm) == ("adamw", 1.0)
    assert training.schedule.depends_on_total
    assert re.fullmatch(r"\{'task': [\d.]+\}\n", run_blocks(path, capsys))


def test_the_worked_example_of_a_method_runs_and_is_registered(capsys):
    try:
        said = run_blocks(ROOT / "docs/add-a-method.md", capsys)
        assert re.fullmatch(r"gentleprox\+fedfm [\d.]+%\n", said)
        config = load_config("digits", ["method=gentleprox", "gentleprox.mu=0.5"])
        assert config.method == {"gentleprox": {"mu": 0.5, "visits": 3}}
        short = ["method=growingfm", "growingfm.strength=1.0", "growingfm.start_round=1"]
        growing = load_config("digits", short)
        digits = load_data(growing)
        one, other = (
            simulate(
                build_model(growing, digits),
                digits,
                load_config("digits", [*short, f"growingfm.grow={grow}"]).composed.pieces,
                training=Training(rounds=3, epochs=1, clients=3),
                partition=Partition("iid"),
                executor="stacked",
            )
            for grow in (1, 100)
        )
        assert (one.rounds[1].train_loss or 0) > (other.rounds[1].train_loss or 0)
        assert verify(PIECES["lookahead"]()).passed
    finally:
        for name in ("gentleprox", "growingfm", "owninput", "lookahead", "prior"):
            PIECES.pop(name, None)


def test_the_guide_to_metrics_runs(capsys):
    before = dict(METRICS)
    try:
        said = run_blocks(ROOT / "docs/metrics.md", capsys)
        assert parse({"metrics": "top2"}).measures.metrics[1].name == "top2"
    finally:
        METRICS.clear()
        METRICS.update(before)
    assert "False" not in said
    (text,) = blocks(ROOT / "docs/metrics.md", "toml")
    assert parse(tomllib.loads(text)).training.select_by == "macro_f1"


def test_the_guide_to_metrics_has_every_metric():
    named = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    assert {*METRICS} <= {*named}


def test_the_examples_with_own_data_and_model_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDFM_DATA", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for part, number in (("train", 40), ("test", 5)):
        for label, brightness in (("healthy", 60), ("ill", 160)):
            folder = tmp_path / "scans" / part / label
            folder.mkdir(parents=True)
            for i in range(number):
                pixels = rng.normal(brightness, 20, (20, 20)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{i:04d}.png")
    rows = [
        f"{c + rng.normal():.3f},{rng.normal():.3f},{'yes' if c else 'no'}" for c in [0, 4] * 60
    ]
    (tmp_path / "patients.csv").write_text("age,pressure,diagnosis\n" + "\n".join(rows) + "\n")
    said = run_blocks(ROOT / "docs/own-data-and-model.md", capsys)
    assert re.fullmatch(
        r"(\d+%\n){3}torch.Size\(\[60, 16\]\) torch.Size\(\[60, 3\]\)\n(\d+%\n){3}", said
    )
    MODELS.pop("mine")
    images, text = map(tomllib.loads, blocks(ROOT / "docs/own-data-and-model.md", "toml"))
    assert parse(images).data.path == "scans"
    options = {"width", "layers", "heads", "dropout", "head"}
    assert parse(text).model.options.keys() == options


def test_the_examples_of_clients_with_their_own_data_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDFM_DATA", str(tmp_path / "cache"))
    make_client_data(tmp_path)
    page = ROOT / "docs/client-data.md"
    sections = [tomllib.loads(text) for text in blocks(page, "toml")]
    assert sections[0] == {"partition": {"kind": "natural"}}
    clients = []
    for section in sections[1:]:
        (result,) = run_configs([parse(section | {"executor": "loop"})])
        clients.append(len(result.best.client_accuracies))
    assert clients == [4, 3, 2, 2, 2]
    assert run_blocks(page, capsys) == "3\n2\n2\n3\n"


def make_client_data(folder: Path) -> None:
    """Write the files that the page about clients with their own data names."""
    rng = np.random.default_rng(0)
    (folder / "hospitals").mkdir()
    for name in ("cleveland", "hungarian", "switzerland", "virginia"):
        numbers = rng.integers(0, 5, (40, 14)).astype(str)
        numbers[::7, 4] = "?"
        rows = "\n".join(",".join(row) for row in numbers)
        (folder / "hospitals" / f"{name}.csv").write_text(rows)
    sites = [f"{i},{i % 9},{'nsw'[i % 3]},{'yes' if i % 2 else 'no'}" for i in range(90)]
    (folder / "patients.csv").write_text("\n".join(["id,age,site,diagnosis", *sites]))
    for name, part, label in product(("north", "south"), ("train", "test"), ("healthy", "ill")):
        (folder / "scans" / name / part / label).mkdir(parents=True)
        for i in range(6):
            pixels = rng.integers(0, 256, (20, 20), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "scans" / name / part / label / f"{i}.png")
    arrays: dict[str, Any] = {}
    for part, n in (("train", 40), ("val", 10), ("test", 20)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (n, 16, 16), dtype=np.uint8)
        arrays[f"{part}_labels"] = np.arange(n)[:, None] % 2
        arrays[f"{part}_clients"] = np.arange(n) // 2 % 2
    np.savez(folder / "cells.npz", **arrays)
    (folder / "clients.json").write_text(json.dumps([[*range(50)], [*range(60, 100)]]))


def test_the_examples_with_a_trained_model_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = run_blocks(ROOT / "docs/after-training.md", capsys)
    shape, accuracy, same, own = said.splitlines()
    assert shape.startswith("torch.Size([359, 10]) ['")
    assert [accuracy[-1], same, own[-1]] == ["%", "True", "%"]


def test_the_configs_of_real_problems_parse():
    paths = sorted((ROOT / "docs/problems").glob("*.toml"))
    kinds = {path.stem: load_config(str(path)).partition.kind for path in paths}
    assert kinds == {
        "four-cameras": "natural",
        "heart-disease": "natural",
        "sentences": "dirichlet",
    }


def test_the_recipe_of_ones_own_has_its_six_cells(tmp_path):
    (text,) = blocks(ROOT / "docs/experiments.md", "toml")
    (tmp_path / "mine.toml").write_text(text)
    found = list(expand_cells(load_recipe(str(tmp_path / "mine.toml"))))
    assert len(found) == 6
    assert {each.resolved.composed.name for each in found} == {"fedavg", "fedfm", "scaffold"}
    assert {each.resolved.training.clients for each in found} == {5, 20}


@pytest.mark.parametrize("name", builtin_names())
def test_built_in_configs_parse(name):
    assert load_config(name).composed.name == "fedfm"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_program_for_several_processes_runs_in_one(capsys):
    assert run_blocks(ROOT / "docs/scale.md", capsys) == "2\n"
