"""FedFM: federated learning for parties whose data differ.

from fedfm import FedFM, Partition, Protocol, data, models, simulate
"""

__version__ = "0.1.0.dev0"

from fedfm import data, models
from fedfm.algorithms import FedAvg, FedFM, FedFMLite, Piece, compose
from fedfm.api import simulate, simulate_seeds
from fedfm.core.errors import UserError
from fedfm.data.partition import Partition
from fedfm.protocol import Protocol
from fedfm.records import Result, RoundRecord

__all__ = [
    "FedAvg",
    "FedFM",
    "FedFMLite",
    "Partition",
    "Piece",
    "Protocol",
    "Result",
    "RoundRecord",
    "UserError",
    "compose",
    "data",
    "models",
    "simulate",
    "simulate_seeds",
]
