"""Data sets of the library `datasets`, by a stand-in and, where it is installed, by itself."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedfm.core.errors import UserError
from fedfm.data import from_hugging_face
from tests.data.samples import assert_holds, pixels


class Table(dict[str, Any]):
    """A table as the library has it: columns by name, and features."""

    @property
    def column_names(self) -> list[str]:
        return list(self)

    @property
    def features(self) -> dict[str, Any]:
        return {"label": SimpleNamespace(names=["cat", "dog"]), "image": SimpleNamespace()}


def images_of(seed: int, n: int, *shape: int) -> Table:
    images = [Image.fromarray(image) for image in pixels(seed, n, *shape)]
    return Table(image=images, label=[i % 2 for i in range(n)], site=["a", "b", "b"] * (n // 3))


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3)])
def test_images_become_tensors_with_channels_first(shape):
    data = from_hugging_face(images_of(0, 6, *shape), images_of(1, 3, *shape), inputs="image")
    assert (data.shape, data.classes) == (
        (shape[2] if len(shape) == 3 else 1, 5, 4),
        ("cat", "dog"),
    )
    expected = pixels(0, 6, *shape)
    expected = expected[:, None] if len(shape) == 2 else expected.transpose(0, 3, 1, 2)
    assert_holds(data.train, expected, [0, 1] * 3)
    assert len(data.test) == 3


def test_a_column_names_the_clients():
    train, test = images_of(0, 6, 5, 4), images_of(1, 3, 5, 4)
    data = from_hugging_face(train, test, inputs="image", client="site")
    assert data.clients == ("a", "b")
    assert data.train.clients is not None
    assert data.test.clients is not None
    assert data.train.clients.bincount().tolist() == [2, 4]
    assert data.test.clients.bincount().tolist() == [1, 2]


def test_columns_of_numbers_become_features_and_a_fifth_is_for_testing():
    table = Table(age=range(20), weight=np.arange(20) / 2, kind=["x", "y"] * 10)
    data = from_hugging_face(table, inputs=["age", "weight"], label="kind")
    assert (data.shape, data.classes, len(data.test)) == ((2,), ("x", "y"), 4)
    assert torch.equal(data.train.inputs[:, 0], 2 * data.train.inputs[:, 1])


def test_arrays_of_numbers_become_floats():
    table = Table(signal=[[i, i + 1.0, 2.0] for i in range(20)], label=[0, 1] * 10)
    data = from_hugging_face(table, inputs="signal")
    assert (data.shape, data.train.inputs.dtype) == ((3,), torch.float32)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"inputs": "img"}, "'img'"),
        ({}, {"inputs": "image", "label": "labels"}, "did you mean 'label'"),
        ({}, {"inputs": "image", "client": "sites"}, "did you mean 'site'"),
        ({"image": [np.zeros((2, 2)), np.zeros((3, 3))] * 3}, {"inputs": "image"}, "same size"),
        ({"image": ["some text"] * 6}, {"inputs": "image"}, "not images"),
        ({"image": list(range(6))}, {"inputs": "image"}, "in a list"),
        ({"age": ["old"] * 6}, {"inputs": ["age"]}, "as numbers"),
        ({"site": ["a"] * 6}, {"inputs": "image", "client": "site"}, "one client"),
    ],
)
def test_columns_that_cannot_be_used_are_named(changes, options, message):
    table = Table(images_of(0, 6, 5, 4) | changes)
    with pytest.raises(UserError, match=message):
        from_hugging_face(table, **options)


def test_the_library_itself_is_understood():
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["no", "yes"])
    features = datasets.Features(
        {"x": datasets.Value("float32"), "label": names, "site": datasets.Value("string")}
    )
    columns = {"x": [float(i) for i in range(20)], "label": [0, 1] * 10, "site": ["a", "b"] * 10}
    table = datasets.Dataset.from_dict(columns, features=features)
    data = from_hugging_face(table, inputs=["x"], client="site")
    assert (data.classes, data.clients, len(data.train)) == (("no", "yes"), ("a", "b"), 16)
