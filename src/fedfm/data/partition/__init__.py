"""Divide the training samples of a data set among clients.

The settings are in settings.py. The artificial kinds draw a division (deal.py, dirichlet.py,
classes.py) and may change inputs (features.py); the others take the clients that samples belong to
(given.py).
"""

from fedfm.data.partition.deal import KINDS, count_classes, deal, deal_labels, divide, tabulate
from fedfm.data.partition.given import assign, read_clients
from fedfm.data.partition.settings import Kind, Partition

__all__ = [
    "KINDS",
    "Kind",
    "Partition",
    "assign",
    "count_classes",
    "deal",
    "deal_labels",
    "divide",
    "read_clients",
    "tabulate",
]
