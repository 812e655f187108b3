import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image

from fedfm.core.errors import UserError
from fedfm.report.partition_picture import draw_partition


def skewed(clients: int, classes: int) -> np.ndarray:
    return np.random.default_rng(0).geometric(0.01, (clients, classes)) - 1


@pytest.mark.parametrize(
    ("clients", "classes"), [(1, 1), (10, 10), (100, 10), (10, 100), (300, 2), (2, 300)]
)
def test_a_picture_of_any_shape_has_colours_and_a_sensible_size(tmp_path, clients, classes):
    names = [f"class {c}" for c in range(classes)]
    path = draw_partition(
        skewed(clients, classes), names, "Any shape", tmp_path / "new" / "picture.png"
    )
    assert path == tmp_path / "new" / "picture.png"
    with Image.open(path) as image:
        assert 600 < image.width < 3200
        assert 500 < image.height < 2000
        assert len(np.unique(np.asarray(image.convert("L")))) > 10


def test_an_svg_is_well_formed(tmp_path):
    path = draw_partition(skewed(4, 3), ["a", "b", "c"], "Four clients", tmp_path / "picture.svg")
    assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_names_with_dollars_and_a_table_of_nothing_are_drawn(tmp_path):
    assert draw_partition(
        np.zeros((2, 2), int), ["$", "a_$x$"], "50$ {", tmp_path / "p.png"
    ).exists()


def test_pyplot_is_left_alone(tmp_path):
    before = "matplotlib.pyplot" in sys.modules
    draw_partition(skewed(3, 3), list("abc"), "No pyplot", tmp_path / "p.png")
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_errors(tmp_path):
    with pytest.raises(UserError, match=r"\b2\b.*\b3\b"):
        draw_partition(skewed(2, 3), ["a", "b"], "", tmp_path / "p.png")
    with pytest.raises(UserError, match=r"\.png.*\.svg.*'\.gif'"):
        draw_partition(skewed(2, 2), ["a", "b"], "", tmp_path / "p.gif")
