"""A client's desk: what it keeps on its own disk between the server's questions.

Flower starts a process per question, and a machine may be restarted at any time; so nothing that
matters lives in memory but the secrets of a secure sum. All files are replaced in one step.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from fedfm.core.checkpoint import Damaged, to_bytes, write_atomically
from fedfm.core.client_states import OnDisk
from fedfm.core.errors import UserError
from fedfm.core.trees import Tree, to_device, unflatten
from fedfm.deploy.client.account import Account
from fedfm.deploy.errors import Lost, Refusal
from fedfm.deploy.packets import fitted
from fedfm.methods.base import Model


@dataclass(frozen=True)
class Desk:
    """The folder of one client."""

    folder: Path

    def enrol(self, facts: dict[str, Any]) -> None:
        """Remember which federation this is, and the client's number in it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / "federation.json", json.dumps(facts).encode())

    def enrolment(self, token: str) -> dict[str, Any]:
        """What was agreed with the federation that `token` names."""
        try:
            facts = json.loads((self.folder / "federation.json").read_text())
        except (OSError, ValueError):
            facts = {}
        if not isinstance(facts, dict) or facts.get("token") != token:
            raise Lost("this client has not joined this federation yet")
        return facts

    @property
    def account(self) -> Account:
        """What it has given away."""
        return Account(self.folder / "privacy.json")

    def states(self, client: int, round: int | None) -> OnDisk:
        """What the client kept after so many rounds, and nothing later.

        The server says which round: one whose answer was lost does not count.
        """
        states = OnDisk(self.folder / "state", {} if round is None else {client: round})
        with _or_lost(f"this client has lost what it kept after round {round}"):
            states.get(client)
        states.tidy()
        return states

    def keep_model(self, model: Tree, version: int) -> None:
        """Keep the global model after `version` rounds, and forget earlier ones."""
        path = self._model(version)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_bytes(model))
        for other in self.folder.glob("global-*.safetensors"):
            if other != path:
                other.unlink()

    def model(self, version: int, like: Model) -> Model:
        """The global model after `version` rounds, as it was received."""
        with _or_lost(f"this client lacks the model after round {version}"):
            return fitting(unflatten(load_file(self._model(version))), like)

    @property
    def result(self) -> Path:
        """The federation's final model, as `load_state_dict` takes it."""
        return self.folder / "model.safetensors"

    def keep_result(self, tensors: Tree) -> None:
        """Keep the federation's final model."""
        write_atomically(self.result, to_bytes(tensors))

    def _model(self, version: int) -> Path:
        return self.folder / f"global-{version:06d}.safetensors"


def fitting(model: Tree, like: Model) -> Model:
    """A model that was received, if it is one of this client's network."""
    device = next(iter(like.params.values())).device
    try:
        return Model(**to_device(fitted(model, like._asdict()), device))
    except UserError as reason:
        raise Refusal(f"the model is not of this client's network: {reason}") from reason


@contextmanager
def _or_lost(what: str) -> Iterator[None]:
    """A file that is not there, or not as it was written, is lost."""
    try:
        yield
    except (OSError, SafetensorError, Damaged) as problem:
        raise Lost(what) from problem
