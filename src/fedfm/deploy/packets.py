"""Packets: the questions and answers of server and clients, and their form in Flower's records.

Facts are sent as JSON, trees of tensors as safetensors. Received bytes are never executed or
unpickled: JSON and safetensors hold plain values only.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from flwr.app import Array, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedfm.core.checkpoint import to_bytes
from fedfm.core.errors import UserError, require
from fedfm.core.trees import Tree, complete, flatten, unflatten
from fedfm.deploy.payload import Payload, read_payload, to_array, to_record

PROTOCOL_VERSION = 3
"""The version of the packets and of the words in a secure sum; both sides need the same."""

_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError, SafetensorError)
"""What is raised for bytes that are not JSON, not safetensors, or not of our form."""

Arrays = dict[int, Array]
"""Converted trees by the identity of the tree: a tree for many clients is written once."""


class Packet(NamedTuple):
    """A question or an answer."""

    facts: dict[str, Any]
    trees: Mapping[str, Tree] = {}


def pack(packet: Packet, arrays: Arrays | None = None) -> RecordDict:
    """Return a packet as Flower's record; `arrays` caches trees that several packets share."""
    known: Arrays = {} if arrays is None else arrays
    for tree in packet.trees.values():
        if id(tree) not in known:
            known[id(tree)] = to_array(to_bytes(tree))
    named = {name: known[id(tree)] for name, tree in packet.trees.items()}
    return to_record(_write_facts(packet), named)


def unpack(content: RecordDict, limit: int) -> Packet:
    """Return the packet in a record; its trees lack empty branches.

    Raise a `UserError` if the record is malformed or has more than `limit` bytes.
    """
    try:
        payload = read_payload(content)
    except _MALFORMED as problem:
        raise UserError(f"the message is not a packet of FedFM ({problem})") from problem
    return decode(payload, limit)


def encode(packet: Packet) -> Payload:
    """Return a packet as bytes."""
    trees = {name: to_bytes(tree) for name, tree in packet.trees.items()}
    return Payload(_write_facts(packet), trees)


def decode(payload: Payload, limit: int) -> Packet:
    """Undo `encode`; refuse a malformed payload and one of more than `limit` bytes."""
    size = payload.size
    require(size <= limit, f"the message has {size:,} bytes; message_limit is {limit:,}")
    try:
        facts = json.loads(payload.facts)
        require(isinstance(facts, dict), "the facts of the message are not a table")
        return Packet(facts, {name: _read_tree(data) for name, data in payload.trees.items()})
    except UserError:
        raise
    except _MALFORMED as problem:
        raise UserError(f"the message is not a packet of FedFM ({problem})") from problem


def _write_facts(packet: Packet) -> str:
    return json.dumps(packet.facts, separators=(",", ":"))


def _read_tree(data: bytes) -> Tree:
    leaves = load(data)
    tree = unflatten(leaves)
    if flatten(tree).keys() != leaves.keys():
        raise ValueError("a tensor has the name of a branch")
    return tree


def match_tree(tree: Tree, like: Tree) -> Tree:
    """Return `tree` with the empty branches of `like`; its leaves must match in name and form."""
    leaves, wanted = flatten(tree), flatten(like)
    for name in sorted(leaves.keys() ^ wanted.keys()):
        raise UserError(f"'{name}' is {'not expected' if name in leaves else 'missing'}")
    for name, leaf in wanted.items():
        _check_leaf(name, leaves[name], leaf)
    return complete(tree, like)


def _check_leaf(name: str, leaf: Tensor, like: Tensor) -> None:
    for what, given, expected in (
        ("shape", tuple(leaf.shape), tuple(like.shape)),
        ("type", leaf.dtype, like.dtype),
    ):
        require(given == expected, f"'{name}' has {what} {given}; expected {expected}")
