"""What is packaged and how it is cited."""

import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import fedfm

ROOT = Path(__file__).parent.parent


def test_every_file_beside_the_code_is_packaged():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = ROOT / "src/fedfm"
    packaged = {path for glob in settings["package-data"]["fedfm"] for path in package.glob(glob)}
    command = ["git", "ls-files", "src/fedfm"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = {ROOT / name for name in listed.stdout.split() if not name.endswith(".py")}
    assert files == packaged


def test_the_citation_names_this_version_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    assert citation["version"] == fedfm.__version__
    paper = citation["preferred-citation"]
    assert {"type", "title", "authors", "year"} <= paper.keys()
    assert [author["family-names"] for author in paper["authors"]] == [
        *("Ye", "Ni", "Xu", "Wang", "Chen", "Eldar"),
    ]
