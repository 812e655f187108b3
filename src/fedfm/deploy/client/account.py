"""A client's record of what it has given away under differential privacy.

The server may ask for a round twice, after a crash or for any other reason. Every answer that a
client sends costs privacy, whatever the server says about the run, so the client counts them.
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
    """The file in which a client counts its answers, for each federation by its token."""

    file: Path

    def record(
        self, federation: str, updates: int, reports: int, guard: Guard, secure: bool
    ) -> None:
        """Count answers before they are sent, with the privacy that all answers together cost."""
        entries = self._read()
        before = entries.get(federation, {"updates": 0, "reports": 0})
        counts = before["updates"] + updates, before["reports"] + reports
        spent = guard.describe_spent(*counts, secure)
        entries[federation] = {"updates": counts[0], "reports": counts[1], "privacy": spent}
        write_atomically(self.file, json.dumps(entries, indent=1).encode())

    def describe(self, federation: str) -> str | None:
        """Return in words what the answers in a federation have cost; None without answers."""
        entry = self._read().get(federation)
        return None if entry is None else str(entry["privacy"])

    def _read(self) -> dict[str, Any]:
        """Return all entries; refuse a damaged file, because counting must not restart at zero."""
        if not self.file.exists():
            return {}
        try:
            entries = json.loads(self.file.read_text())
        except (OSError, ValueError):
            entries = None
        if not isinstance(entries, dict):
            raise Refusal(f"its record of what it has sent, {self.file.name}, cannot be read")
        return entries
