"""A client's own account of what it has given away under differential privacy.

The server may ask for a round again, after a crash or for reasons of its own. Whatever it says
about the run, a client has paid for every answer that it sent, so it counts them itself.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfm.core.checkpoint import write_atomically
from fedfm.deploy.errors import Refusal
from fedfm.privacy.guard import Guard


@dataclass(frozen=True)
class Account:
    """The file in which a client counts its answers, for each federation that it took part in.

    Federations go by their token, which is in federation.json beside it.
    """

    file: Path

    def pay(self, federation: str, updates: int, reports: int, guard: Guard, secure: bool) -> None:
        """Write down answers before they leave, and what all of them come to."""
        entries = self._entries()
        before = entries.get(federation, {"updates": 0, "reports": 0})
        counted = before["updates"] + updates, before["reports"] + reports
        said = guard.describe_spent(*counted, secure)
        entries[federation] = {"updates": counted[0], "reports": counted[1], "privacy": said}
        write_atomically(self.file, json.dumps(entries, indent=1).encode())

    def statement(self, federation: str) -> str | None:
        """What the answers in a federation have come to, in words."""
        entry = self._entries().get(federation)
        return None if entry is None else str(entry["privacy"])

    def _entries(self) -> dict[str, Any]:
        """A file that cannot be read stops the client: it must not begin again at zero."""
        if not self.file.exists():
            return {}
        try:
            entries = json.loads(self.file.read_text())
        except (OSError, ValueError):
            entries = None
        if not isinstance(entries, dict):
            raise Refusal(f"its account of what it has sent, {self.file.name}, cannot be read")
        return entries
