"""Checkpoints: safetensors files and a JSON manifest, whose replacement is the moment that counts.

Tensors go to files of new names first; the manifest that names them is replaced in one step; files
that nothing names any more are removed last. A crash at any moment leaves the last one whole.
"""

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedfm.core.errors import UserError, require
from fedfm.core.trees import Tree, flatten, unflatten

MANIFEST = "manifest.json"
FORMAT = 1

_MALFORMED = (ValueError, LookupError, TypeError, AttributeError)  # no JSON, or not of our form


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file's content in one step that survives a crash; nothing is left on failure."""
    temporary = unfinished(path)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def unfinished(path: Path) -> Path:
    """Where a file is written before it takes its place."""
    return path.with_name(path.name + ".partial")


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":
        return  # Windows does not open folders
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def to_bytes(tree: Tree) -> bytes:
    """A tree of tensors in the safetensors format, paths as names."""
    return save({path: leaf.detach().cpu().contiguous() for path, leaf in flatten(tree).items()})


def save_checkpoint(folder: Path, parts: Mapping[str, tuple[int, Tree]], facts: Any) -> None:
    """Save trees and plain facts; each part is (the round it belongs to, its tree).

    A part whose file of that round is there already is not written again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = {part: f"{part}-{round:06d}.safetensors" for part, (round, _) in parts.items()}
    for part, (_, tree) in parts.items():
        if not (folder / names[part]).exists():
            write_atomically(folder / names[part], to_bytes(tree))
    manifest = {"format": FORMAT, "files": names, "facts": facts}
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    _remove_others(folder, names.values())


def _remove_others(folder: Path, names: Collection[str]) -> None:
    for file in [*folder.glob("*.safetensors"), *folder.glob("*.partial")]:
        if file.name not in names:
            file.unlink()


def load_checkpoint(folder: Path) -> tuple[dict[str, Tree], Any] | None:
    """The last whole checkpoint, parts and facts; None where there is none yet.

    What a crash left behind beside it is removed.
    """
    path = folder / MANIFEST
    if not path.exists():
        _remove_others(folder, ())
        return None
    try:
        manifest = json.loads(path.read_text())
        found, files, facts = (manifest[key] for key in ("format", "files", "facts"))
        parts = {part: _load(folder / name) for part, name in files.items() if found == FORMAT}
    except (*_MALFORMED, SafetensorError, FileNotFoundError) as problem:
        raise Damaged(folder, problem) from problem
    require(found == FORMAT, f"{path}: format {found}, this version reads {FORMAT}")
    _remove_others(folder, files.values())
    return parts, facts


class Damaged(UserError):
    """A file is not as it was written."""

    def __init__(self, path: Path, problem: object) -> None:
        advice = "restore it from a backup or start again in another folder"
        super().__init__(f"{path} is damaged ({problem}); {advice}")


def _load(path: Path) -> Tree:
    tensors: dict[str, Tensor] = load_file(path)
    return unflatten(tensors)
