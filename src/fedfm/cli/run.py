"""`fedfm run`."""

import json
import logging
import sys
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from fedfm.cli.options import Format, Overrides
from fedfm.config import Config, builtin_names, load_config
from fedfm.core.errors import require
from fedfm.engine.profile import Profile, phase
from fedfm.run.console import (
    describe_result,
    log_to_console,
    numeric_table,
    print_table,
    show_rounds,
)
from fedfm.run.folder import RunFolder, summary
from fedfm.run.prepare import build_model, device_of, load_data, use_threads
from fedfm.run.records import Result, RoundRecord
from fedfm.run.runner import Run, Watcher, run_together
from fedfm.run.tracking import SERVICES, tracking

SOURCE_HELP = f"A TOML file, or a built-in config: {', '.join(builtin_names())}."
RUN_HELP = f"{SOURCE_HELP} With --resume also a run's folder."


def run_config(config: Config, out: Path | None, resume: bool, title: str = "") -> Result:
    """Run a config with a display."""
    return run_configs([config], [out], resume, title)[0]


def run_configs(
    configs: Sequence[Config],
    outs: Sequence[Path | None],
    resume: bool,
    title: str = "",
    track: Sequence[str] = (),
) -> list[Result]:
    """Run configs that differ in their seeds together, with a display, tracked by services."""
    first = configs[0]
    for config, out in zip(configs, outs, strict=True):
        if out:
            RunFolder.check(out, config.as_toml(), resume)
    with phase("set-up"):
        dataset, device = load_data(first), device_of(first)
        built = [build_model(config, dataset).to(device) for config in configs]
        use_threads(first.threads, built[0])
    title = title or f"{first.composed.name}, {first.training.clients} clients"
    titles = [title if len(configs) == 1 else f"{title}, seed {c.seed}" for c in configs]
    with ExitStack() as stack:
        watchers = stack.enter_context(show_rounds(titles, first.training.rounds))
        if track:
            watchers = [
                _both(watch, stack.enter_context(tracking(track, config.as_toml(), out)))
                for watch, config, out in zip(watchers, configs, outs, strict=True)
                if out
            ]
        runs = [
            Run(model, config.experiment, out, config.as_toml(), watch)
            for model, config, out, watch in zip(built, configs, outs, watchers, strict=True)
        ]
        return run_together(runs, dataset, resume)


def _both(show: Watcher, track: Watcher) -> Watcher:
    def watch(record: RoundRecord) -> None:
        show(record)
        track(record)

    return watch


def run(
    source: Annotated[str, typer.Argument(metavar="CONFIG", help=RUN_HELP)],
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The run's folder.  [default: runs/CONFIG-METHOD-SEED]"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint.")
    ] = False,
    seeds: Annotated[
        int,
        typer.Option(min=1, help="So many seeds, from the config's on, trained together."),
    ] = 1,
    profile: Annotated[
        bool, typer.Option("--profile", help="Write where the time went, as a table.")
    ] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(help=f"Send every round to a service: {', '.join(SERVICES)}. Repeatable."),
    ] = None,
    format: Format = "text",
) -> None:
    """Run an experiment and keep everything about it in a folder."""
    log_to_console()
    logging.getLogger("fedfm").setLevel(logging.INFO)
    begun = Path(source) / "config.toml"
    if begun.is_file() and (resume or source not in builtin_names()):
        require(resume, f"{source} is the folder of a run; go on with it with --resume")
        require(seeds == 1, f"{source} is the folder of one seed: leave out --seeds")
        source, out = str(begun), out or begun.parent
    config = load_config(source, overrides or [])
    configs = [config.with_seed(config.seed + i) for i in range(seeds)]
    folders = [_folder(source, each, out, seeds) for each in configs]
    with Profile() if profile else nullcontext() as found:
        results = _run_or_say(configs, folders, resume, track or [])
    if found:
        write_profile(found, folders[0], format)
    for result, folder in zip(results, folders, strict=True):
        show_result(result, folder, format)


def _folder(source: str, config: Config, out: Path | None, seeds: int) -> Path:
    if out is None:
        return Path("runs") / f"{Path(source).stem}-{config.composed.name}-{config.seed}"
    return out if seeds == 1 else out / f"seed-{config.seed}"


def _run_or_say(
    configs: Sequence[Config], folders: Sequence[Path], resume: bool, track: Sequence[str]
) -> list[Result]:
    try:
        return run_configs(configs, folders, resume, track=track)
    except KeyboardInterrupt as interrupt:
        print("fedfm: interrupted; go on with --resume", file=sys.stderr)
        raise typer.Exit(130) from interrupt


def write_profile(profile: Profile, folder: Path, format: str) -> None:
    """The seconds of every phase: printed for people, and as profile.json in the run's folder."""
    text = json.dumps(dict(profile.seconds), indent=2) + "\n"
    (folder / "profile.json").write_text(text)
    if format == "json":
        return
    whole = sum(profile.seconds.values())
    table = numeric_table("where the time went", "phase", ["seconds", "%"])
    for name, seconds in sorted(profile.seconds.items(), key=lambda found: -found[1]):
        table.add_row(name, f"{seconds:.3f}", f"{100 * seconds / whole:.1f}")
    print_table(table)


def show_result(result: Result, folder: Path, format: str) -> None:
    """A run's outcome, for people or for programs."""
    if format == "json":
        print(json.dumps(summary(result) | {"folder": str(folder)}))
        return
    totals = result.totals
    print(
        f"{describe_result(result)}\n"
        f"sent {totals.floats_up:,} floats up and {totals.floats_down:,} down "
        f"in {totals.handshakes} handshakes\n"
        f"files in {folder}"
    )
