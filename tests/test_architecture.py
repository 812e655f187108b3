"""The walls of the package, computed from its imports."""

import ast
import sys
import tomllib
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import fedfm
from fedfm.methods import PIECES

ROOT = Path(fedfm.__file__).parent
OUTSIDE = {"deploy", "paper", "report", "cli"}
"""What the library does not know."""
TESTS = Path(__file__).parent
ELSEWHERE = {
    "browser",
    "gpu",
    "deploy/federations",
    "deploy/processes",
    "grid/cluster",
    "verify/whole",
}
"""Folders of tests that have targets of their own."""


@cache
def nodes(file: Path) -> list[ast.AST]:
    """Return the syntax tree of a file, node by node."""
    return [*ast.walk(ast.parse(file.read_text()))]


@cache
def imported(file: Path) -> list[str]:
    """Return every module that a file imports, at its top or in a function."""
    names: list[str] = []
    for node in nodes(file):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names.append(str(node.module))
            names += (f"{node.module}.{alias.name}" for alias in node.names)
    return names


def folder_of(module: str) -> str:
    """Return the folder (or the root's module) that a module of the package lies in."""
    first = module.split(".")[1]
    return first if (ROOT / first).is_dir() or (ROOT / f"{first}.py").exists() else ""


@cache
def folders() -> dict[str, set[str]]:
    """Return, for every folder, those that it imports from."""
    graph: defaultdict[str, set[str]] = defaultdict(set)
    for file in ROOT.rglob("*.py"):
        folder = file.relative_to(ROOT).with_suffix("").parts[0]
        own = {folder_of(name) for name in imported(file) if name.startswith("fedfm.")}
        if not folder.startswith("__"):
            graph[folder] |= own - {folder, ""}
    return dict(graph)


def test_the_library_knows_neither_deployment_nor_the_paper_nor_the_report():
    library = folders().keys() - OUTSIDE
    assert {"data", "models", "methods", "engine", "rounds", "privacy", "run", "grid"} <= library
    wrong = {name: folders()[name] & OUTSIDE for name in library if folders()[name] & OUTSIDE}
    assert wrong == {}


def test_folders_do_not_import_each_other_in_circles():
    TopologicalSorter(folders()).prepare()  # raises CycleError, which names the folders


def test_core_stands_on_nothing_else():
    assert folders()["core"] == set()


def test_only_the_methods_and_what_is_about_them_name_methods():
    """Schema, privacy, budget and the rest ask the piece; two names have other meanings, too."""
    classes, names = {kind.__name__ for kind in PIECES.values()}, {*PIECES} - {"fedfm", "local"}
    about = {"methods", "verify", "paper"}, {Path("__init__.py"), Path("cli/demo.py")}
    for file in ROOT.rglob("*.py"):
        path = file.relative_to(ROOT)
        if path.parts[0] not in about[0] and path not in about[1]:
            found = nodes(file)
            assert not names & {n.value for n in found if isinstance(n, ast.Constant)}, path
            assert not classes & {n.id for n in found if isinstance(n, ast.Name)}, path
            assert not classes & {n.name for n in found if isinstance(n, ast.alias)}, path


def test_server_and_clients_know_each_other_by_messages_only():
    for mine, other in (("server", "client"), ("client", "server")):
        for file in (ROOT / "deploy" / mine).rglob("*.py"):
            assert not [n for n in imported(file) if n.startswith(f"fedfm.deploy.{other}.")], file


def test_textbook_loops_use_nothing_of_the_library():
    for file in (ROOT / "verify" / "textbook").rglob("*.py"):
        names = [name for name in imported(file) if name.startswith("fedfm.")]
        assert not [n for n in names if not n.startswith("fedfm.verify.textbook")], file


def test_one_folder_touches_the_private_modules_of_flower():
    """Everything else uses what Flower documents, and its secure aggregation's primitives."""
    public = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.common.secure_aggregation")
    for file in ROOT.rglob("*.py"):
        names = [name for name in imported(file) if name.split(".")[0] == "flwr"]
        private = [name for name in names if not name.startswith(public)]
        if ROOT / "deploy" / "flower" not in file.parents:
            assert private == [], file


def test_tests_import_no_benchmarks():
    names = {name for file in TESTS.rglob("*.py") for name in imported(file)}
    assert "fedfm" in names
    assert not [name for name in names if name.split(".")[0] == "bench"]


def test_folders_of_tests_are_those_of_the_package():
    ours, theirs = (
        {file.parent.relative_to(root).as_posix() for file in root.rglob("*.py")}
        for root in (TESTS, ROOT)
    )
    assert ours >= ELSEWHERE
    assert ours - ELSEWHERE <= theirs
    assert {name for name in theirs if "/" not in name} <= ours


def test_everything_imported_is_declared():
    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    declared = {_name(each) for group in groups for each in group}
    packages, checkout = packages_distributions(), ROOT.parents[1]
    scripts = [*checkout.glob("bench/*.py"), *checkout.glob("tools/*.py")]  # peers declare theirs
    files = [*ROOT.rglob("*.py"), *scripts]
    tops = {name.split(".")[0] for file in files for name in imported(file)}
    foreign = tops - {*sys.stdlib_module_names, "fedfm", "bench", "tests"}
    undeclared = {
        top for top in foreign if not {_name(each) for each in packages.get(top, ())} & declared
    }
    assert undeclared == set()


def _name(requirement: str) -> str:
    """Return a distribution's name as `torch>=2.11` and `dp_accounting` have it."""
    cut = len(requirement)
    for mark in "<>=![;~ ":
        cut = min(cut, requirement.find(mark)) if mark in requirement else cut
    return requirement[:cut].lower().replace("_", "-")
