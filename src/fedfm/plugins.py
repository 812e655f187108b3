"""Methods and models of your own, in files that the command line or the environment names.

The environment is how all processes of a run get to know them: workers, and on real machines
Flower's, where everybody names files of his own.
"""

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from inspect import Parameter, getsource, signature
from pathlib import Path

from fedfm.core.errors import UserError, require
from fedfm.methods import PIECES, Piece
from fedfm.methods.contract import check_name, check_piece
from fedfm.models import MODELS

VARIABLE = "FEDFM_METHODS"
CODE_DIGESTS: dict[str, str] = {}
"""By name, the digest of the file that a method or model is in: other code, other experiment."""
_known: set[Path] = set()
_sources: dict[type[Piece], str] = {}


def add_plugins(files: Iterable[Path]) -> None:
    """Add files to those that the environment names, for processes in any folder."""
    whole = (str(file.resolve()) for file in [*_named(), *files])
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(whole))


def load_plugins() -> None:
    """Run the files that the environment names, each once in a process."""
    for file in _named():
        if file not in _known:
            before = _registered()
            _run(file)
            _check(file)
            digest = _digest(file.read_bytes())
            CODE_DIGESTS.update(
                {name: digest for name, own in _registered().items() if before.get(name) != own}
            )
            _known.add(file)


def digest_sources(pieces: Iterable[Piece]) -> dict[str, str]:
    """Digests of the source of pieces that are not the package's, as far as it is at hand."""
    found = {}
    for piece in pieces:
        kind = type(piece)
        if not kind.__module__.startswith("fedfm."):
            with suppress(OSError, TypeError, SyntaxError):  # typed in, or being edited
                if kind not in _sources:  # it stays as it was when its file changes
                    _sources[kind] = _digest(getsource(kind).encode())
                found[piece.name] = _sources[kind]
    return found


def _digest(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()[:12]


def _registered() -> dict[str, object]:
    """Methods by name, and models by `model.` and name."""
    return {**PIECES, **{f"model.{name}": kind for name, kind in MODELS.items()}}


def _check(file: Path) -> None:
    """Refuse what is no method, and what needs settings: lists of methods show their defaults."""
    for name, kind in PIECES.items():
        try:
            check_piece(kind)
            check_name(kind)
        except UserError as problem:
            raise UserError(f"a method of your own: {file}: {problem}") from problem
        given = signature(kind).parameters.values()
        several = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        named = [each for each in given if each.kind not in several]
        lacking = [each.name for each in named if each.default is each.empty]
        said = f"give {', '.join(lacking)} of '{name}' a default value"
        require(not lacking, f"a method of your own: {file}: {said}")


def _named() -> list[Path]:
    return [Path(file) for file in os.environ.get(VARIABLE, "").split(os.pathsep) if file]


def _run(file: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"own_methods.{file.stem}", file)
    require(file.is_file(), f"a method of your own: there is no file {file}")
    require(spec is not None, f"a method of your own: {file} is no Python file")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as problem:
        said = f"{type(problem).__name__}: {problem}"
        raise UserError(f"a method of your own: {file} does not run: {said}") from problem
