"""Every method, one paper per file. A new one is a file here and a line in `PIECES`."""

from fedfm.algorithms.averaging import FedAvg
from fedfm.algorithms.base import Batch, LocalRun, Method, Model, Piece, Task, compose
from fedfm.algorithms.matching import FedFM, FedFMLite
from fedfm.core.errors import unknown

PIECES: dict[str, type[Piece]] = {piece.name: piece for piece in (FedAvg, FedFM, FedFMLite)}


def piece_class(name: str) -> type[Piece]:
    """The registered piece of that name."""
    if name not in PIECES:
        raise unknown("method", name, PIECES)
    return PIECES[name]


__all__ = [
    "PIECES",
    "Batch",
    "FedAvg",
    "FedFM",
    "FedFMLite",
    "LocalRun",
    "Method",
    "Model",
    "Piece",
    "Task",
    "compose",
    "piece_class",
]
