"""New samples for a trained model: tables and images, with and without classes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedfm import UserError
from fedfm.data.new_samples import encode_classes, read_new_samples


def write_image(path: Path, brightness: int, size=(8, 8), colour=False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (*size, 3) if colour else size
    Image.fromarray(np.full(shape, brightness, np.uint8)).save(path)


def test_a_table_without_classes(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("age,pressure\n30,1.5\n40,2.5\n")
    names, inputs, classes = read_new_samples(path, (2,))
    assert (names, classes) == (["2", "3"], None)
    assert torch.equal(inputs, torch.tensor([[30.0, 1.5], [40.0, 2.5]]))
    assert inputs.dtype == torch.float32


def test_the_column_of_classes_is_no_input(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("age,ill,pressure\n30,no,1.5\n40,yes,2.5\n")
    samples = read_new_samples(path, (2,), label="ill")
    assert samples.classes == ["no", "yes"]
    assert torch.equal(samples.inputs, torch.tensor([[30.0, 1.5], [40.0, 2.5]]))
    assert encode_classes(path, samples.classes, ("yes", "no")).tolist() == [1, 0]


def test_a_flat_folder_of_images_is_scaled_to_the_model(tmp_path):
    write_image(tmp_path / "b.png", 200, size=(16, 16))
    write_image(tmp_path / "a.PNG", 100)
    write_image(tmp_path / ".hidden.png", 5)
    (tmp_path / "notes.txt").write_text("")
    names, inputs, classes = read_new_samples(tmp_path, (1, 8, 8))
    assert (names, classes) == (["a.PNG", "b.png"], None)
    assert inputs.shape == (2, 1, 8, 8)
    assert inputs.dtype == torch.uint8
    assert inputs[:, 0, 0, 0].tolist() == [100, 200]


def test_class_folders_of_images_say_their_classes(tmp_path):
    write_image(tmp_path / "ill" / "1.png", 10, colour=True)
    write_image(tmp_path / "test" / "healthy" / "1.png", 20, colour=True)
    names, inputs, classes = read_new_samples(tmp_path, (3, 8, 8))
    assert names == ["ill/1.png", "test/healthy/1.png"]
    assert classes == ["ill", "healthy"]
    assert inputs.shape == (2, 3, 8, 8)
    assert inputs[1, :, 3, 3].tolist() == [20, 20, 20]


def test_one_image(tmp_path):
    write_image(tmp_path / "scan.png", 7)
    samples = read_new_samples(tmp_path / "scan.png", (1, 8, 8))
    assert (samples.names, samples.classes) == (["scan.png"], None)


@pytest.mark.parametrize(
    ("name", "text", "shape", "named"),
    [
        ("absent.csv", None, (2,), "does not exist"),
        ("new.txt", "x", (2,), r"new\.txt is neither"),
        ("new.csv", "a,b,c\n1,2,3\n", (2,), r"3 columns.*shape 2"),
        ("new.csv", "a,b\n1,two\n", (2,), r"row 2, column 'b'"),
        ("new.csv", "a,b\n", (2,), "no rows"),
        ("new.csv", "a,b\n1,2\n", (1, 8, 8), "1 x 8 x 8"),
        ("images", "", (1, 8, 8), "no images"),
        ("images", "", (4,), "shape 4"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, name, text, shape, named):
    path = tmp_path / name
    if name == "images":
        path.mkdir()
    elif text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=named):
        read_new_samples(path, shape)


def test_classes_that_a_model_lacks_are_refused():
    with pytest.raises(UserError, match=r"rare.*no, yes"):
        encode_classes(Path("new.csv"), ["no", "rare"], ("no", "yes"))
