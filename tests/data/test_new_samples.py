"""New samples for a trained model: tables and images, with and without classes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedfm import UserError
from fedfm.data.columns import ColumnEncoding
from fedfm.data.new_samples import encode_classes, read_new_images, read_new_rows

COLUMNS = (ColumnEncoding("age"), ColumnEncoding("pressure"))


def write_image(path: Path, brightness: int, size=(8, 8), colour=False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (*size, 3) if colour else size
    Image.fromarray(np.full(shape, brightness, np.uint8)).save(path)


def test_a_table_without_classes(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("age,pressure\n30,1.5\n40,2.5\n")
    names, inputs, classes = read_new_rows(path, COLUMNS)
    assert (names, classes) == (["2", "3"], None)
    assert torch.equal(inputs, torch.tensor([[30.0, 1.5], [40.0, 2.5]]))
    assert inputs.dtype == torch.float32


def test_the_column_of_classes_is_no_input(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("age,ill,pressure\n30,no,1.5\n40,yes,2.5\n")
    samples = read_new_rows(path, COLUMNS, label="ill")
    assert samples.classes == ["no", "yes"]
    assert torch.equal(samples.inputs, torch.tensor([[30.0, 1.5], [40.0, 2.5]]))
    assert encode_classes(path, samples.classes, ("yes", "no")).tolist() == [1, 0]


def test_a_flat_folder_of_images_is_scaled_to_the_model(tmp_path):
    write_image(tmp_path / "b.png", 200, size=(16, 16))
    write_image(tmp_path / "a.PNG", 100)
    write_image(tmp_path / ".hidden.png", 5)
    (tmp_path / "notes.txt").write_text("")
    names, inputs, classes = read_new_images(tmp_path, (1, 8, 8))
    assert (names, classes) == (["a.PNG", "b.png"], None)
    assert inputs.shape == (2, 1, 8, 8)
    assert inputs.dtype == torch.uint8
    assert inputs[:, 0, 0, 0].tolist() == [100, 200]


def test_class_folders_of_images_say_their_classes(tmp_path):
    write_image(tmp_path / "ill" / "1.png", 10, colour=True)
    write_image(tmp_path / "test" / "healthy" / "1.png", 20, colour=True)
    names, inputs, classes = read_new_images(tmp_path, (3, 8, 8))
    assert names == ["ill/1.png", "test/healthy/1.png"]
    assert classes == ["ill", "healthy"]
    assert inputs.shape == (2, 3, 8, 8)
    assert inputs[1, :, 3, 3].tolist() == [20, 20, 20]


def test_one_image(tmp_path):
    write_image(tmp_path / "scan.png", 7)
    samples = read_new_images(tmp_path / "scan.png", (1, 8, 8))
    assert (samples.names, samples.classes) == (["scan.png"], None)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, "not a table"),
        ("age,weight\n1,2\n", "pressure"),
        ("age,pressure\n1,two\n", r"row 2, column 'pressure'"),
        ("age,pressure\n1,\n", r"row 2, column 'pressure'.*missing"),
        ("age,pressure\n", "no rows"),
        ("age,age,pressure\n1,1,2\n", "two columns 'age'"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path, text, named):
    path = tmp_path / "new.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=named):
        read_new_rows(path, COLUMNS)


@pytest.mark.parametrize(
    ("name", "shape", "named"),
    [
        ("absent.png", (1, 8, 8), "does not exist"),
        ("new.txt", (1, 8, 8), r"new\.txt is neither"),
        ("images", (1, 8, 8), "no images"),
        ("images", (4,), "shape 4"),
    ],
)
def test_images_that_do_not_fit_are_refused(tmp_path, name, shape, named):
    (tmp_path / "images").mkdir()
    (tmp_path / "new.txt").write_text("x")
    with pytest.raises(UserError, match=named):
        read_new_images(tmp_path / name, shape)


def test_columns_are_found_by_name_and_encoded_as_in_training(tmp_path):
    """In another order, with further columns, a gap, a new category and one of training."""
    columns = (
        ColumnEncoding("age", fill=50.0, indicated=True, missing=("unknown",)),
        ColumnEncoding("ward", categories=("east", "west")),
        ColumnEncoding("pressure"),
    )
    path = tmp_path / "new.csv"
    path.write_text("site,pressure,ward,age\nn,1.5,west,unknown\ns,2.5,north,40\n")
    inputs = read_new_rows(path, columns).inputs
    expected = [[50.0, 1.0, 0.0, 1.0, 1.5], [40.0, 0.0, 0.0, 0.0, 2.5]]
    assert inputs.tolist() == expected


def test_classes_that_a_model_lacks_are_refused():
    with pytest.raises(UserError, match=r"rare.*no, yes"):
        encode_classes(Path("new.csv"), ["no", "rare"], ("no", "yes"))
