"""Arrays in MedMNIST's layout."""

import numpy as np
import pytest
import torch

from fedfm.core.errors import UserError
from fedfm.data import Dataset, load
from tests.data.samples import assert_holds, pixels


def arrays_of(*shape: int) -> dict[str, np.ndarray]:
    """Images and labels [N, 1], as MedMNIST has them."""
    return {
        "train_images": pixels(0, 6, *shape),
        "train_labels": np.array([[0], [1], [2], [0], [1], [2]], np.uint8),
        "val_images": pixels(1, 2, *shape),
        "val_labels": np.array([[2], [1]], np.uint8),
        "test_images": pixels(2, 3, *shape),
        "test_labels": np.array([[0], [1], [2]], np.uint8),
    }


@pytest.fixture
def npz(tmp_path):
    """Loads an npz file of these arrays."""

    def load_it(arrays: dict[str, np.ndarray]) -> Dataset:
        np.savez(tmp_path / "own.npz", **arrays)  # type: ignore[arg-type]
        return load("npz", dir=tmp_path, path=tmp_path / "own.npz")

    return load_it


def test_validation_samples_join_the_training_samples(npz):
    arrays = arrays_of(5, 4)
    data = npz(arrays)
    assert (data.shape, data.classes) == ((1, 5, 4), ("0", "1", "2"))
    images = np.concatenate([arrays["train_images"], arrays["val_images"]])[:, None]
    assert_holds(data.train, images, [0, 1, 2, 0, 1, 2, 2, 1])
    assert_holds(data.test, arrays["test_images"][:, None], [0, 1, 2])
    assert data.mean == pytest.approx((images.mean(),))


def test_channels_come_first(npz):
    arrays = arrays_of(5, 4, 3)
    data = npz(arrays)
    assert data.shape == (3, 5, 4)
    assert_holds(data.test, arrays["test_images"].transpose(0, 3, 1, 2), [0, 1, 2])


def test_rows_of_floats_and_labels_in_a_vector_are_read_too(npz):
    arrays = {"train_images": np.random.default_rng(0).normal(size=(20, 4))}
    data = npz(arrays | {"train_labels": np.array(["ill", "well"] * 10)})
    assert (data.shape, data.classes, len(data.test)) == ((4,), ("ill", "well"), 4)
    assert data.train.inputs.dtype == torch.float32


def test_clients_and_names_of_classes_are_read(npz):
    clients = {
        "train_clients": np.array([0, 1, 1, 0, 1, 0]),
        "val_clients": np.array([1, 0]),
        "test_clients": np.array([[1], [0], [1]]),
    }
    data = npz(arrays_of(5, 4) | clients | {"classes": np.array(["cat", "dog", "owl"])})
    assert (data.clients, data.classes) == (("0", "1"), ("cat", "dog", "owl"))
    assert data.train.clients is not None
    assert data.test.clients is not None
    assert data.train.clients.bincount().tolist() == [4, 4]
    assert data.test.clients.bincount().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_images": None}, "'train_images'"),
        ({"test_labels": None}, "'test_labels'"),
        ({"test_labels": np.array([0, 1])}, "3 images and 2 labels.*test"),
        ({"train_labels": np.zeros((6, 14), np.uint8)}, r"\(6, 14\).*multi-label"),
        ({"train_labels": np.zeros(6)}, "train_labels.*float64"),
        ({"test_images": pixels(0, 3, 6, 6)}, "differ in shape"),
        ({"train_images": np.zeros((6, 2, 2, 2, 2))}, r"\(6, 2, 2, 2, 2\)"),
        ({"train_images": np.zeros((6, 3, 32, 32))}, "channels must come last"),
        ({"train_clients": np.array([0, 1] * 3)}, "'val_clients'.*2 samples"),
        ({"classes": np.array(["cat"])}, "'classes'.*1 names"),
        ({"train_labels": np.array([{"a": 1}] * 6)}, "Python objects"),
    ],
)
def test_arrays_that_cannot_be_used_are_named(npz, changes, message):
    arrays = {k: v for k, v in (arrays_of(5, 4) | changes).items() if v is not None}
    with pytest.raises(UserError, match=message):
        npz(arrays)


def test_one_client_is_no_federation(npz):
    alone = {f"{part}_clients": np.zeros(n) for part, n in (("train", 6), ("val", 2), ("test", 3))}
    with pytest.raises(UserError, match="one client"):
        npz(arrays_of(5, 4) | alone)


def test_other_files_are_refused(tmp_path):
    for name in ("none.npz", "text.npz", "one.npy"):
        path = tmp_path / name
        if name == "text.npz":
            path.write_text("hello")
        if name == "one.npy":
            np.save(path, np.zeros(3))
        with pytest.raises(UserError, match=name.replace(".", r"\.")):
            load("npz", dir=tmp_path, path=path)
