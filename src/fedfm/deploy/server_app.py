"""The Flower ServerApp: reads the config of a run and starts the server on Flower's grid."""

import json
import os
import sys
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedfm.config import Config, load_config, parse
from fedfm.core.errors import UserError
from fedfm.deploy.operations.logs import show_log
from fedfm.deploy.operations.service import Watched, operate
from fedfm.deploy.programs.addresses import Address
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
    show_log(os.environ.get("FEDFM_LOG_JSON") == "1")
    load_plugins()
    config = read_config(str(context.run_config.get("config", "digits")))
    out = Path(os.environ.get("FEDFM_OUT") or str(context.run_config.get("out", "runs/flower")))
    resume = os.environ.get("FEDFM_RESUME") == "1"
    title = f"{config.composed.name}, {config.training.clients} clients"
    folder = RunFolder.open(out, config.as_toml(), resume, FLOWER)
    keys, metrics = os.environ.get("FEDFM_KEYS"), os.environ.get("FEDFM_METRICS")
    watched = Watched(Path(keys)) if keys else None
    services = operate(out, config.deployment, watched, Address.parse(metrics) if metrics else None)
    with folder.lock(), services, show_rounds([title], config.training.rounds) as (watch,):
        result = Server(grid, config, folder, watch).run()
    print(describe_result(result), file=sys.stderr)


def read_config(text: str) -> Config:
    """Return a config from JSON, or from a name or path that `load_config` accepts."""
    if not text.lstrip().startswith("{"):
        return load_config(text)
    try:
        return parse(json.loads(text))
    except json.JSONDecodeError as problem:
        raise UserError(f"the run's config is not valid JSON: {problem}") from problem
