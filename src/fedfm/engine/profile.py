"""Where the time goes: phases that nest, each with its own seconds.

with Profile() as profile: ... run ...; profile.seconds
"""

import time
from collections import defaultdict
from types import TracebackType

import torch


class Profile:
    """Seconds by phase while it is entered; a phase within another counts for itself alone."""

    active: "Profile | None" = None

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._phases: list[str] = []
        self._since = 0.0

    def __enter__(self) -> "Profile":
        """Begin to count."""
        Profile.active = self
        self.push("other")
        return self

    def __exit__(self, *_: object) -> None:
        """Stop counting."""
        self.pop()
        Profile.active = None

    def push(self, name: str) -> None:
        """Enter a phase."""
        self._account()
        self._phases.append(name)

    def pop(self) -> None:
        """Leave it."""
        self._account()
        self._phases.pop()

    def _account(self) -> None:
        if torch.cuda.is_available() and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._phases:
            self.seconds[self._phases[-1]] += now - self._since
        self._since = now


class phase:  # reads as the statement it is
    """`with phase("evaluation"):` counts towards the active profile, if there is one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        """Begin the phase."""
        self.profile = Profile.active
        if self.profile:
            self.profile.push(self.name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        if self.profile:
            self.profile.pop()
