"""Configs of runs: their keys, how they are read, and how mistakes are described."""

from fedfm.config.overrides import full_key, override, plain_value, use_method_table
from fedfm.config.reading import builtin_names, load_config, make_config, parse, resolve
from fedfm.config.schema import Config
from fedfm.config.sections import DataConfig, ModelConfig

__all__ = [
    "Config",
    "DataConfig",
    "ModelConfig",
    "builtin_names",
    "full_key",
    "load_config",
    "make_config",
    "override",
    "parse",
    "plain_value",
    "resolve",
    "use_method_table",
]
