"""Measure the time of nested phases.

with Profile() as profile: ... run ...; profile.seconds
"""

import time
from collections import defaultdict

import torch


class Profile:
    """Seconds by phase; the time of an inner phase does not count for the outer one."""

    active: "Profile | None" = None

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._phases: list[str] = []
        self._since = 0.0

    def __enter__(self) -> "Profile":
        """Start measuring."""
        Profile.active = self
        self.push("other")
        return self

    def __exit__(self, *_: object) -> None:
        """Stop measuring."""
        self.pop()
        Profile.active = None

    def push(self, name: str) -> None:
        """Enter a phase."""
        self._account()
        self._phases.append(name)

    def pop(self) -> None:
        """Leave a phase."""
        self._account()
        self._phases.pop()

    def _account(self) -> None:
        if torch.cuda.is_available() and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._phases:
            self.seconds[self._phases[-1]] += now - self._since
        self._since = now


class phase:  # lower case, as it is used as a statement
    """`with phase("evaluation"):` adds to the active profile, if there is one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        """Enter the phase."""
        self.profile = Profile.active
        if self.profile:
            self.profile.push(self.name)

    def __exit__(self, *_: object) -> None:
        """Leave the phase."""
        if self.profile:
            self.profile.pop()
