"""The Flower ServerApp: reads the config of a run and hands Flower's grid to the server."""

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
    config = config_of(str(context.run_config.get("config", "digits")))
    out = Path(os.environ.get("FEDFM_OUT") or str(context.run_config.get("out", "runs/flower")))
    resume = os.environ.get("FEDFM_RESUME") == "1"
    title = f"{config.composed.name}, {config.training.clients} clients"
    folder = RunFolder.open(out, config.as_toml(), resume, FLOWER)
    with folder.lock(), show_rounds([title], config.training.rounds) as (watch,):
        result = Server(grid, config, folder, watch).run()
    print(describe_result(result), file=sys.stderr)


def show_log() -> None:
    """Show what the server does, not only what goes wrong: Flower's own log is another one."""
    logger = logging.getLogger("fedfm")
    logger.setLevel(logging.INFO)
    if not logger.handlers:
        logger.addHandler(logging.StreamHandler())


def config_of(text: str) -> Config:
    """A config from JSON, or from what `load_config` takes."""
    if not text.lstrip().startswith("{"):
        return load_config(text)
    try:
        return parse(json.loads(text))
    except json.JSONDecodeError as problem:
        raise UserError(f"the run's config is no JSON: {problem}") from problem
