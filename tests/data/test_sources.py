"""Every source, read from small files in its format: whole, cut short, altered, absent."""

import gzip
import io
import os
import subprocess
import sys
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from fedfm.core.errors import UserError
from fedfm.data import SOURCES, Dataset, Split, folder, load
from fedfm.data.cinic import CLASSES
from tests.data.samples import assert_holds, idx, pixels, png, records, tar, tree, trusting

BATCHES = [f"data_batch_{i}.bin" for i in range(1, 6)]
OWN = ("folder", "csv", "parquet", "npz", "text")


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Loads a source whose files lie in tmp_path, trusting them whatever they are."""

    def load_it(name: str) -> Dataset:
        monkeypatch.setitem(SOURCES, name, trusting(SOURCES[name], tmp_path))
        return load(name, dir=tmp_path, download=False)

    return load_it


def test_names_that_nobody_knows_are_refused_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'cifar10'"):
        load("cifar1O")


def test_options_of_another_source_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"'digits'.*'size'"):
        load("digits", dir=tmp_path, size=8)
    with pytest.raises(UserError, match=r"'csv'.*path, label.*'size'"):
        load("csv", dir=tmp_path, path=tmp_path, size=8)
    with pytest.raises(UserError, match=r"'folder'.*'path'"):
        load("folder", dir=tmp_path)


def test_every_source_describes_itself_in_a_line():
    for name, source in SOURCES.items():
        assert source.name == name
        assert source.description
        assert "\n" not in source.description
        assert bool(source.files) == (name not in {"digits", *OWN})


def test_importing_needs_no_package_that_reads_or_downloads():
    absent = "sklearn", "PIL", "pooch", "rich", "requests", "pydantic", "typer", "tomli_w"
    block = "".join(f"sys.modules[{name!r}] = None\n" for name in absent)
    code = f"import sys\n{block}import fedfm.data, fedfm.data.augment\nfedfm.data.SOURCES"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_digits_are_bundled_and_split_once_and_for_all(tmp_path):
    from sklearn.datasets import load_digits

    data, source = load("digits", dir=tmp_path), SOURCES["digits"]
    assert data.shape == (1, 8, 8)
    assert data.train.inputs.dtype == torch.uint8
    assert int(data.train.inputs.max()) == 16
    assert (len(data.train), len(data.test)) == (source.train, source.test)
    assert data.classes == tuple("0123456789")
    assert not data.augment
    everything = torch.cat([data.train.inputs, data.test.inputs]).reshape(-1, 64)
    images = load_digits().images.reshape(-1, 64)
    assert sorted(everything.tolist()) == sorted(images.astype(int).tolist())
    sizes = torch.bincount(data.train.labels) + torch.bincount(data.test.labels)
    assert torch.equal(torch.bincount(data.test.labels), (sizes * 0.2).round().long())
    again = load("digits", dir=tmp_path)
    assert torch.equal(again.test.inputs, data.test.inputs)
    pixels_ = data.train.inputs.double()
    assert data.mean == pytest.approx((float(pixels_.mean()),))
    assert data.std == pytest.approx((float(pixels_.std(correction=0)),))


def test_data_are_described_without_their_values(tmp_path):
    data = load("digits", dir=tmp_path)
    assert repr(data) == (
        "Dataset('digits', 1438 training and 359 test samples of shape (1, 8, 8), 10 classes)"
    )
    assert repr(data.test) == "Split(359 samples of shape (1, 8, 8))"


@pytest.fixture
def cifar10() -> dict[str, bytes]:
    """The files of a CIFAR-10 archive: batch i has i images, the test batch two."""
    files = {"readme.html": b"<html>"}
    for seed, name in enumerate([*BATCHES, "test_batch.bin"], 1):
        n = min(seed, 5) if name != "test_batch.bin" else 2
        labels = (np.arange(n, dtype=np.uint8)[:, None] + seed) % 10
        files[name] = records(labels, pixels(seed, n, 3, 32, 32))
    files["batches.meta.txt"] = "\n".join(CLASSES).encode() + b"\n\n"
    return {f"cifar-10-batches-bin/{name}": data for name, data in files.items()}


def test_cifar10_is_read_from_its_binary_archive(tmp_path, read, cifar10):
    shuffled = dict(reversed(cifar10.items()))
    tar(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", shuffled)
    data = read("cifar10")
    images = np.concatenate([pixels(seed, seed, 3, 32, 32) for seed in range(1, 6)])
    labels = [(row + seed) % 10 for seed in range(1, 6) for row in range(seed)]
    assert_holds(data.train, images, labels)
    assert_holds(data.test, pixels(6, 2, 3, 32, 32), [6, 7])
    assert data.classes == CLASSES
    assert data.mean == pytest.approx((125.307, 122.961, 113.8575))
    assert data.std == pytest.approx((51.5865, 50.847, 51.255))
    assert not data.augment


def test_cifar100_has_fine_labels_and_is_augmented(tmp_path, read):
    coarse_and_fine = np.array([[19, 99], [0, 3]], np.uint8)
    names = "\n".join(f"thing_{i}" for i in range(100)).encode() + b"\n"
    files = {
        "cifar-100-binary/fine_label_names.txt": names,
        "cifar-100-binary/coarse_label_names.txt": b"a\nb\n",
        "cifar-100-binary/train.bin": records(coarse_and_fine, pixels(1, 2, 3, 32, 32)),
        "cifar-100-binary/test.bin": records(coarse_and_fine[:1], pixels(2, 1, 3, 32, 32)),
    }
    tar(tmp_path / "cifar100" / "cifar-100-binary.tar.gz", files)
    data = read("cifar100")
    assert_holds(data.train, pixels(1, 2, 3, 32, 32), [99, 3])
    assert_holds(data.test, pixels(2, 1, 3, 32, 32), [99])
    assert data.classes[3] == "thing_3"
    assert len(data.classes) == 100
    assert data.mean == pytest.approx((129.3105, 124.0575, 112.4295))
    assert data.std == pytest.approx((68.1615, 65.382, 70.431))
    assert data.augment


def test_a_batch_of_broken_records_is_reported(tmp_path, read, cifar10):
    cifar10["cifar-10-batches-bin/data_batch_3.bin"] += b"\0"
    tar(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", cifar10)
    with pytest.raises(UserError, match=r"data_batch_3\.bin.*\b9220\b.*\b3073\b"):
        read("cifar10")


def test_an_archive_without_a_batch_is_reported(tmp_path, read, cifar10):
    del cifar10["cifar-10-batches-bin/data_batch_4.bin"]
    tar(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", cifar10)
    with pytest.raises(UserError, match=r"cifar-10-binary\.tar\.gz.*data_batch_4\.bin"):
        read("cifar10")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.7, 0.99])
def test_an_archive_that_ends_early_is_reported(tmp_path, read, cifar10, share):
    archive = tar(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", cifar10)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(UserError, match=r"(?s)cifar-10-binary\.tar\.gz.*download"):
        read("cifar10")


@pytest.fixture
def fashion(tmp_path):
    """A Fashion-MNIST folder of three training images and two for testing."""
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    for seed, (part, labels) in enumerate({"train": [0, 9, 4], "t10k": [1, 2]}.items()):
        images = pixels(seed, len(labels), 28, 28)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(images))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(np.array(labels, np.uint8)))
    return folder


def test_fashion_mnist_is_read_from_idx_files(read, fashion):
    data = read("fashion-mnist")
    assert_holds(data.train, pixels(0, 3, 28, 28)[:, None], [0, 9, 4])
    assert_holds(data.test, pixels(1, 2, 28, 28)[:, None], [1, 2])
    assert data.classes[9] == "Ankle boot"
    assert data.mean == pytest.approx((72.93,))
    assert data.std == pytest.approx((90.015,))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda whole: whole[:-5], "cannot read"),
        (lambda whole: b"no gzip file", "cannot read"),
        (lambda whole: gzip.compress(gzip.decompress(whole)[:-1]), r"\b2352\b.*\b2351\b"),
        (lambda whole: gzip.compress(gzip.decompress(whole) + b"\0"), r"\b2352\b.*\b2353\b"),
        (lambda whole: gzip.compress(b"\0\0\x08\x01" + bytes(9)), "3-dim"),
        (lambda whole: gzip.compress(gzip.decompress(whole)[:10]), "3-dim"),
        (lambda whole: gzip.compress(b""), "3-dim"),
    ],
)
def test_a_damaged_idx_file_is_reported(read, fashion, damage, message):
    file = fashion / "train-images-idx3-ubyte.gz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=message) as caught:
        read("fashion-mnist")
    assert str(file) in str(caught.value)


def test_cinic10_trains_on_train_alone(tmp_path, read):
    """Its members begin with ./ and some of its images may be grey."""
    files = {"./README.md": b"CINIC"}
    for label, name in enumerate(CLASSES):
        files[f"./valid/{name}/cifar10-train-1.png"] = png(pixels(label + 100, 32, 32, 3))
        files[f"./test/{name}/n01.png"] = png(pixels(label + 200, 32, 32, 3))
        files[f"./train/{name}/n02.png"] = png(pixels(label, 32, 32, 3))
    files["./train/truck/n03.png"] = png(pixels(300, 32, 32))
    tar(tmp_path / "cinic10" / "CINIC-10.tar.gz", files)
    data = read("cinic10")
    assert data.classes == CLASSES
    grey = np.broadcast_to(pixels(300, 32, 32)[..., None], (32, 32, 3))
    train = np.stack([*(pixels(label, 32, 32, 3) for label in range(10)), grey])
    assert_holds(data.train, train.transpose(0, 3, 1, 2), [*range(10), 9])
    assert sorted(data.test.labels.tolist()) == list(range(10))
    assert data.mean == pytest.approx((122.1182811, 120.4309971, 109.7708802))
    assert data.std == pytest.approx((61.7247288, 60.7615146, 65.98082925))
    assert not data.augment


def test_an_archive_of_other_classes_is_not_cinic10(tmp_path, read):
    image = png(pixels(1, 32, 32, 3))
    files = {f"{part}/{label}/1.png": image for part in ("train", "test") for label in "ab"}
    tar(tmp_path / "cinic10" / "CINIC-10.tar.gz", files)
    with pytest.raises(UserError, match=r"CINIC-10\.tar\.gz.*\ba, b\b.*airplane"):
        read("cinic10")


@pytest.fixture
def read_own_files(tmp_path):
    """Loads the user's data at a path, or in files put there, keeping its cache in tmp_path."""

    def load_it(what, **options) -> Dataset:
        path = tree(tmp_path / "own", what) if isinstance(what, dict) else what
        return load("folder", dir=tmp_path / "cache", path=path, **options)

    return load_it


def divided(*shape: int) -> dict[str, bytes]:
    """Class folders below train and test; image number i is pixels(i)."""
    names = ["test/cat/1", "test/dog/2", "train/cat/3", "train/cat/deep/4", "train/dog/5"]
    return {f"{name}.png": png(pixels(i, *shape)) for i, name in enumerate(names, 1)}


def assert_divided(data: Dataset) -> None:
    assert data.classes == ("cat", "dog")
    assert sorted(data.test.labels.tolist()) == [0, 1]
    expected = np.stack([pixels(i, 6, 5, 3) for i in (3, 4, 5)])
    assert_holds(data.train, expected.transpose(0, 3, 1, 2), [0, 0, 1])
    raw = torch.from_numpy(expected).double().flatten(0, 2)
    assert data.mean == pytest.approx(raw.mean(0).tolist())
    assert data.std == pytest.approx(raw.std(0, correction=0).tolist())


def test_a_folder_of_class_folders_is_read(read_own_files):
    extra = {
        "valid/bird/1.png": b"never read",
        "val/cat/1.png": b"never read",
        "README.txt": b"",
        "train/labels.txt": b"",
        "train/cat/.hidden": b"",
        "__MACOSX/train/cat/1.png": b"",
    }
    assert_divided(read_own_files(divided(6, 5, 3) | extra))


@pytest.mark.parametrize("mode", ["w:", "w:gz", "w:xz"])
@pytest.mark.parametrize("root", ["", "./", "pets/", "a/b/"])
def test_a_tar_gives_what_its_folder_would(tmp_path, read_own_files, mode, root):
    files = {root + name: data for name, data in reversed(divided(6, 5, 3).items())}
    archive = tar(tmp_path / f"pets.tar{mode[1:].replace(':', '.').rstrip('.')}", files, mode)
    assert_divided(read_own_files(archive))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", archive.name]


def test_undivided_class_folders_lose_a_fixed_fifth_of_each_class_to_testing(read_own_files):
    files = {f"{c}/{i}.png": png(pixels(ord(c) * 100 + i, 4, 4)) for c in "ab" for i in range(10)}
    data = read_own_files(files | {"only/1.png": png(pixels(1, 4, 4))})
    assert data.classes == ("a", "b", "only")
    assert torch.bincount(data.test.labels).tolist() == [2, 2]
    assert torch.bincount(data.train.labels).tolist() == [8, 8, 1]
    both = torch.cat([data.train.inputs, data.test.inputs]).flatten(1)
    assert len(set(map(tuple, both.tolist()))) == 21


def test_classes_named_by_numbers_are_in_their_order(read_own_files):
    image = png(pixels(1, 4, 4))
    data = read_own_files(
        {f"{part}/{c}/1.png": image for part in ("train", "test") for c in (10, 9, 1)}
    )
    assert data.classes == ("1", "9", "10")


def test_grey_images_have_one_channel_unless_others_have_colours(read_own_files, tmp_path):
    assert read_own_files(divided(6, 5)).shape == (1, 6, 5)
    mixed = divided(6, 5, 3) | {"train/cat/3.png": png(pixels(3, 6, 5))}
    data = read_own_files(tree(tmp_path / "mixed", mixed))
    grey = torch.from_numpy(pixels(3, 6, 5)).expand(3, 6, 5)
    assert any(torch.equal(image, grey) for image in data.train.inputs)


@pytest.mark.parametrize("format", ["jpeg", "bmp"])
def test_other_formats_are_read_too(read_own_files, format):
    grey, stream = np.full((6, 5), 77, np.uint8), io.BytesIO()
    Image.fromarray(grey).save(stream, format)
    data = read_own_files(
        {f"{part}/cat/1.{format.upper()}": stream.getvalue() for part in ("train", "test")}
    )
    assert torch.equal(data.train.inputs, torch.full((1, 1, 6, 5), 77, dtype=torch.uint8))
    assert data.std == (1.0,)


def test_images_of_differing_size_need_a_size(read_own_files, tmp_path):
    files = divided(6, 5, 3) | {"train/dog/5.png": png(np.full((8, 12, 3), 9, np.uint8))}
    path = tree(tmp_path / "own", files)
    with pytest.raises(UserError, match=r"\(6, 5\).*5\.png.*\(8, 12\).*'size'"):
        read_own_files(path)
    data = read_own_files(path, size=7)
    assert data.shape == (3, 7, 7)
    (dog,) = data.train.inputs[data.train.labels == 1]
    assert torch.equal(dog, torch.full((3, 7, 7), 9, dtype=torch.uint8))
    assert read_own_files(path, size=3).shape == (3, 3, 3)
    with pytest.raises(UserError, match=r"size.*\b1\b.*\b0\b"):
        read_own_files(path, size=0)


def deep() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((6, 5), 60_000, np.uint16)).save(stream, "png")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train/cat/bad.png": b"no image"}, r"train/cat/bad\.png.*PNG, JPEG"),
        ({"train/cat/bad.png": png(pixels(1, 6, 5))[:60]}, r"train/cat/bad\.png.*\(.+\)"),
        ({"train/cat/note.txt": b"hello"}, r"train/cat/note\.txt.*\.png"),
        ({"train/cat/deep.png": deep()}, r"train/cat/deep\.png.*\b8\b"),
        ({"train/stray.png": b""}, r"train/stray\.png.*class"),
        ({"test/bird/1.png": b""}, r"training.*\bbird\b"),
    ],
)
def test_files_that_cannot_be_used_are_named(read_own_files, files, message):
    with pytest.raises(UserError, match=message):
        read_own_files(divided(6, 5, 3) | files)


def test_images_of_one_class_alone_are_told_from_stray_ones(read_own_files):
    image = png(pixels(1, 6, 5))
    with pytest.raises(UserError, match=r"'covid'.*train/covid/.*test/covid/"):
        read_own_files({"covid/0.png": image, "covid/1.png": image})


def test_a_class_folder_without_images_is_named(read_own_files, tmp_path, caplog):
    read_own_files(divided(6, 5, 3))
    assert caplog.text == ""
    (tmp_path / "own" / "train" / "rare").mkdir()
    read_own_files(tmp_path / "own")
    assert "no images in rare" in caplog.text


def test_paths_without_images_are_refused(read_own_files, tmp_path):
    with pytest.raises(UserError, match="/nowhere"):
        read_own_files(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"class folders.*\.png"):
        read_own_files({"README.txt": b""})
    with pytest.raises(UserError, match=r"/train-only.* test/"):
        read_own_files(tree(tmp_path / "train-only", {"train/cat/1.png": png(pixels(1, 4, 4))}))
    (tmp_path / "pets.zip").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"pets\.zip.*\.tar"):
        read_own_files(tmp_path / "pets.zip")


@pytest.mark.parametrize("mode", ["w:", "w:gz", "w:xz"])
def test_a_tar_cut_anywhere_is_reported(tmp_path, read_own_files, mode):
    """Even where a plain tar is cut between two files, which the standard library lets pass."""
    archive = tar(tmp_path / "pets.tar", divided(6, 5, 3), mode)
    whole = archive.read_bytes()
    used = 5 * 2 * 512 if mode == "w:" else len(whole)  # a header and a block for each image
    for length in (0, 1, 512, 700, used // 2, used - 512, used - 100, used - 1, used):
        if length >= len(whole):
            continue
        archive.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"(?s)pets\.tar.*download"):
            read_own_files(archive)


def test_a_tar_with_a_damaged_header_is_reported(tmp_path, read_own_files):
    archive = tar(tmp_path / "pets.tar", divided(6, 5, 3), "w:")
    whole = bytearray(archive.read_bytes())
    whole[2048] ^= 255
    archive.write_bytes(whole)
    with pytest.raises(UserError, match=r"(?s)pets\.tar.*download"):
        read_own_files(archive)


def test_links_in_a_tar_are_refused(tmp_path, read_own_files):
    archive = tar(tmp_path / "pets.tar", divided(6, 5, 3), "w:")
    with tarfile.open(archive, "a") as opened:
        link = tarfile.TarInfo("train/cat/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "../../../../etc/passwd"
        opened.addfile(link)
    with pytest.raises(UserError, match=r"train/cat/link\.png.*\blink\b"):
        read_own_files(archive)


def test_folders_may_be_links_to_folders(tmp_path, read_own_files):
    there = tree(tmp_path / "there", divided(6, 5, 3))
    (tmp_path / "here").mkdir()
    for part in ("train", "test"):
        (tmp_path / "here" / part).symlink_to(there / part)
    assert_divided(read_own_files(tmp_path / "here"))


@pytest.fixture
def decodings(monkeypatch) -> list[str]:
    """The names of the images decoded so far."""
    names: list[str] = []
    decode = folder.decode_image

    def count(data, name, size, mode):
        names.append(name.name)
        return decode(data, name, size, mode)

    monkeypatch.setattr(folder, "decode_image", count)
    return names


@pytest.mark.parametrize("archived", [False, True])
def test_images_are_decoded_once_until_a_file_changes(
    tmp_path, read_own_files, decodings, archived
):
    files = divided(6, 5, 3)
    path = tar(tmp_path / "a.tar.gz", files) if archived else tree(tmp_path / "own", files)
    assert_divided(read_own_files(path))
    assert_divided(read_own_files(path))
    assert len(decodings) == 5
    os.utime(path if archived else path / "train/cat/3.png", ns=(1, 1))
    assert_divided(read_own_files(path))
    assert len(decodings) == 10
    if not archived:
        (path / "train/cat/3.png").unlink()
        assert len(read_own_files(path).train) == 2


def test_a_damaged_cache_is_made_again(tmp_path, read_own_files, decodings):
    path = tree(tmp_path / "own", divided(6, 5, 3))
    read_own_files(path)
    [kept] = (tmp_path / "cache" / "folder").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert_divided(read_own_files(path))
    assert len(decodings) == 10
    assert_divided(read_own_files(path))
    assert len(decodings) == 10


def test_a_cache_that_cannot_be_written_leaves_nothing_and_stops_nobody(
    tmp_path, read_own_files, decodings, monkeypatch
):
    def full(*args):
        raise OSError("No space left on device")

    path = tree(tmp_path / "own", divided(6, 5, 3))
    monkeypatch.setattr("fedfm.data.archives.os.replace", full)
    assert_divided(read_own_files(path))
    assert list((tmp_path / "cache" / "folder").iterdir()) == []


@pytest.mark.parametrize("archived", [False, True])
def test_a_terminal_shows_how_far_reading_is(tmp_path, read_own_files, monkeypatch, archived):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    files, screen = divided(6, 5, 3), Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    assert_divided(read_own_files(tar(tmp_path / "pets.tar", files, "w:") if archived else files))
    assert ("Reading pets.tar" if archived else "Reading own") in screen.getvalue()


@pytest.fixture
def table(tmp_path):
    """Loads a CSV with this text."""

    def load_it(text: str | bytes, **options) -> Dataset:
        path = tmp_path / "table.csv"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return load("csv", dir=tmp_path, path=path, **options)

    return load_it


def rows(n: int) -> str:
    """Rows of a running number, a constant and one of two classes."""
    return "".join(f"{i}.5, 7 ,{'yes' if i % 2 else 'no'}\n" for i in range(n))


def test_a_table_is_read_and_standardised_by_its_training_rows(table):
    data = table("age,weight,label\n" + rows(20) + "\n")
    assert data.classes == ("no", "yes")
    assert data.train.inputs.dtype == torch.float32
    assert (len(data.train), len(data.test)) == (16, 4)
    assert torch.bincount(data.test.labels).tolist() == [2, 2]
    both = torch.cat([data.train.inputs, data.test.inputs])
    assert sorted(both[:, 0].tolist()) == [i + 0.5 for i in range(20)]
    labels = torch.cat([data.train.labels, data.test.labels])
    assert torch.equal(both[:, 0].long() % 2, labels)
    ages = data.train.inputs[:, 0].double()
    assert data.mean == pytest.approx((float(ages.mean()), 7.0))
    assert data.std == pytest.approx((float(ages.std(correction=0)), 1.0))


def test_the_label_may_have_another_name_and_place(table):
    text = "\ufeffkind,x\n" + "".join(f"{i % 3 + 8},{i}\n" for i in range(9))
    data = table(text, label="kind")
    assert data.classes == ("8", "9", "10")
    assert torch.equal(data.train.inputs[:, 0].long() % 3, data.train.labels)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age;label\n1;a\n2;b\n", "'age;label'.*commas"),
        ("age;label\n1,5;a\n2,5;b\n", "'age;label'.*';'.*decimals"),
        ("s,label\n1.7e9,a\n1700000001,b\n1700000009,a\n", r"column 's'.*1\.7e\+09.*constant"),
        ("age,label\n1,a\ntall,b\n", r"table\.csv, row 3, column 'age': 'tall'"),
        ("age,label\n1,a\n\nNaN,b\n", "row 4, column 'age': 'NaN'"),
        ("x,age,label\n1,2,a\n1,,b\n", "row 3, column 'age': ''"),
        ("age,label\n1,a\n1e39,b\n", "row 3, column 'age': '1e39'"),
        ("age,label\n-inf,a\n1,b\n", "row 2, column 'age': '-inf'"),
        ("age,label\n1,a\n2, \n", "row 3, column 'label'"),
        ("age,label\n1,a\n2\n", r"row 3\b.*\b1\b.*\b2\b"),
        ("age,lable\n1,a\n2,b\n", "did you mean 'lable'"),
        ("label,label\na,b\n", "two.*'label'"),
        ("age,label\n", "no rows"),
        ("", "no rows"),
        ("label\na\nb\n", "no columns.*'label'"),
        ("age,label\n1,0.5\n2,0.7\n3,0.9\n", "column 'label'.*every row.*label="),
        (b"age,label\n\xff,a\n", r"table\.csv.*UTF-8"),
        ('age,label\n"1,a\n' + "x" * 200_000, r"table\.csv.*131072"),
    ],
)
def test_a_table_that_cannot_be_used_says_where(table, text, message):
    with pytest.raises(UserError, match=message):
        table(text)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([i % 101 for i in range(5000)], 101),
        ([i % 21 + 0.5 for i in range(1000)], 21),
        ([18 + i % 60 for i in range(300)], 60),
    ],
    ids=["more than a hundred", "not whole", "few rows each"],
)
def test_a_quantity_is_not_taken_for_classes(table, labels, classes):
    rows = [f"{i},{label}" for i, label in enumerate(labels)]
    with pytest.raises(UserError, match=rf"'label'.*\b{classes}\b.*label="):
        table("\n".join(["x,label", *rows]))
    written = [f"{i},class {label}" for i, label in enumerate(labels)]
    assert len(table("\n".join(["x,label", *written])).classes) == classes, "as the error says"


@pytest.mark.parametrize(
    "labels",
    [
        [i % 100 for i in range(1000)],
        [i % 20 for i in range(50)],
        [i % 20 + 0.5 for i in range(50)],
        [i % 26 for i in range(260)],
    ],
)
def test_numbers_may_be_classes(table, labels):
    rows = [f"{i},{label}" for i, label in enumerate(labels)]
    assert len(table("\n".join(["x,label", *rows])).classes) == len(set(labels))


def test_a_table_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"none\.csv"):
        load("csv", dir=tmp_path, path=tmp_path / "none.csv")


def test_samples_have_one_order_whatever_files_they_come_from(tmp_path, read, read_own_files):
    """The official archive, PNG folders under any names, and arrays: one partition, one result."""
    images = {name: pixels(seed, 2, 3, 32, 32) for seed, name in enumerate(BATCHES)}
    labels = {name: np.array([[2 * i], [2 * i + 1]], np.uint8) for i, name in enumerate(BATCHES)}
    batches = {name: records(labels[name], images[name]) for name in BATCHES}
    batches |= {
        "test_batch.bin": batches[BATCHES[0]],
        "batches.meta.txt": " ".join(CLASSES).encode(),
    }
    members = {f"cifar-10-batches-bin/{name}": content for name, content in batches.items()}
    tar(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", members)
    official = read("cifar10")
    every = [
        (int(label), image)
        for name in BATCHES
        for label, image in zip(labels[name].flatten(), images[name], strict=True)
    ]
    tests = every[:2]
    files = {f"train/{CLASSES[c]}/{9 - c}.png": png(x.transpose(1, 2, 0)) for c, x in every}
    files |= {f"test/{CLASSES[c]}/{c}.png": png(x.transpose(1, 2, 0)) for c, x in tests}
    train, test = (
        Split(torch.from_numpy(np.stack([x for _, x in some])), torch.tensor([c for c, _ in some]))
        for some in (every[::-1], tests[::-1])
    )
    arrays = Dataset("mine", train, test, CLASSES)
    for data in (read_own_files(files), arrays):
        assert data.classes == official.classes
        assert data.digest == official.digest


def test_normalisation_can_be_given_for_every_source(read_own_files):
    data = read_own_files(divided(6, 5, 3), mean=(125.0, 120.0, 110.0), std=(50.0, 51.0, 52.0))
    assert (data.mean, data.std) == ((125.0, 120.0, 110.0), (50.0, 51.0, 52.0))
    assert load("digits", mean=(8.0,), std=(6.0,)).mean == (8.0,)
    with pytest.raises(UserError, match=r"data\.mean.*data\.std"):
        load("digits", mean=(8.0,))
    with pytest.raises(UserError, match=r"mean.*std.*\b255\b"):
        read_own_files(divided(6, 5, 3), mean=(0.5,) * 3, std=(0.2,) * 3)
