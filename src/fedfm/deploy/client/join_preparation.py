"""From the arguments of `fedfm join` to a client whose config and data are checked."""

import re
from pathlib import Path
from typing import Any

from fedfm.config import Config, load_config
from fedfm.core.errors import UserError, require
from fedfm.data.folder import ARCHIVES
from fedfm.deploy.checks import (
    check_accountable,
    check_batches,
    check_enough,
    describe_differences,
)
from fedfm.deploy.client.join_request import JoinRequest
from fedfm.deploy.client.site import Site, load_site, parse_site
from fedfm.run.prepare import build_model

_SHARE = re.compile(r"share:(\d+)/(\d+)")
_ENTRY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
Files = dict[Path, dict[str, Any]]
"""The contents of TOML files, by path."""


def read_request(request: JoinRequest) -> tuple[Config, Site, Path, Files]:
    """Return the config, the client, its site file and the files that must be written for it."""
    config = load_config(request.source, request.overrides)
    check_accountable(config)
    if request.site is not None:
        given = any([request.name, request.data, request.label, request.size, request.out])
        require(not given, "leave out --name, --data, --label, --size and --out: --site has them")
        client = load_site(request.site)
        _require_same(config, client.config, request.site)
        return config, client, request.site.resolve(), {}
    name, data = request.name, request.data
    require(bool(name and data), "give this client's name and data: --name and --data")
    section = data_section(str(data), request.label, request.size)
    out = request.out or Path("runs") / str(name)
    files = site_files(out, str(name), config.as_toml(), section)
    site, table = [*files.items()][-1]
    return config, parse_site(table, site.parent), site, files


def check_data(client: Site, config: Config) -> None:
    """Refuse unsuitable data before anybody waits for them."""
    data = client.load_data(config)
    build_model(config, data, pretrained=False)
    check_enough(data, config)
    check_batches(data, config)


def data_section(text: str, label: str | None, size: int | None) -> dict[str, Any]:
    """Return the [data] section of a site file for the value of `fedfm join --data`."""
    options = {key: value for key, value in (("label", label), ("size", size)) if value is not None}
    if share := _SHARE.fullmatch(text):
        return {"source": "share", "share": int(share[1]), "of": int(share[2]), **options}
    path = Path(text).expanduser()
    if path.exists():
        is_images = path.is_dir() or path.name.endswith(ARCHIVES)
        source = "folder" if is_images else "csv"
        return {"source": source, "path": str(path.resolve()), **options}
    if _ENTRY.fullmatch(text):
        return {"source": "python", "entry": text, "path": str(Path.cwd()), **options}
    raise UserError(
        f"--data {text}: there is no such file or folder; give a CSV file, a folder or archive of "
        "images, share:K/N (part K of N of the config's data), or package.module:function"
    )


def site_files(out: Path, name: str, config: dict[str, Any], data: dict[str, Any]) -> Files:
    """Return the files of a client in `out`: the config that it expects, then its site file."""
    folder = out.resolve()
    expected = folder / "expected.toml"
    site = {"name": name, "out": str(folder), "config": str(expected), "data": data}
    return {expected: config, folder / "site.toml": site}


def _require_same(config: Config, expected: str | None, site: Path) -> None:
    """Refuse a config that differs from the one that the site file names."""
    require(
        expected is not None,
        f'add `config = "..."` to {site}: a server that runs another config is then refused',
    )
    differences = describe_differences(load_config(str(expected)), config, (site.name, "here"))
    require(not differences, f"{site} expects another config, {expected}: {differences}")
