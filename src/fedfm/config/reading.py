"""Configs: a TOML file or a built-in name, plus overrides."""

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from torch import nn

from fedfm.config.overrides import full_key, override, set_value, use_method_table
from fedfm.config.schema import SECTIONS, Config
from fedfm.config.sections import DataConfig, ModelConfig
from fedfm.config.training import Training
from fedfm.config.validation import field_names, piece_settings, validate
from fedfm.core.errors import UserError, require, unknown_name_error
from fedfm.data.dataset import Dataset
from fedfm.data.partition import Partition
from fedfm.losses import name_of
from fedfm.methods import PIECES, Method, Piece, compose
from fedfm.metrics import Metric
from fedfm.metrics.measures import check_metric


def builtin_names() -> list[str]:
    """Return the names of the configs that ship with the package.

    Returns:
        The names, sorted.

    Examples:
        >>> builtin_names()
        ['cifar10', 'cifar100', 'cinic10', 'digits', 'fashion-mnist']
    """
    folder = resources.files("fedfm.config") / "builtin"
    return sorted(
        Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".toml")
    )


def load_config(source: str, overrides: Iterable[str] = ()) -> Config:
    """Return the config of a TOML file or of a built-in name, after overrides.

    A method that an override chooses keeps the settings it has by then.

    Args:
        source: The path of a TOML file, or one of `builtin_names()`.
        overrides: Settings as 'key=value', as `--set` takes them.

    Returns:
        The config, with everything resolved.

    Raises:
        UserError: If a key or a value is wrong.

    Examples:
        >>> load_config("digits", ["fedfm.strength=2", "rounds=10"]).method["fedfm"]["strength"]
        2.0
    """
    table = use_method_table(_read(source))
    chosen = _pieces(table) or [*Config.model_fields["method"].default]
    for path, value in map(override, overrides):
        path = _name_piece(path, chosen)
        table = use_method_table(set_value(table, path, value), table.get("method"))
        if path == ["method"]:
            chosen = _pieces(table)
    _check_chosen(table, chosen)
    return parse(table)


def _pieces(table: dict[str, Any]) -> list[str]:
    method = table.get("method")
    return [*method] if isinstance(method, dict) else []


def _name_piece(path: list[str], chosen: list[str]) -> list[str]:
    """Return the full path of a setting that is given without its piece: 'method.strength'."""
    if path[0] != "method" or len(path) != 2 or path[1] in PIECES:
        return path
    settings = {name: field_names(PIECES[name]) for name in chosen if name in PIECES}
    pieces = [name for name, known in settings.items() if path[1] in known]
    if not pieces:
        known = {each for several in settings.values() for each in several}
        raise unknown_name_error(f"setting of {' + '.join(chosen)}:", path[1], known)
    require(
        len(pieces) == 1,
        f"method.{path[1]} is a setting of {' and '.join(pieces)}: say {pieces[0]}.{path[1]} or "
        f"{pieces[-1]}.{path[1]}",
    )
    return ["method", pieces[0], path[1]]


def _check_chosen(table: dict[str, Any], chosen: list[str]) -> None:
    """Refuse settings of a method that is not run: they would add it to the others."""
    for name in _pieces(table):
        both = json.dumps([*chosen, name])
        require(
            name in chosen,
            f"settings of '{name}', but the method is {' + '.join(chosen)}: choose it with "
            f"method={name}, or choose both with 'method={both}'",
        )


def parse(table: dict[str, Any], given: Mapping[str, Any] | None = None) -> Config:
    """Return the config of nested values, as `tomllib` reads them.

    Args:
        table: The keys and sections.
        given: Pieces that were given from Python by name; metrics and a loss as `metric.` or
            `loss.` and their name.

    Returns:
        The config, with everything resolved.

    Raises:
        UserError: If a key or a value is wrong.

    Examples:
        >>> parse({"method": ["fedprox", "fedfm"]}).composed.name
        'fedprox+fedfm'
    """
    return validate(Config, use_method_table(table), sections=SECTIONS, place=_place, context=given)


def make_config(
    method: Any,
    *,
    model: Any = None,
    data: Any = None,
    loss: Any = None,
    metrics: Any = None,
    **settings: Any,
) -> Config:
    """Return the config of a run whose parts are Python objects, or words as in a TOML file.

    Objects are recorded by name and digest.

    Args:
        method: A piece, several pieces, names, or a table of names and settings.
        model: A network, a name or a table.
        data: A data set, a name or a table.
        loss: A function of logits and labels that replaces cross-entropy.
        metrics: A metric, its name, or several of them.
        settings: Further keys and sections.

    Returns:
        The config, with everything resolved.

    Raises:
        UserError: If a key or a value is wrong.

    Examples:
        >>> from fedfm import FedAvg
        >>> make_config(FedAvg(), model="mlp", training={"rounds": 5}).model.name
        'mlp'
    """
    table = {key: value for key, value in settings.items() if value is not None}
    given: dict[str, Any] = {}
    if isinstance(method, Method):
        method = method.pieces
    elif isinstance(method, Iterable) and not isinstance(method, str | Mapping):
        method = list(method)
    if isinstance(method, Piece) or (isinstance(method, list | tuple) and _has_pieces(method)):
        given = {piece.name: piece for piece in compose(method).pieces}
        method = {name: piece_settings(piece) for name, piece in given.items()}
    table["method"] = method
    for key, value in (("model", model), ("data", data)):
        if value is not None:
            table[key] = _record(value)
    if loss is not None:
        require(callable(loss), "loss must be a function of logits and labels; name it in training")
        table["training"] = _name_loss(table.get("training", {}), name_of(loss))
        given[f"loss.{name_of(loss)}"] = loss
    if metrics is not None:
        chosen = [metrics] if isinstance(metrics, str | Metric) else [*metrics]
        table["metrics"] = [_name_metric(metric) for metric in chosen]
        given |= {f"metric.{each.name}": each for each in chosen if isinstance(each, Metric)}
    return parse(table, given)


def _name_loss(training: Any, name: str) -> Any:
    """Return the section [training] with the name of a loss."""
    if isinstance(training, Training):
        return replace(training, loss=name)
    return {**training, "loss": name} if isinstance(training, Mapping) else training


def _name_metric(metric: Any) -> str:
    """Return the name of a metric that was given from Python."""
    if isinstance(metric, str):
        return metric
    given = isinstance(metric, Metric)
    check_metric(type(metric) if given else metric)
    require(given, f"give a metric itself, not its class {metric!r}")
    name: str = metric.name
    return name


def _has_pieces(method: Sequence[Any]) -> bool:
    """Return whether a method is given as pieces; refuse a mixture of pieces and names."""
    pieces = [isinstance(each, Piece) for each in method]
    require(all(pieces) or not any(pieces), "a method is made of pieces or of names, not of both")
    return any(pieces)


def _record(part: Any) -> Any:
    """Return the section of a config that stands for a network, a data set or a name."""
    if isinstance(part, nn.Module):
        return ModelConfig.of(part)
    if isinstance(part, Dataset):
        return DataConfig.of(part)
    return {"name": part} if isinstance(part, str) else part


def resolve(table: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded config with the defaults of keys that it lacks, where it can be read.

    An older version, or another machine's methods, may have written it.
    """
    try:
        return parse(table).as_toml() | {"code": table.get("code", {})}
    except UserError:
        return table


def _place(section: str, key: str) -> str | None:
    """Return where an unknown key belongs; None if the keys of its section say it."""
    if full_key(key) != key:
        return f"it is called {full_key(key)}"
    if section:
        return None
    pieces = [name for name, kind in PIECES.items() if key in field_names(kind)]
    if pieces:
        return f"a setting of {', '.join(pieces)}, so e.g. {pieces[-1]}.{key}"
    known = [name for name in Config.model_fields if name != "code"]
    short = [*PIECES, *field_names(Training), *field_names(Partition)]
    near = difflib.get_close_matches(key, [*known, *short], n=1)
    return f"did you mean '{full_key(near[0])}'?" if near else f"known: {', '.join(sorted(known))}"


def _read(source: str) -> dict[str, Any]:
    path = Path(source)
    if path.suffix != ".toml" and not path.is_file():
        if source not in builtin_names():
            raise unknown_name_error("config", source, builtin_names())
        return tomllib.loads(
            (resources.files("fedfm.config") / "builtin" / f"{source}.toml").read_text()
        )
    require(path.is_file(), f"there is no config file {source}")
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UserError(f"{source} is not valid TOML: {problem}") from problem
