"""Files that people start from: units, containers, examples, and the guide to operations."""

import configparser
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from fedfm.config import load_config
from fedfm.deploy.checks import check_deployable
from fedfm.deploy.client.site import parse_site
from fedfm.deploy.events import KINDS
from tests.deploy.commands import parse
from tests.deploy.test_deploy_docs import blocks

ROOT = Path(__file__).parents[2]
FILES = ROOT / "packaging"
UNITS = sorted((FILES / "systemd").glob("*.service"))
COMPOSE = FILES / "container/compose.yaml"
GUIDE = ROOT / "docs/operations.md"


def services() -> dict[str, dict[str, object]]:
    return dict(yaml.safe_load(COMPOSE.read_text())["services"])


def read_unit(path: Path) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # keys keep their case
    unit.read(path)
    return unit


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_a_command_that_exists_and_is_hardened(path):
    service = read_unit(path)["Service"]
    values = parse(service["ExecStart"])
    folder = str(values.get("out") or "/var/lib/fedfm/client")
    assert folder.startswith(f"/var/lib/{service['StateDirectory']}/")
    wanted = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": ""}
    assert {name: service[name] for name in wanted} == wanted
    assert service["User"] not in ("root", "")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd here")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts_a_unit(path, tmp_path):
    """With a program that exists on this machine."""
    text = path.read_text().replace("/opt/fedfm/bin/fedfm", str(shutil.which("true")))
    (tmp_path / path.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / path.name], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["server", "client"])
def test_a_container_starts_a_command_that_exists(name):
    service = services()[name]
    values = parse(f"fedfm {service['command']}")
    mounted = [str(volume).split(":")[1] for volume in service["volumes"]]  # type: ignore[attr-defined]
    for path in (values["source"], values["keys"], values.get("site")):
        assert path is None or str(path) in mounted
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]


def test_the_containers_are_built_from_files_that_exist():
    build = services()["server"]["build"]
    assert isinstance(build, dict)
    context = (COMPOSE.parent / build["context"]).resolve()
    assert context == ROOT
    file = context / build["dockerfile"]
    copied = [
        word
        for line in file.read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for word in shlex.split(line)[1:-1]
    ]
    assert {"pyproject.toml", "src", "constraints.txt"} <= {*copied}
    assert all((ROOT / name).exists() for name in copied)


def test_the_examples_are_valid():
    config = load_config(str(FILES / "federation.toml"))
    check_deployable(config)
    assert config.deployment.secure
    table = tomllib.loads((FILES / "site.toml").read_text())
    site = parse_site(table, FILES)
    assert (site.name, site.out) == ("hospital-a", Path("/var/lib/fedfm/client"))
    assert site.config == "/etc/fedfm/federation.toml"


def test_the_files_are_in_the_sdist():
    assert "graft packaging" in (ROOT / "MANIFEST.in").read_text().splitlines()


def commands() -> list[str]:
    lines = "\n".join(blocks(GUIDE)).splitlines()
    return [line for line in lines if line.startswith("fedfm ")]


@pytest.mark.parametrize("command", commands())
def test_the_commands_of_the_guide_parse(command):
    assert parse(command)


def test_the_guide_has_every_event_of_the_audit_log():
    (table,) = re.findall(r"## The audit log\n.*?(\| event .*?)\n\n", GUIDE.read_text(), re.DOTALL)
    named = set(re.findall(r"`([a-z ]+)`", table))
    assert {kind for kind, event in KINDS.items() if event.audited} == named


def test_the_guide_names_files_that_exist():
    text = GUIDE.read_text()
    for path in re.findall(r"\bpackaging/[\w/.-]+\w", text):
        assert (ROOT / path).exists(), path
