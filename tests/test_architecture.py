"""What docs/architecture.md says of who stands on whom, by the imports."""

import ast
from pathlib import Path

import pytest

import fedfm

ROOT = Path(fedfm.__file__).parent
STANDS_ON = {
    "core": set[str](),
    "data": {"core"},
    "models": {"core", "engine"},
    "algorithms": {"core", "models"},
    "engine": {"core", "data", "models", "algorithms"},
    "privacy": {"core", "algorithms"},
    "rounds": {"core", "data", "algorithms", "engine", "privacy", "protocol"},
    "experiments/results": {"core", "data", "analysis", "dotted", "runs"},
    "flower/secure": {"core"},
}
"""By folder, the other folders and modules of the package that it may use."""
APART = {("flower/server", "flower.client"), ("flower/client", "flower.server")}
"""Two that know each other by their messages only."""


def used_by(folder: str) -> set[str]:
    """What the files of a folder import of the package, by dotted name."""
    found = set()
    for file in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedfm"):
                prefix = (node.module or "").removeprefix("fedfm").lstrip(".")
                found |= {prefix} if prefix else {each.name for each in node.names}
    return found


@pytest.mark.parametrize("folder", STANDS_ON)
def test_a_folder_stands_on_what_is_below_it(folder):
    own, used = folder.replace("/", "."), used_by(folder)
    assert used, "the search finds imports"
    others = {name.split(".")[0] for name in used if not name.startswith(own)}
    assert others <= STANDS_ON[folder]


@pytest.mark.parametrize(("folder", "other"), APART)
def test_server_and_clients_know_each_other_by_messages_only(folder, other):
    assert not {name for name in used_by(folder) if name.startswith(other)}
