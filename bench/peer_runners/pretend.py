"""Stand-ins for packages that a peer imports but that the benchmark never uses."""

import sys
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock


def pretend(*modules: str) -> None:
    """Let these modules be importable; whatever is taken from them does nothing."""
    for name in modules:
        sys.modules[name] = MagicMock(__name__=name, __spec__=ModuleSpec(name, None))
