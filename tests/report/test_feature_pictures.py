"""Pictures of feature spaces."""

import sys
import xml.etree.ElementTree as ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image

from fedfm import FedAvg, FedFM, Partition, Training, data, models
from fedfm.config import make_config
from fedfm.core.errors import UserError
from fedfm.core.rng import torch_seed
from fedfm.features.feature_space import LocalSpaces
from fedfm.paper.pictures import compute_local_spaces
from fedfm.report import features
from fedfm.report.features import COLOURS, Panel, draw_clients, draw_methods


def panel(title: str, classes: int = 3, samples: int = 60) -> Panel:
    rng = np.random.default_rng(0)
    labels = np.arange(samples) % classes
    features = 5 * rng.normal(size=(classes, 8))[labels] + rng.normal(size=(samples, 8))
    return Panel(title, features.astype(np.float32), labels, {"nmi": 0.5, "silhouette": 0.25})


def colours_of(path) -> set[tuple[int, ...]]:
    with Image.open(path) as image:
        return {
            tuple(pixel) for pixel in np.unique(np.asarray(image)[..., :3].reshape(-1, 3), axis=0)
        }


def test_a_panel_for_each_method_with_every_class_in_its_colour(tmp_path):
    panels = [panel("fedavg"), panel("fedfm")]
    path = draw_methods(panels, list("abc"), tmp_path / "new" / "p.png", title="Two")
    with Image.open(path) as image:
        assert image.width > 1.3 * image.height
    whole = {tuple(round(255 * part) for part in to_rgb(colour)) for colour in COLOURS[:3]}
    assert whole <= colours_of(path)


def test_the_text_of_a_picture(tmp_path, monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    panels = [panel("fedavg"), panel("a_$x$")]
    path = draw_methods(panels, ["cat", "dog", "5$"], tmp_path / "p.svg", title="50$ {")
    said = " ".join(ElementTree.parse(path).getroot().itertext())
    for words in ("fedavg", "a_$x$", "cat", "dog", "5$", "anchor", "50$ {", "NMI 0.500", "0.250"):
        assert words in said


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_a_picture_is_bit_for_bit_the_same_again(tmp_path, kind):
    first, second = (
        draw_methods([panel("one")], list("abc"), tmp_path / f"{i}.{kind}").read_bytes()
        for i in range(2)
    )
    assert first == second


def test_at_most_so_many_points_are_placed(tmp_path, monkeypatch):
    placed = []

    def place(features, seed):
        placed.append(len(features))
        return np.zeros((len(features), 2))

    monkeypatch.setattr(features, "embed", place)
    draw_methods([panel("one")], list("abc"), tmp_path / "p.png", points=20)
    assert placed == [20 + 3]


def test_a_hundred_classes_have_a_hundred_looks_and_no_legend_of_names(tmp_path, monkeypatch):
    assert len({tuple(features._class_style(label).values()) for label in range(100)}) == 100
    monkeypatch.setattr(features, "embed", lambda f, seed: f[:, :2])
    many = panel("many", classes=100, samples=400)
    path = draw_methods([many] * 5, [f"class {c}" for c in range(100)], tmp_path / "p.png")
    with Image.open(path) as image:
        assert image.height < image.width < 3000


@pytest.fixture
def two_clients() -> list[LocalSpaces]:
    """Local spaces of two clients, each with mostly five digits, after FedAvg's and FedFM's round.

    An illustration: some rounds later the clients of both methods agree.
    """
    torch.set_num_threads(1)  # a grid in this process may have set another number
    digits = data.load("digits")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(0, "model"))
        model = models.build("cnn", shape=digits.shape, classes=10, norm="batch")
    partition = Partition("niid2", dominance=9)
    training = Training(clients=2, rounds=1, batch_size=32)
    settings = {"partition": partition, "training": training, "executor": "stacked", "seed": 0}
    pieces = {"FedAvg": FedAvg(), "FedFM": FedFM(strength=5.0, start_round=0)}
    return [
        compute_local_spaces(title, model, digits, make_config(piece, **settings))
        for title, piece in pieces.items()
    ]


def test_two_clients_agree_more_with_fedfm_than_with_fedavg(two_clients, tmp_path):
    averaged, matched = two_clients
    assert (averaged.title, matched.title) == ("FedAvg", "FedFM")
    assert averaged.features.shape[:2] == (2, len(averaged.labels))
    assert matched.gap < 0.85 * averaged.gap
    assert matched.silhouette > 1.25 * averaged.silhouette
    path = draw_clients([averaged, matched], list("0123456789"), tmp_path / "p.png", points=50)
    with Image.open(path) as image:
        assert image.width > 1.3 * image.height


def test_clients_are_told_apart_by_their_marks(tmp_path, monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    own = panel("one")
    space = LocalSpaces("three clients", np.stack([own.features] * 3), own.labels)
    path = draw_clients([space], list("abc"), tmp_path / "p.svg")
    said = " ".join(ElementTree.parse(path).getroot().itertext())
    for words in (
        "client 1",
        "client 2",
        "client 3",
        "three clients",
        "gap between the clients 0.00",
    ):
        assert words in said


def test_pyplot_is_left_alone(tmp_path):
    before = "matplotlib.pyplot" in sys.modules
    draw_methods([panel("one")], list("abc"), tmp_path / "p.png")
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_errors(tmp_path):
    with pytest.raises(UserError, match=r"\.png.*\.svg.*'\.gif'"):
        draw_methods([panel("one")], list("abc"), tmp_path / "p.gif")
    with pytest.raises(UserError, match="nothing"):
        draw_methods([], list("abc"), tmp_path / "p.png")
