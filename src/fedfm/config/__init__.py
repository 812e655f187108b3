"""Configs of runs: what they consist of, how they are read, what is said of mistakes."""

from fedfm.config.keys import full_key, normalised, override, plain_value
from fedfm.config.reading import builtin_names, load_config, make_config, parse, resolve
from fedfm.config.schema import Config, DataConfig, ModelConfig

__all__ = [
    "Config",
    "DataConfig",
    "ModelConfig",
    "builtin_names",
    "full_key",
    "load_config",
    "make_config",
    "normalised",
    "override",
    "parse",
    "plain_value",
    "resolve",
]
