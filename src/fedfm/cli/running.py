"""`fedfm run`."""

import json
import logging
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.logging import RichHandler

from fedfm import data, models
from fedfm.cli.display import watching
from fedfm.cli.options import Format, Overrides
from fedfm.config import Config, builtin_names, load_config
from fedfm.core.rng import torch_seed
from fedfm.data.dataset import Dataset
from fedfm.records import Result
from fedfm.runs import summary
from fedfm.simulation import simulate

SMALL = 50_000
"""Parameters of a network below which a second thread gains little, and on a busy machine loses."""
SOURCE_HELP = f"A TOML file, or a built-in config: {', '.join(builtin_names())}."


def load_data(config: Config) -> Dataset:
    """The data set that a config names."""
    options = config.data.model_dump(exclude={"name"}, exclude_none=True)
    for key in ("dir", "path"):
        if key in options:
            options[key] = Path(options[key]).expanduser()
    return data.load(config.data.name, **options)


def build_model(config: Config, dataset: Dataset) -> torch.nn.Module:
    """The model that a config names, initialised from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(config.seed, "model"))
        return models.build(
            config.model.name,
            shape=dataset.shape,
            classes=len(dataset.classes),
            **config.model.options,
        )


def use_threads(wanted: int, model: torch.nn.Module) -> None:
    """Set the number of CPU threads; small networks want one, above all on a busy machine."""
    if not wanted and models.parameter_count(model) < SMALL:
        wanted = 1
    if wanted:
        torch.set_num_threads(wanted)


def run_config(config: Config, out: Path | None, resume: bool, title: str = "") -> Result:
    """Run a config with a display."""
    dataset = load_data(config)
    method, model = config.composed, build_model(config, dataset)
    use_threads(config.threads, model)
    title = title or f"{method.name}, {config.protocol.clients} clients"
    with watching(title, config.protocol.rounds) as show:
        return simulate(
            model,
            dataset,
            method.pieces,
            partition=config.partition,
            protocol=config.protocol,
            seed=config.seed,
            executor=config.executor,
            client_states=config.client_states,
            out=out,
            resume=resume,
            config=config.as_toml(),
            watch=show,
        )


def run(
    source: Annotated[str, typer.Argument(metavar="CONFIG", help=SOURCE_HELP)],
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The run's folder.  [default: runs/CONFIG-METHOD-SEED]"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint.")
    ] = False,
    format: Format = "text",
) -> None:
    """Run an experiment and keep everything about it in a folder."""
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=Console(stderr=True), show_time=False, show_path=False)],
    )
    config = load_config(source, overrides or [])
    name = f"{Path(source).stem}-{config.composed.name}-{config.seed}"
    folder = out or Path("runs") / name
    try:
        result = run_config(config, folder, resume)
    except KeyboardInterrupt as interrupt:
        print("fedfm: interrupted; go on with --resume", file=sys.stderr)
        raise typer.Exit(130) from interrupt
    if format == "json":
        print(json.dumps(summary(result) | {"folder": str(folder)}))
        return
    best, totals = result.best, result.totals
    print(
        f"{result.method}: test accuracy {100 * best.test_accuracy:.2f}% "
        f"(best validation {100 * best.val_accuracy:.2f}% in round {best.round})\n"
        f"sent {totals.floats_up:,} floats up and {totals.floats_down:,} down "
        f"in {totals.handshakes} handshakes\n"
        f"files in {folder}"
    )
