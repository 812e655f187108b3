"""The content of a message as plain bytes, and its form in Flower's records.

A payload is what travels: the facts as JSON text, and trees of tensors as safetensors. It can be
carried, signed and checked without PyTorch; `packets` turns it into values and back.
"""

from collections.abc import Mapping
from typing import NamedTuple

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

FACTS, TREES = "facts", "trees"
FORMAT = "safetensors"


class Payload(NamedTuple):
    """The content of a question or an answer."""

    facts: str
    """A table as JSON."""
    trees: Mapping[str, bytes] = {}
    """Trees as safetensors, by name."""

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self.facts) + sum(map(len, self.trees.values()))


def to_array(data: bytes) -> Array:
    """Return a tree's bytes in Flower's form."""
    return Array(dtype="uint8", shape=(len(data),), stype=FORMAT, data=data)


def to_record(facts: str, arrays: Mapping[str, Array]) -> RecordDict:
    """Return a message's content in Flower's form."""
    record = RecordDict({FACTS: ConfigRecord({"json": facts})})
    record[TREES] = ArrayRecord(array_dict=dict(arrays))
    return record


def write_payload(payload: Payload) -> RecordDict:
    """Return a payload in Flower's form."""
    return to_record(payload.facts, {name: to_array(data) for name, data in payload.trees.items()})


def read_payload(record: RecordDict) -> Payload:
    """Undo `write_payload`; a record of another form raises a LookupError or a TypeError."""
    facts = str(record.config_records[FACTS]["json"])
    arrays = record.array_records.get(TREES, ArrayRecord(array_dict={}))
    return Payload(facts, {name: array.data for name, array in arrays.items()})
