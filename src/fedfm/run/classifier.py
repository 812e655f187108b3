"""A trained model that takes raw inputs: it normalises them and returns probabilities."""

import copy
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedfm.core.errors import UserError, require
from fedfm.core.files import write_atomically
from fedfm.core.inputs import (
    InputTree,
    call_network,
    input_leaves,
    is_quantity,
    make_inputs,
    map_inputs,
)
from fedfm.data.text import encode_words, split_words
from fedfm.models import WithFeatures, export_state_dict
from fedfm.models.adapter import find_logits
from fedfm.run.description import DataDescription

BATCH = 500
"""Samples that go through the network at once."""
PROGRAM, STATE_DICT = ".pt2", ".safetensors"
"""The suffixes of files that `Classifier.export` and `Classifier.save` write."""


class Probabilities(nn.Module):
    """Raw inputs [N, ...] -> probabilities [N, C]: normalisation, the network and softmax."""

    scale: Tensor
    shift: Tensor

    def __init__(self, model: nn.Module, data: DataDescription) -> None:
        super().__init__()
        self.model = model.module if isinstance(model, WithFeatures) else model
        self.returns_features = not isinstance(model, WithFeatures)
        mean, std = (torch.tensor(v, dtype=torch.float64) for v in (data.mean, data.std))
        like = next(model.parameters())
        trailing = (1,) * (len(data.shape) - 1) if isinstance(data.shape, tuple) else ()
        for name, values in (("scale", 1 / std), ("shift", -mean / std)):
            self.register_buffer(name, values.to(like).reshape(-1, *trailing))

    def forward(self, inputs: InputTree) -> Tensor:
        """Return probabilities [N, C] of raw inputs [N, ...]."""
        outputs = call_network(self.model, map_inputs(self._normalise, inputs))
        logits: Tensor = outputs[1] if self.returns_features else find_logits(outputs)
        return logits.softmax(1)

    def _normalise(self, leaf: Tensor) -> Tensor:
        """Scale quantities; leave token ids and masks as they are."""
        if not is_quantity(leaf):
            return leaf
        return leaf.to(self.scale.dtype) * self.scale + self.shift


@dataclass(frozen=True)
class Classifier:
    """A trained model with the normalisation and the classes of its data; see `fedfm.load`.

    Examples:
        >>> from torch import nn
        >>> from fedfm.models import BodyAndHead
        >>> from fedfm.run.description import DataDescription
        >>> data = DataDescription(("no", "yes"), (4,), "float32", (0.0,), (1.0,))
        >>> classifier = Classifier(BodyAndHead(nn.Linear(4, 8), nn.Linear(8, 2)), data)
        >>> classifier.predict(torch.zeros(5, 4)).shape, len(classifier.classify(torch.zeros(5, 4)))
        (torch.Size([5, 2]), 5)
    """

    model: nn.Module
    """The network, x [N, ...] -> (features [N, d], logits [N, C]), in evaluation mode."""
    data: DataDescription
    """The form of its inputs, and the names of its classes."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the probabilities."""
        return self.data.classes

    @cached_property
    def program(self) -> Probabilities:
        """The network with its normalisation: raw inputs [N, ...] -> probabilities [N, C]."""
        return Probabilities(self.model, self.data).eval()

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Return the token ids of texts, for a model that was trained on texts.

        Args:
            texts: N texts.

        Returns:
            [N, length], int64.
        """
        require(len(self.data.vocabulary) > 0, "the model was not trained on texts")
        words = [split_words(text) for text in texts]
        return encode_words(words, self.data.vocabulary, self.data.shape[0])

    def predict(self, inputs: InputTree) -> Tensor:
        """Return the probabilities of the classes.

        Args:
            inputs: [N, ...], raw as they were read: they are normalised here. A dict or tuple of
                tensors if the model takes one.

        Returns:
            [N, C], on the CPU.
        """
        inputs = make_inputs(inputs)
        shape = map_inputs(lambda leaf: tuple(leaf.shape[1:]), inputs)
        wanted = self.data.shape
        require(shape == wanted, f"inputs have shape {shape}, but the model takes {wanted}")
        device, samples = self.program.scale.device, len(input_leaves(inputs)[0])
        batches = []
        for first in range(0, samples, BATCH):
            rows = slice(first, first + BATCH)
            batch = map_inputs(lambda leaf, rows=rows: leaf[rows].to(device), inputs)
            with torch.inference_mode():
                batches.append(self.program(batch).cpu())
        return torch.cat(batches) if batches else torch.empty(0, len(self.classes))

    def classify(self, inputs: InputTree) -> list[str]:
        """Return the most probable class of each input.

        Args:
            inputs: [N, ...], raw.

        Returns:
            N names.
        """
        return [self.classes[label] for label in self.predict(inputs).argmax(1).tolist()]

    def accuracy(self, inputs: InputTree, labels: Tensor) -> float:
        """Return the share of inputs [N, ...] whose most probable class is that of labels [N]."""
        return float((self.predict(inputs).argmax(1) == labels).double().mean())

    def state_dict(self) -> dict[str, Any]:
        """Return the weights under the network's own names, for its `load_state_dict`."""
        return export_state_dict(self.model)

    def save(self, path: Path | str) -> None:
        """Write the state dict to a .safetensors file, for `safetensors.torch.load_file`."""
        path = _check_suffix(path, STATE_DICT)
        tensors = {name: leaf.detach().cpu().clone() for name, leaf in self.state_dict().items()}
        write_atomically(path, save(tensors))

    def export(self, path: Path | str) -> None:
        """Write a program of torch.export to a .pt2 file, for `torch.export.load`.

        It takes raw inputs [N, ...] of the type `data.dtype` and any N, and returns probabilities
        [N, C].
        """
        path = _check_suffix(path, PROGRAM)
        require(
            self.data.dtype != "",
            "a program is written for models that take one tensor, not a dict or tuple: save the "
            "state dict instead",
        )
        example = torch.zeros(2, *self.data.shape, dtype=getattr(torch, self.data.dtype))
        example = example.to(self.program.scale.device)
        batch = torch.export.Dim("batch", min=1)
        inference = copy.deepcopy(self.program).requires_grad_(False)
        try:
            program = torch.export.export(
                inference, (example,), dynamic_shapes=({0: batch},), strict=False
            )
        except Exception as problem:  # whatever the network does that cannot be traced
            reason = str(problem).strip().splitlines()[0]
            name = type(self.model).__name__
            raise UserError(f"torch.export cannot trace {name}: {reason}") from problem
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        write_atomically(path, buffer.getvalue())


def _check_suffix(path: Path | str, suffix: str) -> Path:
    path = Path(path)
    require(path.suffix == suffix, f"{path}: the file's name must end in {suffix}")
    require(path.parent.is_dir(), f"{path.parent} is not a folder: make it first")
    return path
