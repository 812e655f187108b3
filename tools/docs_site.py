"""MkDocs hooks: the parts of the documentation site that are made from other files.

`docs/config-keys.md` and `docs/commands.md` hold a marker, which is replaced by what the code says.
README.md, CHANGELOG.md and CONTRIBUTING.md become pages. A link to a file that is not part of the
site becomes the file's path in the repository.
"""

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from inspect import signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import griffe
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click

from fedfm.cli.app import app
from fedfm.config.schema import SECTIONS, Config
from fedfm.methods import PIECES
from fedfm.models import MODELS

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
OUTSIDE = re.compile(
    r"\[([^]]*)\]\((?:\.\./)*((?:src|bench|results|tools|tests|packaging|LICENSE|CITATION)\b[^)]*)\)"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from documents in the repository's root."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text().replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Fill in what is made from the code, and rewrite links that leave docs/."""
    for marker, describe in (("config keys", describe_keys), ("commands", describe_commands)):
        if f"<!-- {marker} -->" in markdown:
            markdown = markdown.replace(f"<!-- {marker} -->", "\n".join(describe()))
    for name, target in PAGES.items():
        markdown = re.sub(rf"\]\(((?:\.\./)*)\.\./{name}", rf"](\1{target}", markdown)
        if "/" not in page.file.src_uri:
            markdown = markdown.replace(f"]({name}", f"]({target}")
    return OUTSIDE.sub(_name_file, markdown)


def _name_file(link: re.Match[str]) -> str:
    text, path = link.groups()
    if "/runs/" in path:  # a table of the reproduction has hundreds
        return f'<span title="{path}">{text}</span>'
    return f"`{path}`" if text == path else f"{text} (`{path}` in the repository)"


def describe_commands() -> Iterator[str]:
    """Yield the help of every command."""
    group: Any = typer.main.get_command(app)
    context = typer.Context(group, info_name="fedfm")
    for name, command in group.commands.items():
        yield get_docs_for_click(obj=command, ctx=context, indent=1, name=name, call_prefix="fedfm")


def describe_keys() -> Iterator[str]:
    """Yield a table of keys for the top of a config, each section, method and model."""
    yield from ("## The top of the file", "", *_rows(Config, skip=(*SECTIONS, "method")))
    for section, kind in SECTIONS.items():
        yield from _describe_section(section, kind)
        for name, model in MODELS.items() if section == "model" else ():
            yield from ("", f'### With name = "{name}"', "", *_rows(model))
    for name, piece in PIECES.items():
        yield from _describe_section(f"method.{name}", piece)


def _describe_section(name: str, kind: Any) -> Iterator[str]:
    yield from ("", f"## [{name}]", "", kind.__doc__.splitlines()[0], "", *_rows(kind))


def _rows(kind: Any, skip: Iterable[str] = ()) -> Iterator[str]:
    meanings, parameters = describe_settings(kind), signature(kind).parameters.values()
    settings = [each for each in parameters if each.default is not each.empty]
    if not settings:
        yield "It has no settings."
        return
    yield from ("| key | type | default | meaning |", "| --- | --- | --- | --- |")
    for each in (each for each in settings if each.name not in skip):
        default = "" if each.default is None else f"`{json.dumps(each.default)}`"
        cells = f"`{each.name}`", _name_type(each.annotation), default, meanings[each.name]
        yield f"| {' | '.join(cells)} |"


def describe_settings(kind: Any) -> dict[str, str]:
    """Return what each setting of a class means: its own docstring, or its line under Args."""
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("fedfm."):
            source = _package()[f"{base.__module__.removeprefix('fedfm.')}.{base.__qualname__}"]
            for section in source.docstring.parse("google") if source.docstring else ():
                if section.kind is griffe.DocstringSectionKind.parameters:
                    meanings |= {each.name: each.description for each in section.value}
            for name, attribute in source.attributes.items():
                if attribute.docstring:
                    meanings[name] = attribute.docstring.value.split("\n\n")[0]
    return {name: " ".join(text.split()) for name, text in meanings.items()}


@cache
def _package() -> griffe.Object:
    loaded = griffe.load("fedfm", search_paths=[ROOT / "src"])
    assert isinstance(loaded, griffe.Object)
    return loaded


def _name_type(hint: Any) -> str:
    """Return a type in a reader's words: `"a"` or `"b"`, list of numbers, ..."""
    if get_origin(hint) is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in get_args(hint))
    names = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    options = [each for each in get_args(hint) if each not in (NoneType, Ellipsis)]
    if get_origin(hint) is Annotated:
        return _name_type(get_args(hint)[0])
    if get_origin(hint) in (None, dict):
        return names.get(hint, "table")
    inner = " or ".join(map(_name_type, options))
    return f"list ({inner})" if ... in get_args(hint) or "Sequence" in str(hint) else inner
