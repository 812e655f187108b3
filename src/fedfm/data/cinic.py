"""CINIC-10: class folders of PNG images, CIFAR-10 extended by ImageNet; `valid` is not used."""

from pathlib import Path

from fedfm.core.errors import require
from fedfm.data.dataset import Dataset
from fedfm.data.folder import read_images
from fedfm.data.source import File, Source

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


def read(folder: Path) -> Dataset:
    """Read colour images [N, 3, 32, 32]; the first call decodes and caches them."""
    archive = folder / CINIC10.files[0].name
    images = read_images(archive, folder, mode="RGB")
    require(
        images.classes == CLASSES,
        f"{archive} has classes {', '.join(images.classes)}; CINIC-10 has {', '.join(CLASSES)}",
    )
    return Dataset(
        "cinic10",
        images.train,
        images.test,
        CLASSES,
        mean=(0.47889522 * 255, 0.47227842 * 255, 0.43047404 * 255),
        std=(0.24205776 * 255, 0.23828046 * 255, 0.25874835 * 255),
    )


CINIC10 = Source(
    "cinic10",
    "32x32 colour photographs of CIFAR-10's classes, from ImageNet too",
    read,
    (
        File(
            "CINIC-10.tar.gz",
            "https://datashare.is.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
            "6ee4d0c996905fe93221de577967a372",
        ),
    ),
    classes=10,
    train=90_000,
    test=90_000,
)
