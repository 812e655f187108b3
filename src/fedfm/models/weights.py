"""Pretrained weights: read from a safetensors file under several libraries' names, and frozen.

A file has the names of the network itself (those of torchvision for a ResNet), or Hugging Face's
names of a ResNet.
"""

import hashlib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedfm.core.errors import UserError, require, unknown_name_error
from fedfm.models.adapter import WithFeatures

logger = logging.getLogger(__name__)
HUGGING_FACE = (
    (r"^resnet\.", r""),
    (r"^embedder\.embedder\.convolution\.", r"conv1."),
    (r"^embedder\.embedder\.normalization\.", r"bn1."),
    (r"^encoder\.stages\.(\d+)\.layers\.", r"layer{\1}."),
    (r"\.shortcut\.convolution\.", r".downsample.0."),
    (r"\.shortcut\.normalization\.", r".downsample.1."),
    (r"\.layer\.(\d+)\.convolution\.", r".conv{\1}."),
    (r"\.layer\.(\d+)\.normalization\.", r".bn{\1}."),
    (r"^classifier\.1\.", r"fc."),
)
"""Hugging Face's names of a ResNet as torchvision's; {n} stands for n + 1."""
COUNTER = "num_batches_tracked"
"""PyTorch's name of a buffer that older files lack and that training does not need."""


def digest_file(path: Path) -> str:
    """Return a digest of a file's content."""
    try:
        facts = path.stat()
    except OSError as problem:
        reason = problem.strerror or problem
        raise UserError(f"model.weights: cannot read {path}: {reason}") from problem
    return _digest(path.resolve(), facts.st_mtime_ns, facts.st_size)


@lru_cache
def _digest(path: Path, changed: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def load_weights(model: nn.Module, path: Path) -> None:
    """Give a network the weights in a file; a head for other classes keeps its initial values.

    Args:
        model: The network, wrapped by `WithFeatures` or not.
        path: A safetensors file with the network's own names, or Hugging Face's of a ResNet.
    """
    bare = _unwrap(model)
    wanted = bare.state_dict()
    weights = translate(_read(path), wanted)
    head = _head(model)
    fits = {name for name, leaf in weights.items() if _shape(wanted, name) == leaf.shape}
    outside = {name for name in wanted if name not in fits and name.startswith(f"{head}.")}
    _check_names(path, weights, wanted, outside)
    _check_shapes(path, weights, wanted, outside)
    with torch.no_grad():
        for name in fits:
            wanted[name].copy_(weights[name])
    if outside:
        logger.info("%s has no head for these classes: '%s' keeps its initial values", path, head)


def freeze_layers(model: nn.Module, layers: Sequence[str]) -> None:
    """Exclude the parameters of some layers from training.

    Args:
        model: The network, wrapped by `WithFeatures` or not.
        layers: Dotted names of layers or parameters, or patterns such as "layer[12]".
    """
    bare = _unwrap(model)
    names = {name: [*_prefixes(name)] for name, _ in bare.named_parameters()}
    for layer in layers:
        matching = [n for n, parts in names.items() if any(fnmatchcase(p, layer) for p in parts)]
        if not matching:
            known = {parts[0] for parts in names.values()}
            raise unknown_name_error("layer of model.freeze", layer, known)
        for name in matching:
            bare.get_parameter(name).requires_grad_(False)


def _prefixes(name: str) -> Iterable[str]:
    """Yield the layers that a parameter is in, and its own name."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def translate(weights: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Return weights under a network's own `names`, if they have Hugging Face's."""
    known = set(names)
    renamed = {_from_hugging_face(name): leaf for name, leaf in weights.items()}
    return renamed if len(known & renamed.keys()) > len(known & weights.keys()) else dict(weights)


def _from_hugging_face(name: str) -> str:
    for pattern, replacement in HUGGING_FACE:
        name = re.sub(pattern, replacement, name)
    return re.sub(r"\{(\d+)\}", lambda number: str(int(number[1]) + 1), name)


def _read(path: Path) -> dict[str, Tensor]:
    require(
        path.suffix == ".safetensors",
        f"model.weights: {path} is not a .safetensors file; save its state dict with "
        "safetensors.torch.save_file(state_dict, ...)",
    )
    try:
        return load_file(path)
    except (OSError, SafetensorError) as problem:
        raise UserError(f"model.weights: cannot read {path} as safetensors: {problem}") from problem


def _unwrap(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, WithFeatures) else model


def _head(model: nn.Module) -> str:
    name = str(getattr(model, "head_name", ""))
    return name.removeprefix("module.") if isinstance(model, WithFeatures) else name


def _shape(tensors: Mapping[str, Tensor], name: str) -> torch.Size | None:
    return tensors[name].shape if name in tensors else None


def _check_names(
    path: Path, weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor], optional: set[str]
) -> None:
    missing = [n for n in wanted if n not in weights and n not in optional]
    missing = [name for name in missing if not name.endswith(COUNTER)]
    extra = [name for name in weights if name not in wanted]
    for names, one, other in ((missing, path, "the model"), (extra, "the model", path)):
        require(
            not names,
            f"model.weights: {one} lacks {_list(names)} of {other}: choose the model and the "
            "options that the weights were trained with",
        )


def _check_shapes(
    path: Path, weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor], optional: set[str]
) -> None:
    for name, initial in wanted.items():
        leaf = weights.get(name, initial)
        here, there = list(initial.shape), list(leaf.shape)
        require(
            here == there or name in optional,
            f"model.weights: '{name}' is {there} in {path} and {here} in the model; "
            + _suggest(name, here, there),
        )
        finite = not leaf.is_floating_point() or bool(torch.isfinite(leaf).all())
        require(finite, f"model.weights: '{name}' in {path} has NaN or infinite numbers")


def _suggest(name: str, here: Sequence[int], there: Sequence[int]) -> str:
    """Return what to do about a tensor of another shape."""
    if name == "conv1.weight" and len(there) == len(here) == 4:
        if here[2:] != there[2:]:
            return f"set model.stem = '{'imagenet' if there[2] == 7 else 'cifar'}'"
        if here[1] != there[1]:
            return f"give it images of {there[1]} channels"
    return "choose the options that the weights were trained with"


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" for name in names[:3]) + more
