"""Load your own methods, models, losses and metrics from files that the environment names.

Every process of a run finds them there: workers of a grid, and Flower's processes, where every
machine names its own files.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from inspect import Parameter, getsource, isfunction, signature
from pathlib import Path
from typing import Any

from fedfm.core.errors import UserError, require

VARIABLE = "FEDFM_METHODS"
CODE_DIGESTS: dict[str, str] = {}
"""The digest of a plugin's file by the name of each method, model, loss or metric in it.

Other code is another experiment."""
_loaded: set[Path] = set()
_source_digests: dict[Any, str] = {}


def add_plugins(files: Iterable[Path]) -> None:
    """Add files to the environment variable FEDFM_METHODS, as absolute paths.

    Args:
        files: Python files that register methods in `PIECES`, models in `MODELS`, losses in
            `LOSSES` or metrics in `METRICS`.
    """
    paths = (str(file.resolve()) for file in [*_list_files(), *files])
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(paths))


def load_plugins() -> None:
    """Run the files that the environment names, each once in a process."""
    for file in _list_files():
        if file not in _loaded:
            before = _list_registered()
            _run(file)
            _check_methods(file)
            _check_metrics(file)
            digest = _digest(file.read_bytes())
            after = _list_registered()
            CODE_DIGESTS.update({name: digest for name in after if before.get(name) != after[name]})
            _loaded.add(file)


def digest_sources(given: Mapping[str, Any]) -> dict[str, str]:
    """Return digests by name of the source of objects, or of functions, outside this package.

    Those whose source is not known have none.
    """
    digests = {}
    for name, value in given.items():
        code = value if isfunction(value) else type(value)
        if not str(code.__module__).startswith("fedfm."):
            with suppress(OSError, TypeError, SyntaxError):  # typed in, or being edited
                if code not in _source_digests:  # keep the first: the file may change later
                    _source_digests[code] = _digest(getsource(code).encode())
                digests[name] = _source_digests[code]
    return digests


def _digest(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()[:12]


def _list_registered() -> dict[str, object]:
    """Return methods by name, and models, losses and metrics by `model.`, ... and name."""
    from fedfm.losses import LOSSES
    from fedfm.methods import PIECES
    from fedfm.metrics import METRICS
    from fedfm.models import MODELS

    models = {f"model.{name}": kind for name, kind in MODELS.items()}
    losses = {f"loss.{name}": loss for name, loss in LOSSES.items()}
    metrics = {f"metric.{name}": kind for name, kind in METRICS.items()}
    return {**PIECES, **models, **losses, **metrics}


def _check_methods(file: Path) -> None:
    """Refuse what is not a method, and settings without defaults: `fedfm methods` lists these."""
    from fedfm.methods import PIECES
    from fedfm.methods.contract import check_piece, check_piece_name

    for name, kind in PIECES.items():
        try:
            check_piece(kind)
            check_piece_name(kind)
        except UserError as problem:
            raise UserError(f"plugin {file}: {problem}") from problem
        variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        settings = [p for p in signature(kind).parameters.values() if p.kind not in variadic]
        missing = [setting.name for setting in settings if setting.default is setting.empty]
        message = f"give {', '.join(missing)} of '{name}' a default value"
        require(not missing, f"plugin {file}: {message}")


def _check_metrics(file: Path) -> None:
    """Refuse what is not a metric, and one that is registered under another name."""
    from fedfm.metrics import METRICS
    from fedfm.metrics.measures import check_metric

    for name, kind in METRICS.items():
        try:
            check_metric(kind)
        except UserError as problem:
            raise UserError(f"plugin {file}: {problem}") from problem
        message = f"register metric '{kind.name}' as METRICS[\"{kind.name}\"], not as '{name}'"
        require(kind.name == name, f"plugin {file}: {message}")


def _list_files() -> list[Path]:
    return [Path(file) for file in os.environ.get(VARIABLE, "").split(os.pathsep) if file]


def _run(file: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"own_methods.{file.stem}", file)
    require(file.is_file(), f"plugin {file}: there is no such file")
    require(spec is not None, f"plugin {file}: not a Python file; its name must end in .py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as problem:
        reason = f"{type(problem).__name__}: {problem}"
        raise UserError(f"plugin {file} does not run: {reason}") from problem
