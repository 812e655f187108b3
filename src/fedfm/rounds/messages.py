"""The messages between server and clients: the server sends requests and receives sums.

The server needs only sums over clients. One definition of a round therefore serves a simulated
cohort, which is summed where it is trained, real clients that send one summand each, and clients
with masked summands that nobody sees individually.
"""

from typing import Literal, NamedTuple

from fedfm.core.client_states import ClientStates
from fedfm.core.ledger import Traffic
from fedfm.core.trees import Tree
from fedfm.methods.base import Model


class Request(NamedTuple):
    """What the clients of a cohort have to do in a round (from 0)."""

    kind: Literal["measure", "train"]
    """Report statistics under the global model, or train, report and send."""
    round: int
    cohort: list[int]
    model: Model
    """The global model, leaves [...], or the one that the method lets clients start from."""
    newcomers: list[int]
    """The clients that need the global model: those that do not continue from their own."""
    first: list[int]
    """The newcomers that need all of it; the others have what is sent once."""
    down: Tree
    """The pieces' messages [...]; empty with "measure"."""
    kept: ClientStates
    """What every client keeps from earlier rounds."""
    sharing: bool
    """Whether clients send models at the end of the round."""
    unit: float = 1.0
    """The unit in which samples are counted."""
    when: Literal["before", "end"] = "before"
    """Which statistics "measure" asks for, see `Piece.measures`."""


class Sums(NamedTuple):
    """The answers of a cohort, summed."""

    total: Tree
    """The reports of each piece [...], or the result of `clients.sum_contributions`."""
    present: list[int]
    """The clients that answered, ascending."""
    clients: list[int]
    """The clients in the sum; the answers of the others were not finite."""
    kept: ClientStates
    """What every client keeps from now on."""
    traffic: Traffic
    """What the clients sent."""
    held: int = 0
    """The floats that a client held in training."""
