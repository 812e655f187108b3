"""The API reference: every public name is in it, with its arguments and an example that runs."""

import doctest
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import fedfm
import fedfm.data
import fedfm.methods
import fedfm.metrics
import fedfm.models
from fedfm.config.schema import SECTIONS, Config

ROOT = Path(__file__).parent.parent
REFERENCE = "\n".join(page.read_text() for page in sorted((ROOT / "docs/api").glob("*.md")))
LISTED = re.findall(r"^::: ([\w.]+)$", REFERENCE, re.MULTILINE)
PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (fedfm, fedfm.data, fedfm.methods, fedfm.metrics, fedfm.models)
    for name in module.__all__
}


def resolve(path: str) -> Any:
    """Return the object at a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def _is_code(value: object) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)


DOCUMENTED: dict[str, Any] = {path: resolve(path) for path in LISTED}
EXPLAINED = {path: value for path, value in DOCUMENTED.items() if _is_code(value)}


def test_every_public_name_is_in_the_reference():
    listed = [*map(id, DOCUMENTED.values())]
    missing = [path for path, value in PUBLIC.items() if id(value) not in listed]
    assert missing == []


def test_no_name_is_in_the_reference_twice():
    assert len({*map(id, DOCUMENTED.values())}) == len(LISTED)


def test_the_tables_of_config_keys_have_every_key():
    from tools.docs_site import describe_keys  # MkDocs takes a second: only where it is needed

    tables = "\n".join(["", *describe_keys()]).split("\n## ")[1:]
    keys = {table.split("\n")[0]: re.findall(r"^\| `(\w+)` \|", table, re.M) for table in tables}
    assert {*keys["The top of the file"], *SECTIONS, "method"} == {*Config.model_fields}
    for section, kind in SECTIONS.items():
        assert {*inspect.signature(kind).parameters} - {"extra_data"} <= {*keys[f"[{section}]"]}
    for name, piece in fedfm.methods.PIECES.items():
        assert [*inspect.signature(piece).parameters] == keys[f"[method.{name}]"]


@pytest.mark.parametrize("path", EXPLAINED)
def test_every_argument_is_described(path):
    from tools.docs_site import describe_settings

    value = EXPLAINED[path]
    described = re.findall(r"^ {4}(\w+):", _section(value, "Args"), re.MULTILINE)
    if inspect.isclass(value):
        described = [*describe_settings(value)]
    is_error = inspect.isclass(value) and issubclass(value, Exception)
    parameters = {} if is_error else inspect.signature(value).parameters
    assert [name for name in parameters if name not in {*described, "extra_data"}] == []


@pytest.mark.parametrize("path", [p for p, v in EXPLAINED.items() if not inspect.isclass(v)])
def test_every_result_is_described(path):
    function = EXPLAINED[path]
    returns = inspect.signature(function).return_annotation not in (None, "None")
    assert bool(_section(function, "Returns")) == returns


@pytest.mark.parametrize("path", EXPLAINED)
def test_every_example_runs(path):
    value = EXPLAINED[path]
    scope = vars(import_module(value.__module__)).copy()
    flags = doctest.NORMALIZE_WHITESPACE
    tests = doctest.DocTestFinder(recurse=False).find(value, path, globs=scope)
    assert sum(len(test.examples) for test in tests) > 0, "it has no example"
    runner = doctest.DocTestRunner(optionflags=flags)
    for test in tests:
        runner.run(test)
    assert runner.summarize().failed == 0


def _section(value: object, title: str) -> str:
    """Return the text below a heading of a docstring."""
    text = inspect.getdoc(value) or ""
    section = re.search(rf"^{title}:\n((?: {{4}}.*\n?|\n)+)", text, re.MULTILINE)
    return section[1] if section else ""
