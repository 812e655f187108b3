"""Data sets of the library `datasets`, made in memory."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedfm
from fedfm.core.errors import UserError
from fedfm.data import from_hugging_face
from tests.data.samples import assert_holds, pixels

if TYPE_CHECKING:
    import datasets


def table_of(columns: dict[str, Any]) -> "datasets.Dataset":
    """Return a table whose labels have names if they are numbers."""
    import datasets  # takes seconds: only where these tests run

    table = datasets.Dataset.from_dict(columns)
    if isinstance(columns["label"][0], int):
        table = table.cast_column("label", datasets.ClassLabel(names=["cat", "dog"]))
    return table


def columns_of(seed: int, n: int, *shape: int) -> dict[str, Any]:
    images = [Image.fromarray(image) for image in pixels(seed, n, *shape)]
    return {"image": images, "label": [i % 2 for i in range(n)], "site": ["a", "b", "b"] * (n // 3)}


def images_of(seed: int, n: int, *shape: int) -> "datasets.Dataset":
    return table_of(columns_of(seed, n, *shape))


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
    columns = {"age": range(20), "weight": np.arange(20) / 2, "label": ["x", "y"] * 10}
    data = from_hugging_face(table_of(columns), inputs=["age", "weight"])
    assert (data.shape, data.classes, len(data.test)) == ((2,), ("x", "y"), 4)
    assert torch.equal(data.train.inputs[:, 0], 2 * data.train.inputs[:, 1])


def test_arrays_of_numbers_become_floats():
    columns = {"signal": [[i, i + 1.0, 2.0] for i in range(20)], "label": [0, 1] * 10}
    data = from_hugging_face(table_of(columns), inputs="signal")
    assert (data.shape, data.train.inputs.dtype) == ((3,), torch.float32)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"inputs": "img"}, "'img'"),
        ({}, {"inputs": "image", "label": "labels"}, "did you mean 'label'"),
        ({}, {"inputs": "image", "client": "sites"}, "did you mean 'site'"),
        ({"image": [[1.0, 2.0], [1.0, 2.0, 3.0]] * 3}, {"inputs": "image"}, "same size"),
        ({"image": ["some text"] * 6}, {"inputs": "image"}, "not images"),
        ({"image": list(range(6))}, {"inputs": "image"}, "in a list"),
        ({"age": ["old"] * 6}, {"inputs": ["age"]}, "as numbers"),
        ({"site": ["a"] * 6}, {"inputs": "image", "client": "site"}, "one client"),
    ],
)
def test_columns_that_cannot_be_used_are_named(changes, options, message):
    table = table_of(columns_of(0, 6, 5, 4) | changes)
    with pytest.raises(UserError, match=message):
        from_hugging_face(table, **options)


def test_a_part_in_another_order_and_format_is_read_as_it_stands():
    columns = {"x": [float(i) for i in range(20)], "label": [0, 1] * 10}
    table = table_of(columns).shuffle(seed=0).with_format("numpy")
    data = from_hugging_face(table, table.select(range(5)), inputs=["x"])
    assert torch.equal(data.train.inputs.flatten() % 2, data.train.labels.float())
    assert sorted(data.test.inputs.flatten().tolist()) == sorted(table[:5]["x"])


def test_the_parts_of_a_dataset_dict_are_train_and_test():
    import datasets

    parts = datasets.DatasetDict(train=images_of(0, 6, 5, 4), test=images_of(1, 3, 5, 4))
    data = from_hugging_face(parts["train"], parts["test"], inputs="image")
    assert (len(data.train), len(data.test)) == (6, 3)


def test_simulate_runs_on_clients_of_a_column():
    columns = {
        "x": [float(i % 7) for i in range(60)],
        "label": [0, 1] * 30,
        "site": ["a"] * 30 + ["b"] * 30,
    }
    data = from_hugging_face(table_of(columns), inputs=["x"], client="site")
    training = {"rounds": 1, "epochs": 1}
    result = fedfm.simulate("mlp", data, "fedavg", partition={"kind": "natural"}, training=training)
    assert result.clients is not None
    assert len(result.clients.values["accuracy"]) == 2
