"""What every client keeps between rounds: in memory, on disk, or at the real clients.

All classes are immutable: `update` returns a new object. On disk, every state is a file that never
changes, named by client and round. Memory is then bounded by the cohort, and a checkpoint only
names the files.
"""

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError
from safetensors.torch import load_file

from fedfm.core.checkpoint import Damaged, to_bytes
from fedfm.core.files import write_atomically
from fedfm.core.trees import Tree, unflatten

WRITERS = 8
"""Files that are written at once: a disk confirms several in hardly more time than one."""


class ClientStates(Protocol):
    """The states of the clients that keep any: a tree [...] per client."""

    def __iter__(self) -> Iterator[int]:
        """Iterate over the clients that keep a state."""
        ...

    def get(self, client: int) -> Tree:
        """Return a client's state; empty if it keeps none."""
        ...

    def update(self, states: Mapping[int, Tree], round: int) -> "ClientStates":
        """Return a copy with new states of some clients, taken after `round` rounds."""
        ...

    def clear(self) -> "ClientStates":
        """Return a copy without states."""
        ...

    def tidy(self) -> None:
        """Delete states that were replaced; call it after a checkpoint, not before."""
        return  # only files have to be deleted


@dataclass(frozen=True)
class InMemory(ClientStates):
    """All states in memory."""

    states: Mapping[int, Tree] = field(default_factory=dict)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the clients that keep a state."""
        return iter(self.states)

    def get(self, client: int) -> Tree:
        """Return a client's state."""
        return self.states.get(client, {})

    def update(self, states: Mapping[int, Tree], round: int) -> "InMemory":
        """Return a copy with new states of some clients."""
        return InMemory({**self.states, **states})

    def clear(self) -> "InMemory":
        """Return a copy without states."""
        return InMemory()


@dataclass(frozen=True)
class OnDisk(ClientStates):
    """A file per client; `rounds` has the round after which each was written."""

    folder: Path
    rounds: Mapping[int, int] = field(default_factory=dict)
    tidies: bool = True
    """Whether this process removes files; of several that share the folder, one does."""

    def __iter__(self) -> Iterator[int]:
        """Iterate over the clients that keep a state."""
        return iter(self.rounds)

    def get(self, client: int) -> Tree:
        """Return a client's state, read from its file."""
        if client not in self.rounds:
            return {}
        file = self._file(client, self.rounds[client])
        try:
            return unflatten(load_file(file))
        except (OSError, SafetensorError) as problem:
            raise Damaged(file, problem) from problem

    def update(self, states: Mapping[int, Tree], round: int) -> "OnDisk":
        """Write new files for some clients; replaced files stay until `tidy`."""
        self.folder.mkdir(parents=True, exist_ok=True)

        def write(client: int) -> None:
            write_atomically(self._file(client, round), to_bytes(states[client]))

        with ThreadPoolExecutor(WRITERS) as writers:
            [*writers.map(write, states)]  # raises what a writer raised
        return self.restore({**self.rounds, **dict.fromkeys(states, round)})

    def clear(self) -> "OnDisk":
        """Return a copy without states; the files stay until `tidy`."""
        return self.restore({})

    def restore(self, rounds: Mapping[int, int]) -> "OnDisk":
        """Return the states that the clients had after these rounds."""
        return replace(self, rounds=rounds)

    def tidy(self) -> None:
        """Remove the files that no state uses."""
        if not self.tidies:
            return
        named = {self._file(client, round) for client, round in self.rounds.items()}
        for file in self.folder.glob("client-*"):
            if file not in named:
                file.unlink()

    def _file(self, client: int, round: int) -> Path:
        return self.folder / f"client-{client:06d}-{round:06d}.safetensors"


@dataclass(frozen=True)
class OnClients(ClientStates):
    """Real clients keep their own states; the server knows only the round of each."""

    rounds: Mapping[int, int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the clients that keep a state."""
        return iter(self.rounds)

    def get(self, client: int) -> Tree:
        """Return an empty tree: the server cannot see a client's state."""
        return {}

    def update(self, states: Mapping[int, Tree], round: int) -> "OnClients":
        """Record that some clients have new states."""
        return OnClients({**self.rounds, **dict.fromkeys(states, round)})

    def restore(self, rounds: Mapping[int, int]) -> "OnClients":
        """Return the states that the clients had after these rounds."""
        return OnClients(rounds)

    def without(self, clients: Collection[int]) -> "OnClients":
        """Record that some clients lost their states."""
        return OnClients({k: round for k, round in self.rounds.items() if k not in clients})

    def clear(self) -> "OnClients":
        """Record that no client keeps a state."""
        return OnClients()
