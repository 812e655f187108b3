"""The server on a grid: for `fedfm serve`, and as a Flower ServerApp for Flower's programs."""

import json
import logging
import os
import sys
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedfm.config import Config, load_config, parse
from fedfm.core.errors import UserError
from fedfm.deploy.server.server import Server
from fedfm.plugins import load_plugins
from fedfm.run.console import describe_result, show_rounds
from fedfm.run.folder import RunFolder

FLOWER = ("flower", "app")
"""Folders in a run's folder that belong to Flower."""
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run's config describes."""
    show_log()
    load_plugins()
    config = read_config(str(context.run_config.get("config", "digits")))
    out = Path(str(context.run_config.get("out", "runs/flower")))
    resume = os.environ.get("FEDFM_RESUME") == "1"
    RunFolder.open(out, config.as_toml(), resume, FLOWER)
    run_federation(grid, config, out)


def run_federation(grid: Grid, config: Config, out: Path) -> None:
    """Run a federation to its end; its folder is made already."""
    title = f"{config.composed.name}, {config.training.clients} clients"
    folder = RunFolder(out)
    with folder.lock(), show_rounds([title], config.training.rounds) as (watch,):
        result = Server(grid, config, folder, watch).run()
    print(describe_result(result), file=sys.stderr)


def show_log() -> None:
    """Show FedFM's log from level INFO on; Flower's log is separate."""
    logger = logging.getLogger("fedfm")
    logger.setLevel(logging.INFO)
    if not logger.handlers:
        logger.addHandler(logging.StreamHandler())


def read_config(text: str) -> Config:
    """Return a config from JSON, or from a name or path that `load_config` accepts."""
    if not text.lstrip().startswith("{"):
        return load_config(text)
    try:
        return parse(json.loads(text))
    except json.JSONDecodeError as problem:
        raise UserError(f"the run's config is not valid JSON: {problem}") from problem
