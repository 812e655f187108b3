"""What a client keeps on its own disk between the server's questions.

A machine may restart at any time. So a client keeps everything on disk except the secrets of a
secure sum. All files are replaced atomically.
"""

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from fedfm.config import Config
from fedfm.core.checkpoint import Damaged, to_bytes
from fedfm.core.client_states import OnDisk
from fedfm.core.errors import UserError
from fedfm.core.files import write_atomically
from fedfm.core.trees import Tree, to_device, unflatten
from fedfm.deploy.errors import Refusal, StateLost
from fedfm.deploy.packets import match_tree
from fedfm.methods.base import Model
from fedfm.privacy.privacy_mechanism import PrivacyMechanism
from fedfm.run.description import DataDescription

PRIVACY = "privacy.json"
"""The record of what the client has given away under differential privacy."""


@dataclass(frozen=True)
class Storage:
    """The folder of one client."""

    folder: Path

    def save_enrolment(self, facts: dict[str, Any]) -> None:
        """Save the federation that the client has joined, and the client's number in it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        before = _read_json(self.folder / "federation.json")
        if not isinstance(before, dict) or before.get("token") != facts["token"]:
            self._first.unlink(missing_ok=True)  # another federation's
        write_atomically(self.folder / "federation.json", json.dumps(facts).encode())

    def load_enrolment(self, token: str) -> dict[str, Any]:
        """Return what was agreed with the federation of this `token`."""
        facts = _read_json(self.folder / "federation.json")
        if not isinstance(facts, dict) or facts.get("token") != token:
            raise StateLost("this client has not joined this federation yet")
        return facts

    def record_privacy(
        self, token: str, updates: int, reports: int, privacy: PrivacyMechanism, secure: bool
    ) -> None:
        """Count answers before they are sent, with the privacy that all of them together cost.

        The server may ask for a round twice, for whatever reason. Every answer costs privacy, so
        the client counts its answers itself, for each federation by its `token`.
        """
        entries = self._load_privacy()
        before = entries.get(token, {"updates": 0, "reports": 0})
        counts = before["updates"] + updates, before["reports"] + reports
        spent = privacy.describe_spent(*counts, secure)
        entries[token] = {"updates": counts[0], "reports": counts[1], "privacy": spent}
        write_atomically(self.folder / PRIVACY, json.dumps(entries, indent=1).encode())

    def describe_privacy(self, token: str) -> str | None:
        """Return in words what the answers in a federation have cost; None without answers."""
        entry = self._load_privacy().get(token)
        return None if entry is None else str(entry["privacy"])

    def _load_privacy(self) -> dict[str, Any]:
        """Return all entries; refuse a damaged file, because counting must not restart at zero."""
        path = self.folder / PRIVACY
        entries = _read_json(path) if path.exists() else {}
        if not isinstance(entries, dict):
            raise Refusal(f"its record of what it has sent, {PRIVACY}, cannot be read")
        return entries

    def load_states(self, client: int, round: int | None) -> OnDisk:
        """Return the client's state after so many rounds.

        The server says which round counts: an answer that was lost does not.
        """
        states = OnDisk(self.folder / "state", {} if round is None else {client: round})
        with _raise_lost(f"this client has lost its state after round {round}"):
            states.get(client)
        states.tidy()
        return states

    def save_model(self, model: Tree, version: int) -> None:
        """Save the global model after `version` rounds, and delete earlier ones."""
        path = self._model_file(version)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_bytes(model))
        for other in self.folder.glob("global-*.safetensors"):
            if other != path:
                other.unlink()

    def load_model(self, version: int, like: Model) -> Model:
        """Return the global model after `version` rounds."""
        with _raise_lost(f"this client lacks the model after round {version}"):
            return to_model(unflatten(load_file(self._model_file(version))), like)

    def complete_model(self, sent: Tree, once: Collection[str]) -> Tree:
        """Return a received model with what is sent `once`, which is saved when it comes."""
        if not once:
            return sent
        first = {part: {n: leaves[n] for n in leaves if n in once} for part, leaves in sent.items()}
        if any(first.values()):
            write_atomically(self._first, to_bytes(first))
            return sent
        with _raise_lost("this client has lost what came with its first model"):
            first = unflatten(load_file(self._first))
        return {part: sent.get(part, {}) | first.get(part, {}) for part in Model._fields}

    @property
    def _first(self) -> Path:
        return self.folder / "first.safetensors"

    @property
    def result(self) -> Path:
        """The file of the federation's final model, for `load_state_dict`."""
        return self.folder / "model.safetensors"

    def save_result(self, tensors: Tree, config: Config, data: DataDescription) -> None:
        """Save the federation's final model, with what `fedfm.load` needs to use it."""
        import tomli_w

        write_atomically(self.folder / "config.toml", tomli_w.dumps(config.as_toml()).encode())
        data.save(self.folder)
        write_atomically(self.result, to_bytes(tensors))

    def _model_file(self, version: int) -> Path:
        return self.folder / f"global-{version:06d}.safetensors"


def _read_json(path: Path) -> Any:
    """Return the values in a file; None if it is missing or damaged."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def to_model(tree: Tree, like: Model) -> Model:
    """Return a received tree as a model on the device of `like`; refuse another network's."""
    device = next(iter(like.params.values())).device
    try:
        return Model(**to_device(match_tree(tree, like._asdict()), device))
    except UserError as reason:
        raise Refusal(f"the model does not fit this client's network: {reason}") from reason


@contextmanager
def _raise_lost(message: str) -> Iterator[None]:
    """Turn a file that is missing or damaged into `StateLost`."""
    try:
        yield
    except (OSError, SafetensorError, Damaged) as problem:
        raise StateLost(message) from problem
