"""How packets travel: facts as JSON and trees of tensors as safetensors, in Flower's records.

Nothing that is received is executed or unpickled: JSON and safetensors hold plain values only.
"""

import json

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load

from fedfm.core.checkpoint import to_bytes
from fedfm.core.errors import UserError, require
from fedfm.core.trees import Tree, flatten, unflatten
from fedfm.deploy.packets import Packet

FACTS, TREES = "facts", "trees"
FORMAT = "safetensors"

_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError, SafetensorError)
"""What is raised by bytes that are no JSON, no safetensors, or not of our form."""

Arrays = dict[int, Array]
"""Trees as they travel, by the trees' identities: one that goes to many is written once."""


def packed(packet: Packet, arrays: Arrays | None = None) -> RecordDict:
    """A packet as Flower carries it; `arrays` remembers trees that other packets have too."""
    text = json.dumps(packet.facts, separators=(",", ":"))
    content = RecordDict({FACTS: ConfigRecord({"json": text})})
    known: Arrays = {} if arrays is None else arrays
    for tree in packet.trees.values():
        if id(tree) not in known:
            data = to_bytes(tree)
            known[id(tree)] = Array(dtype="uint8", shape=(len(data),), stype=FORMAT, data=data)
    content[TREES] = ArrayRecord(
        array_dict={name: known[id(tree)] for name, tree in packet.trees.items()}
    )
    return content


def unpacked(content: RecordDict, limit: int) -> Packet:
    """The packet in a record; a `UserError` says why it is none, or that it has over `limit` bytes.

    Trees have lost their empty branches.
    """
    try:
        text = str(content.config_records[FACTS]["json"])
        arrays = content.array_records.get(TREES, ArrayRecord(array_dict={}))
        size = len(text) + sum(len(array.data) for array in arrays.values())
        require(size <= limit, f"the message has {size:,} bytes; message_limit is {limit:,}")
        facts = json.loads(text)
        require(isinstance(facts, dict), "the message's facts are no table")
        return Packet(facts, {name: _tree(array.data) for name, array in arrays.items()})
    except UserError:
        raise
    except _MALFORMED as problem:
        raise UserError(f"the message is no packet of ours ({problem})") from problem


def _tree(data: bytes) -> Tree:
    leaves = load(data)
    tree = unflatten(leaves)
    if flatten(tree).keys() != leaves.keys():
        raise ValueError("a tensor has the name of a branch")
    return tree
