"""What a client keeps in memory between questions: its data, and its runtime in a federation."""

import json
from collections.abc import Hashable
from pathlib import Path

from fedfm.config import Config, parse
from fedfm.data.dataset import Dataset
from fedfm.deploy.agreement import Agreement
from fedfm.deploy.client.runtime import Runtime
from fedfm.deploy.client.site import Site


class Cache:
    """The config, the data and the runtime of the last question.

    Data are loaded again if their files or the part of the config that selects them changed. A
    runtime is built again if its data, the config, the agreement or the site's device changed.
    """

    def __init__(self) -> None:
        self._config: tuple[str, Config] | None = None
        self._data: tuple[object, Dataset] | None = None
        self._runtime: tuple[object, Runtime] | None = None

    def clear(self) -> None:
        """Free the memory."""
        self._data = self._runtime = None

    def read_config(self, text: str) -> Config:
        """Return the server's config, which most questions have in common."""
        if self._config is None or self._config[0] != text:
            self._config = text, parse(json.loads(text))
        return self._config[1]

    def load_data(self, site: Site, config: Config) -> Dataset:
        """Return the client's data."""
        selection = (config.data, config.partition, config.training.clients, config.seed)
        key = (site.data, selection, stamp_files(site, config))
        if self._data is None or self._data[0] != key:
            self.clear()
            self._data = key, site.load_data(config)
        return self._data[1]

    def get_runtime(self, site: Site, config: Config, agreement: Agreement, client: int) -> Runtime:
        """Return the client's machine, prepared for questions of one federation."""
        data = self.load_data(site, config)
        key = (config, agreement, client, site.device, site.threads)
        if self._runtime is None or self._runtime[0] != key:
            self._runtime = None
            self._runtime = key, Runtime(site, config, agreement, client, data)
        return self._runtime[1]


def stamp_files(site: Site, config: Config) -> Hashable:
    """Return a value that changes when a file of the data is changed, added or removed."""
    return tuple(
        (str(file), status.st_mtime_ns, status.st_size)
        for path in site.data.paths(config)
        for file in _list_files(path)
        if (status := file.stat())
    )


def _list_files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    return [path] if path.exists() else []
