"""Images in a folder for each client."""

import pytest
import torch

from fedfm.core.errors import UserError
from fedfm.data import Dataset, load
from tests.data.samples import pixels, png, tar, tree


def image(seed: int) -> bytes:
    return png(pixels(seed, 6, 5))


FILES = {
    f"{client}/{part}/{label}/{i}.png": image(100 * c + 10 * k + 5 * (part == "test") + i)
    for c, client in enumerate(("north", "south"))
    for part, n in (("train", 3 + c), ("test", 1))
    for k, label in enumerate(("cat", "dog"))
    for i in range(n)
}


@pytest.fixture
def scans(tmp_path):
    """Loads a folder of these files, by client."""

    def load_it(files: dict[str, bytes], **options) -> Dataset:
        path = tree(tmp_path / "scans", files)
        return load("folder", dir=tmp_path, path=path, **{"client": "folder"} | options)

    return load_it


def counts(data: Dataset) -> list[list[int]]:
    splits = (data.train, data.test)
    return [torch.as_tensor(split.clients).bincount(minlength=2).tolist() for split in splits]


def test_every_folder_is_a_client_with_its_own_tests(scans):
    data = scans(FILES)
    assert (data.clients, data.classes) == (("north", "south"), ("cat", "dog"))
    assert counts(data) == [[6, 8], [2, 2]]
    again = scans({})
    assert again.digest == data.digest, "from the cache"
    assert again.clients == data.clients


def test_a_tar_of_them_is_the_same(scans, tmp_path):
    archive = tar(tmp_path / "scans.tar", {f"root/{name}": file for name, file in FILES.items()})
    found = load("folder", dir=tmp_path, path=archive, client="folder")
    assert found.digest == scans(FILES).digest


def test_undivided_folders_lose_a_fifth_of_every_class_of_every_client(scans):
    files = {
        f"{client}/{label}/{i}.png": image(50 * c + i + 25 * k)
        for c, client in enumerate(("north", "south"))
        for k, label in enumerate(("cat", "dog"))
        for i in range(10)
    }
    assert counts(scans(files)) == [[16, 16], [4, 4]]


def test_a_client_may_lack_a_class_or_tests(scans):
    some = {n: f for n, f in FILES.items() if "south/test" not in n and "north/train/dog" not in n}
    assert counts(scans({n: f for n, f in some.items() if "north/test/dog" not in n})) == [
        [3, 8],
        [1, 0],
    ]


def test_other_splits_are_ignored(scans):
    assert counts(scans(FILES | {"north/val/cat/1.png": image(1)})) == [[6, 8], [2, 2]]


def test_without_the_key_folders_are_classes_as_before(scans):
    data = scans({f"{c}/{i}.png": image(10 * k + i) for k, c in enumerate("ab") for i in range(5)},
                 client=None)  # fmt: skip
    assert (data.clients, data.classes, data.train.clients) == ((), ("a", "b"), None)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({n: f for n, f in FILES.items() if n.startswith("north")}, r"train/ at its top.*two"),
        ({n.removeprefix("north/"): f for n, f in FILES.items()}, "train/ at its top"),
        (FILES | {"north/x.png": image(1)}, r"x\.png.*no class folder"),
        (FILES | {"x.png": image(1)}, r"x\.png.*no class folder"),
        (FILES | {"west/cat/1.png": image(1)}, r"west.*1\.png.*no class folder"),
        (FILES | {"north/train/cat/notes.txt": b"hi"}, r"notes\.txt.*remove"),
        ({"north/test/cat/1.png": image(1), "south/train/dog/1.png": image(2)}, "no training.*cat"),
    ],
)
def test_images_in_other_places_are_named(scans, files, message):
    with pytest.raises(UserError, match=message):
        scans(files)


def test_the_clients_of_images_are_in_no_column(scans):
    with pytest.raises(UserError, match=r"data\.client = 'folder'.*'site'"):
        scans(FILES, client="site")
