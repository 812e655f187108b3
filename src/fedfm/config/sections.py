"""The sections [data] and [model] of a config."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from torch import nn

from fedfm import models
from fedfm.config.validation import check_settings, field_names
from fedfm.core.errors import require
from fedfm.data.augment import PAPERS, Augmentation
from fedfm.data.dataset import Dataset
from fedfm.data.split import fingerprint
from fedfm.models.weights import digest_file


class DataConfig(BaseModel):
    """Which data: a source's name and its options (`fedfm data` lists them).

    Examples:
        >>> DataConfig(name="csv", path="patients.csv", label="diagnosis").name
        'csv'
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "digits"
    """The name of a source."""
    dir: str | None = None
    """Where downloaded files are kept; by default `$FEDFM_DATA` or the user's cache folder."""
    path: str | None = None
    """With your own data: where they are; a folder of tables has one for each client."""
    size: int | None = Field(default=None, ge=1)
    """With name = "folder": scale images to size x size."""
    label: str | None = None
    """With a table: the column of the classes; by default "label", or the last without header."""
    client: str | None = None
    """The column of a table with the client of each row; or "folder" with name = "folder"."""
    drop: tuple[str, ...] | None = None
    """With a table: columns to leave out."""
    header: bool | None = None
    """With "csv" and "text": whether the first row names the columns, else "1", "2" and so on."""
    missing: tuple[str, ...] | None = None
    """With a table: further cells that stand for a missing value, beside "", "?", "NA", "NaN"..."""
    fill: Literal["mean", "indicate"] | dict[str, float] | None = None
    """With a table: fill missing numbers by the training mean; "indicate" adds a column of 0/1.

    A table such as fill = {age = 54} has the number for each column. Without it missing values are
    refused.
    """
    categories: tuple[str, ...] | dict[str, tuple[str, ...]] | None = None
    """With a table: columns of categories, or the categories of each column, as in
    {sex = ["f", "m"]}; by default the columns without any number."""
    merge: dict[str, tuple[str, ...]] | None = None
    """With a table: classes that stand for several labels, such as ill = ["1", "2"]."""
    test_path: str | None = None
    """With name = "text": the table of the test samples; by default a fifth of every class."""
    text: str | None = None
    """With name = "text": the column of the texts; by default "text", without header the first."""
    vocabulary: int | None = Field(default=None, ge=1)
    """With name = "text": how many of the most frequent training words get an id; 20,000."""
    words: str | None = None
    """With name = "text": a file with the words that get an id, one in each line, instead."""
    length: int | None = Field(default=None, ge=1)
    """With name = "text": the ids of a text, which is cut or padded; 64."""
    mean: tuple[float, ...] | None = None
    """Of each channel or column, in units of the stored values; by default the source's own."""
    std: tuple[float, ...] | None = None
    """The standard deviation of each channel or column, given together with `mean`."""
    augment: bool | Augmentation | None = None
    """Whether training images are cropped, flipped and rotated; by default as the source says.

    A table switches each of them and says how often: [data.augment] crop = 0.5, rotation = 0.
    """
    digest: str | None = None
    """The digest of data that were given from Python: recorded, never set."""

    def __hash__(self) -> int:
        """Return a hash of all keys; one of them is a table."""
        return hash(self.model_dump_json())

    @staticmethod
    def of(data: Dataset) -> "DataConfig":
        """Return the record of data that were given from Python: name, digest, normalisation."""
        return DataConfig(
            name=data.name,
            digest=data.digest,
            mean=_round(data.mean) if data.mean != (0.0,) else None,
            std=_round(data.std) if data.std != (1.0,) else None,
            augment=data.augment or None,
        )

    @field_validator("augment", mode="before")
    @classmethod
    def _read_augmentation(cls, given: Any) -> Any:
        """Read a table; the paper's augmentation is recorded as true."""
        if isinstance(given, dict):
            given = check_settings(Augmentation, given, "data", "augment")
        require(
            given is None or isinstance(given, bool | Augmentation),
            f"data.augment must be true, false or a table of {', '.join(field_names(Augmentation))}"
            f", not {given!r}",
        )
        return True if given == PAPERS else given


class ModelConfig(BaseModel):
    """Which model: its name and whatever options that model has.

    Examples:
        >>> ModelConfig(name="mlp").options
        {'hidden': [128, 64], 'norm': 'none', 'head': 'linear'}
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "cnn"
    """The name of a model."""
    weights: str | None = None
    """A .safetensors file that training starts from, with the names of torchvision, Hugging Face or
    the model itself; by default random weights."""
    freeze: tuple[str, ...] | None = None
    """Layers that are not trained, such as ["conv1", "layer[12]"]; they are sent once."""
    weights_digest: str | None = None
    """The digest of the file of weights: recorded, never set."""

    @staticmethod
    def of(model: nn.Module) -> "ModelConfig":
        """Return the record of a model that was given from Python: name, digest of its weights."""
        digest = fingerprint(model.state_dict().values())
        return ModelConfig.model_validate({"name": type(model).__name__, "digest": digest})

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, given: Any) -> Any:
        """Add the defaults of a known model's options, so that a record of them is complete."""
        table = given if isinstance(given, dict) else {}
        name = table.get("name", "cnn")
        if "digest" in table or not isinstance(name, str) or name not in models.MODELS:
            return given
        return models.default_options(name) | table

    @model_validator(mode="after")
    def _find_digest(self) -> Self:
        """Find the digest of the weights, unless it is recorded: the file may be elsewhere then."""
        if self.weights and not self.weights_digest:
            digest = digest_file(Path(self.weights).expanduser())
            object.__setattr__(self, "weights_digest", digest)
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The model's own options."""
        return dict(self.model_extra or {})


def _round(values: Iterable[float]) -> tuple[float, ...]:
    """Round to five digits: the last ones depend on how many threads computed them."""
    return tuple(float(f"{value:.5g}") for value in values)
