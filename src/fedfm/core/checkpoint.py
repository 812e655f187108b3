"""Checkpoints: safetensors files and a JSON manifest that names them.

Saving first writes tensors to new files, then replaces the manifest in one step, and last removes
files that the manifest does not name. A crash at any moment leaves the last checkpoint whole.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from fedfm.core.errors import UserError, require
from fedfm.core.files import write_atomically
from fedfm.core.trees import Tree, flatten, unflatten

MANIFEST = "manifest.json"
FORMAT = 1

_MALFORMED = (ValueError, LookupError, TypeError, AttributeError)  # not JSON, or not in our format


def to_bytes(tree: Tree) -> bytes:
    """Return a tree of tensors in the safetensors format, with paths as names."""
    return save({path: leaf.detach().cpu().contiguous() for path, leaf in flatten(tree).items()})


def save_checkpoint(folder: Path, parts: Mapping[str, tuple[int, Tree]], facts: Any) -> None:
    """Save trees and plain facts; each part is (its round, its tree).

    A part whose file of that round exists is not written again.
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
    """Return the parts and facts of the last checkpoint, or None if there is none.

    Remove the files that a crash left behind.
    """
    path = folder / MANIFEST
    if not path.exists():
        _remove_others(folder, ())
        return None
    try:
        manifest = json.loads(path.read_text())
        format, files, facts = (manifest[key] for key in ("format", "files", "facts"))
        parts = {
            part: unflatten(load_file(folder / name))
            for part, name in files.items()
            if format == FORMAT
        }
    except (*_MALFORMED, SafetensorError, FileNotFoundError) as problem:
        raise Damaged(folder, problem) from problem
    require(format == FORMAT, f"{path} has format {format}; this version reads format {FORMAT}")
    _remove_others(folder, files.values())
    return parts, facts


class Damaged(UserError):
    """A file cannot be read as it was written."""

    def __init__(self, path: Path, problem: object) -> None:
        advice = "restore it from a backup or start again in another folder"
        super().__init__(f"{path} is damaged ({problem}); {advice}")
