"""What docs/deploy.md shows: commands that exist, configs that parse, messages that are said."""

import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from fedfm.config import parse
from fedfm.config.deployment import Deployment
from fedfm.deploy.client.site import Site
from fedfm.deploy.proxy.calls import HEAD
from fedfm.deploy.proxy.limits import KIB, MIB, Limits
from fedfm.deploy.server.serve import APP
from tests.deploy.commands import parse as parse_command

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs/deploy.md"
PAGES = [DEPLOY, ROOT / "docs/handshakes.md", ROOT / "docs/threat-model.md", ROOT / "README.md"]
SAID_ELSEWHERE = ("node ... is left out: Error: Node Unavailable",)
"""What Flower says."""


def blocks(page: Path, language: str = "") -> list[str]:
    """The fenced blocks of a page in a language; those without one are commands."""
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [text for named, text in found if named == language]


def commands(pattern: str) -> list[str]:
    """The commands of all pages whose program is like that, without remarks."""
    lines = "".join("".join(blocks(page)) for page in PAGES).splitlines()
    plain = (line.split("  #")[0].strip() for line in lines)
    return sorted({line for line in plain if re.match(pattern, line)})


@pytest.mark.parametrize("command", commands("fedfm "))
def test_our_commands_parse(command):
    """Every command and option is there, and takes what it is given."""
    assert parse_command(command)


@cache
def read_help(program: str, *sub: str) -> str:
    """What a program of Flower's prints about its options."""
    here = Path(sys.executable).parent / program
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "COLUMNS": "200"}
    told = subprocess.run([here, *sub, "--help"], capture_output=True, text=True, env=quiet)
    return told.stdout


@pytest.mark.parametrize("command", commands("flwr |flower-"))
def test_options_of_flower_s_commands_are_there(command):
    program, *words = shlex.split(command)
    sub = [words.pop(0)] if program == "flwr" else []
    for option in (word for word in words if word.startswith("--")):
        assert option in read_help(program, *sub)


def test_the_configs_parse():
    config, secure, app_file, connection = map(tomllib.loads, blocks(DEPLOY, "toml"))
    assert parse(config).deployment.minimum == 2
    assert parse(config).training.clients == 2
    assert parse(config | {"deployment": config["deployment"] | secure}).deployment.secure
    assert connection["superlink"]["here"] == {"address": "127.0.0.1:9092", "insecure": True}
    components = app_file["tool"]["flwr"]["app"]["components"]
    assert components == APP


def test_the_limits_are_the_defaults():
    (table,) = re.findall(r"## Limits\n\n(.*?)\n\n", DEPLOY.read_text(), re.DOTALL)
    rows = dict(re.findall(r"\| `([\w.]+)`[^|]*\| ([\d.]+|none)", table))
    for key in ("wait", "timeout", "minimum", "message_limit"):
        assert float(rows[f"deployment.{key}"]) == getattr(Deployment(), key)
    assert float(rows["message_limit"]) == Site.model_fields["message_limit"].default
    assert (rows["memory_limit"], Site.model_fields["memory_limit"].default) == ("none", 0)


def test_what_can_go_wrong_is_said_in_these_words():
    """The fixed parts of every message in the table are in the source."""
    (table,) = re.findall(r"## What can go wrong\n.*?(\|.*?)\n\n", DEPLOY.read_text(), re.DOTALL)
    text = " ".join(path.read_text() for path in (ROOT / "src/fedfm").rglob("*.py"))
    source = re.sub(r'"\s*f?"', "", text)
    for message in re.findall(r"^\| (?:client: )?`([^`]+)`", table, re.MULTILINE):
        if message not in SAID_ELSEWHERE:
            for part in fixed_parts(message):
                assert part in source, (message, part)


def fixed_parts(message: str) -> list[str]:
    """What of a message does not depend on the case."""
    names = r"HOST|runs/server|--keys keys|server\.key|(?:client )?'b'|training\.rounds.*"
    parts = (part.strip(" :") for part in re.split(rf": |\.\.\.|\b\d+\b|{names}", message))
    return [part for part in parts if len(part) > 3]


def test_the_tests_that_the_threat_model_names_are_there():
    named = re.findall(
        r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs/threat-model.md").read_text()
    )
    assert len(named) > 30
    for path, name in named:
        assert f"def {name}" in (ROOT / path).read_text(), f"{path}::{name}"


def test_the_limits_of_the_proxy_are_the_defaults():
    page, limits = (ROOT / "docs/threat-model.md").read_text(), Limits()
    (table,) = re.findall(r"### The limits of the proxy\n\n(.*?)\n\n", page, re.DOTALL)
    rows = [re.findall(r"\d+", row) for row in table.splitlines()[2:]]
    numbers = [[int(number) for number in row] for row in rows]
    assert numbers == [
        [limits.address, limits.client, limits.connections],
        [HEAD // KIB, HEAD // KIB],
        [limits.stranger // KIB, limits.request // MIB, 5],
        [limits.per_client // MIB, limits.total // MIB, limits.wait],
        [],
        [limits.head, limits.head, limits.idle],
        [limits.pause, limits.pause],
        [limits.rate // KIB, limits.pause] * 2,
    ]
