"""Count what crosses the network, from the messages themselves.

Two counts. *Floats* follow the paper: trainable parameters, anchors and control variates, not
batch-norm buffers and not integers (class counts, counters). *Bytes* are everything that is sent.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields

from torch import Tensor

from fedfm.core import trees
from fedfm.core.trees import Tree

BUFFERS = "buffers"
"""The section of a message that holds a model's buffers."""


@dataclass(frozen=True)
class Traffic:
    """What is sent: sums over the clients of a round, or over rounds.

    Examples:
        >>> Traffic(floats_up=3, handshakes=1) + Traffic(floats_up=4, handshakes=1)
        Traffic(floats_up=7, floats_down=0, bytes_up=0, bytes_down=0, handshakes=2)
    """

    floats_up: int = 0
    """Floats from clients to the server, as the paper counts them."""
    floats_down: int = 0
    """Floats from the server to clients."""
    bytes_up: int = 0
    """Bytes from clients to the server: everything that is sent."""
    bytes_down: int = 0
    """Bytes from the server to clients."""
    handshakes: int = 0
    """Exchanges between server and clients."""

    def __add__(self, other: "Traffic") -> "Traffic":
        """Add field by field."""
        return Traffic(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def as_dict(self) -> dict[str, int]:
        """Return plain numbers by name."""
        return asdict(self)


def float_leaves(message: Tree) -> Iterator[Tensor]:
    """Iterate over the tensors whose numbers count as floats in the paper's convention."""
    for section, content in message.items():
        if isinstance(content, dict):
            yield from float_leaves(content) if section != BUFFERS else ()
        elif content.is_floating_point():
            yield content


def count_floats(message: Tree) -> int:
    """Count the floats in a message in the paper's convention."""
    return sum(leaf.numel() for leaf in float_leaves(message))


def count_held_floats(held: Tree) -> int:
    """Count the floats of one client in trees [S, ...] or [1, ...], shared tensors once."""
    unique = {id(leaf): leaf for leaf in float_leaves(held)}
    return sum(leaf[0].numel() for leaf in unique.values())


def count_bytes(message: Tree) -> int:
    """Count the bytes of all tensors in a message."""
    return sum(leaf.numel() * leaf.element_size() for leaf in trees.leaves(message))


def count_upload(messages: Tree) -> Traffic:
    """Count what the clients send with messages [S, ...]."""
    return Traffic(floats_up=count_floats(messages), bytes_up=count_bytes(messages))


class Ledger:
    """Adds up the messages of one round."""

    def __init__(self) -> None:
        self.traffic = Traffic()

    def record_download(self, message: Tree, clients: int) -> None:
        """Record that a message [...] goes to each of `clients` clients."""
        count, size = clients * count_floats(message), clients * count_bytes(message)
        self.traffic += Traffic(floats_down=count, bytes_down=size)

    def record_handshake(self, answers: Traffic) -> None:
        """Record one more exchange of this round, with the clients' answers."""
        self.traffic += answers + Traffic(handshakes=1)
