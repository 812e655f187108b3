"""What every client keeps between rounds: in memory, on disk where it would not fit, or elsewhere.

All are values: `update` gives a new one and leaves the old as it was. On disk a client's state is
a file of its own that is never changed, named by client and round, so that memory is bounded by
the cohort and a checkpoint only has to name the files.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError
from safetensors.torch import load_file

from fedfm.core.checkpoint import Damaged, to_bytes, write_atomically
from fedfm.core.trees import Tree, unflatten


class ClientStates(Protocol):
    """The states of those clients that keep any: a tree [...] per client."""

    def __iter__(self) -> Iterator[int]:
        """The clients that keep something."""
        ...

    def get(self, client: int) -> Tree:
        """A client's state; empty for one that keeps nothing."""
        ...

    def update(self, states: Mapping[int, Tree], round: int) -> "ClientStates":
        """With new states for some clients, which they have after `round` rounds."""
        ...

    def clear(self) -> "ClientStates":
        """Without any."""
        ...

    def tidy(self) -> None:
        """Forget for good what earlier states had; after a checkpoint, not before."""
        ...


@dataclass(frozen=True)
class InMemory:
    """All states in memory."""

    states: Mapping[int, Tree] = field(default_factory=dict)

    def __iter__(self) -> Iterator[int]:
        """The clients that keep something."""
        return iter(self.states)

    def get(self, client: int) -> Tree:
        """A client's state."""
        return self.states.get(client, {})

    def update(self, states: Mapping[int, Tree], round: int) -> "InMemory":
        """With new states for some clients."""
        return InMemory({**self.states, **states})

    def clear(self) -> "InMemory":
        """Without any."""
        return InMemory()

    def tidy(self) -> None:
        """Nothing to do."""


@dataclass(frozen=True)
class OnDisk:
    """A file per client; `rounds` says after which round a client's was written."""

    folder: Path
    rounds: Mapping[int, int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[int]:
        """The clients that keep something."""
        return iter(self.rounds)

    def get(self, client: int) -> Tree:
        """A client's state, read from its file."""
        if client not in self.rounds:
            return {}
        file = self._file(client, self.rounds[client])
        try:
            return unflatten(load_file(file))
        except (OSError, SafetensorError) as problem:
            raise Damaged(file, problem) from problem

    def update(self, states: Mapping[int, Tree], round: int) -> "OnDisk":
        """With new files for some clients; those they replace stay until `tidy`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for client, tree in states.items():
            write_atomically(self._file(client, round), to_bytes(tree))
        return OnDisk(self.folder, {**self.rounds, **dict.fromkeys(states, round)})

    def clear(self) -> "OnDisk":
        """Without any; the files stay until `tidy`."""
        return OnDisk(self.folder)

    def restore(self, rounds: Mapping[int, int]) -> "OnDisk":
        """The states that clients had after these rounds."""
        return OnDisk(self.folder, rounds)

    def tidy(self) -> None:
        """Remove the files that belong to no client's state."""
        named = {self._file(client, round) for client, round in self.rounds.items()}
        for file in self.folder.glob("client-*"):
            if file not in named:
                file.unlink()

    def _file(self, client: int, round: int) -> Path:
        return self.folder / f"client-{client:06d}-{round:06d}.safetensors"


@dataclass(frozen=True)
class OnClients:
    """Real clients keep their own; all the server knows is after which round each one's is."""

    rounds: Mapping[int, int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[int]:
        """The clients that keep something."""
        return iter(self.rounds)

    def get(self, client: int) -> Tree:
        """Nothing that could be seen from here."""
        return {}

    def update(self, states: Mapping[int, Tree], round: int) -> "OnClients":
        """Some clients have new states."""
        return OnClients({**self.rounds, **dict.fromkeys(states, round)})

    def restore(self, rounds: Mapping[int, int]) -> "OnClients":
        """The states that clients had after these rounds."""
        return OnClients(rounds)

    def without(self, clients: Collection[int]) -> "OnClients":
        """Some clients have lost theirs."""
        return OnClients({k: round for k, round in self.rounds.items() if k not in clients})

    def clear(self) -> "OnClients":
        """Nobody keeps anything."""
        return OnClients()

    def tidy(self) -> None:
        """Nothing to do."""
