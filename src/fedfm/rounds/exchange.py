"""What server and clients say to each other: the server asks a cohort, and receives sums.

The server needs nothing but sums over clients. That is what lets one definition of a round serve a
simulated cohort, whose sums are taken where it is trained, real clients that send a summand each,
and clients whose summands are masked so that nobody sees a single one.
"""

from typing import Literal, NamedTuple

from fedfm.core.client_states import ClientStates
from fedfm.core.ledger import Traffic
from fedfm.core.trees import Tree
from fedfm.methods.base import Model


class Request(NamedTuple):
    """What the server asks the clients of a cohort to do in a round (from 0)."""

    kind: Literal["measure", "train"]
    """Report statistics under the global model, or train, report and send."""
    round: int
    cohort: list[int]
    model: Model
    """The global model, leaves [...]."""
    newcomers: list[int]
    """Who has to be sent the model with this question: those who do not go on from their own."""
    down: Tree
    """The pieces' messages [...]; none with "measure"."""
    kept: ClientStates
    """What every client keeps from earlier rounds."""
    sharing: bool
    """Whether models go up at the end of the round."""
    unit: float = 1.0
    """Samples are counted in this unit."""


class Sums(NamedTuple):
    """What the clients of a cohort answered, added up."""

    total: Tree
    """The reports of each piece [...], or what `clients.sum_contributions` has."""
    present: list[int]
    """Who answered, ascending."""
    clients: list[int]
    """Of those, whose answer is in the sum; the others' was not fit for it."""
    kept: ClientStates
    """What every client keeps from now on."""
    traffic: Traffic
    """What went up."""
    held: int = 0
    """Floats a client held while it trained."""
