"""What the documents show is true: code runs, configs parse, links lead somewhere."""

import re
import tomllib
from pathlib import Path

import pytest

from fedfm.config import builtin_names, load_config, parse

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "bench/README.md"])


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


def test_the_readmes_python_runs(capsys):
    (code,) = blocks(ROOT / "README.md", "python")
    exec(code, {})
    assert re.fullmatch(r"[\d.]+% after sending [\d,]+ floats\n", capsys.readouterr().out)


def test_the_documented_config_is_the_default_and_names_every_key():
    (text,) = blocks(ROOT / "docs/configs.md", "toml")
    table, default = tomllib.loads(text), parse({}).as_toml()
    dominance = [each["partition"].pop("dominance") for each in (table, default)]
    assert dominance[0] == pytest.approx(dominance[1])
    assert table == default


@pytest.mark.parametrize("name", builtin_names())
def test_built_in_configs_parse(name):
    assert load_config(name).composed.name == "fedfm"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), target
