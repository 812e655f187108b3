"""FedFM: federated learning for parties whose data differ.

from fedfm import FedFM, Partition, Training, data, models, simulate
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from fedfm import data, models
    from fedfm.config.training import Training
    from fedfm.core.errors import UserError
    from fedfm.data.partition import Partition
    from fedfm.methods import FedAvg, FedFM, FedFMLite, Piece, compose
    from fedfm.metrics import Metric
    from fedfm.run.classifier import Classifier
    from fedfm.run.load import load
    from fedfm.run.records import Result, RoundRecord
    from fedfm.run.simulate import simulate, simulate_seeds

__all__ = [
    "Classifier",
    "FedAvg",
    "FedFM",
    "FedFMLite",
    "Metric",
    "Partition",
    "Piece",
    "Result",
    "RoundRecord",
    "Training",
    "UserError",
    "compose",
    "data",
    "load",
    "models",
    "simulate",
    "simulate_seeds",
]

_MODULES = {
    "Classifier": "run.classifier",
    "FedAvg": "methods",
    "FedFM": "methods",
    "FedFMLite": "methods",
    "Metric": "metrics",
    "Partition": "data.partition",
    "Piece": "methods",
    "Result": "run.records",
    "RoundRecord": "run.records",
    "Training": "config.training",
    "UserError": "core.errors",
    "compose": "methods",
    "load": "run.load",
    "simulate": "run.simulate",
    "simulate_seeds": "run.simulate",
}


def __getattr__(name: str) -> Any:
    """Import public names when they are first used, so that `fedfm --help` needs no torch."""
    if name in ("data", "models"):
        return import_module(f"fedfm.{name}")
    if name in _MODULES:
        return getattr(import_module(f"fedfm.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'fedfm' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    return sorted([*__all__, "__version__"])
