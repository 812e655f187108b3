"""Files that are replaced in one step."""

import os
from pathlib import Path

from fedfm.core.errors import name_file


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file's content in one step that survives a crash; nothing is left on failure."""
    temporary = partial_path(path)
    try:
        with name_file(path), temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def partial_path(path: Path) -> Path:
    """Return the path that a file is written to before it replaces the old one."""
    return path.with_name(path.name + ".partial")


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":
        return  # Windows does not open folders
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
