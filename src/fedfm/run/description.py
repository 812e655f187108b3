"""What a trained model needs to know of the data that it was trained on: `data.json` of a run."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedfm.core.checkpoint import Damaged
from fedfm.core.errors import require
from fedfm.core.files import write_atomically
from fedfm.data.columns import ColumnEncoding
from fedfm.data.dataset import Dataset

FILE = "data.json"


@dataclass(frozen=True)
class DataDescription:
    """The form of inputs, their normalisation, and the meaning of outputs.

    Examples:
        >>> import fedfm
        >>> digits = DataDescription.of(fedfm.data.load("digits"))
        >>> digits.shape, digits.dtype, digits.classes[3]
        ((1, 8, 8), 'uint8', '3')
    """

    classes: tuple[str, ...]
    """The names of the classes, in the order of the outputs."""
    shape: Any
    """The shape of one input; a dict or tuple of shapes where inputs are."""
    dtype: str
    """The type of raw inputs: "uint8" for images, "float32", or "int64" for token ids.

    Empty where inputs are a dict or tuple of tensors.
    """
    mean: tuple[float, ...]
    """Of each channel or column, or one for all, in units of raw inputs."""
    std: tuple[float, ...]
    """The standard deviations that belong to `mean`."""
    clients: tuple[str, ...] = ()
    """The names of the clients, where the data have them."""
    vocabulary: tuple[str, ...] = ()
    """The words by token id, where inputs are texts."""
    columns: tuple[ColumnEncoding, ...] = ()
    """How the columns of a table became numbers, where inputs are its rows."""

    @staticmethod
    def of(data: Dataset) -> "DataDescription":
        """Return the description of a data set."""
        inputs = data.train.inputs
        dtype = str(inputs.dtype).removeprefix("torch.") if isinstance(inputs, Tensor) else ""
        scale = data.mean, data.std
        known = {"vocabulary": data.vocabulary, "columns": data.columns}
        return DataDescription(data.classes, data.shape, dtype, *scale, data.clients, **known)

    def save(self, folder: Path) -> None:
        """Write the description into a run's folder."""
        write_atomically(folder / FILE, (json.dumps(asdict(self)) + "\n").encode())

    @staticmethod
    def load(folder: Path) -> "DataDescription":
        """Return the description in a run's folder."""
        path = folder / FILE
        require(
            path.is_file(),
            f"{folder} has no {FILE}, because an older version of FedFM ran it: resume it once, "
            "which writes the file",
        )
        try:
            values: dict[str, Any] = json.loads(path.read_text())
            known = {name: _to_tuple(value) for name, value in values.items()}
            columns = tuple(ColumnEncoding(*column) for column in known.get("columns", ()))
            return DataDescription(**known | {"columns": columns})
        except (ValueError, TypeError, AttributeError) as problem:
            raise Damaged(path, problem) from problem


def _to_tuple(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_tuple(part) for key, part in value.items()}
    return tuple(map(_to_tuple, value)) if isinstance(value, list) else value
