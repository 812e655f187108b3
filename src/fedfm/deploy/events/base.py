"""What an event is, and who hears of it."""

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

logger = logging.getLogger(__package__)


@dataclass(frozen=True)
class Event:
    """Something that happened."""

    text: ClassVar[str] = ""
    """The line of the log, with the names of facts in braces."""
    level: ClassVar[int] = logging.INFO
    audited: ClassVar[bool] = True
    """Whether the audit log keeps it."""
    kind: ClassVar[str] = ""
    """The name in files: that of the class in small letters, or what the class says."""

    def __init_subclass__(cls) -> None:
        """Name the kind of event."""
        if "kind" not in vars(cls):
            cls.kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()

    def __str__(self) -> str:
        """Return the line of the log."""
        return self.text.format(**vars(self))

    def facts(self) -> dict[str, Any]:
        """Return plain values for JSON, without those that are not known."""
        return {k: to_plain(value) for k, value in asdict(self).items() if value is not None}


def to_plain(value: Any) -> Any:
    """Return a value that JSON can hold: infinity and NaN become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(each) for key, each in value.items()}
    return [to_plain(each) for each in value] if isinstance(value, list | tuple) else value


Listener = Callable[[Event], None]
_listeners: list[Listener] = []


def emit(event: Event) -> None:
    """Log an event and hand it to every listener; an error of a listener is the caller's."""
    logger.log(event.level, event)
    for listener in tuple(_listeners):
        listener(event)


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Call `listener` with every event of this process, inside the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
