"""`fedfm run`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedfm.cli.options import BUILTIN, SOURCE_HELP, Format, Overrides
from fedfm.core.errors import UserError, plural, require
from fedfm.core.torchrun import end, end_on_termination, is_first, is_launched

if TYPE_CHECKING:
    from fedfm.config import Config
    from fedfm.engine.profile import Profile
    from fedfm.run.bookkeeper import Watcher
    from fedfm.run.records import Result, RoundRecord


def run(
    source: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG", help=f"{SOURCE_HELP} With --resume also the folder of a run."
        ),
    ],
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run.", show_default="runs/CONFIG-METHOD-SEED"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete a run in the folder, and start again.")
    ] = False,
    seeds: Annotated[
        int,
        typer.Option(min=1, help="Number of seeds, from the config's seed on; trained together."),
    ] = 1,
    profile: Annotated[
        bool, typer.Option("--profile", help="Print the seconds of every phase.")
    ] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SERVICE", help="Send every round to tensorboard or mlflow. Repeatable."
        ),
    ] = None,
    format: Format = "text",
) -> None:
    """Run an experiment and keep its results in a folder."""
    from fedfm.config import load_config
    from fedfm.engine.profile import Profile
    from fedfm.run.console import log_to_console

    log_to_console()
    logging.getLogger("fedfm").setLevel(logging.INFO)
    recorded = Path(source) / "config.toml"
    if recorded.is_file() and (resume or source not in BUILTIN):
        require(resume, f"{source} is the folder of a run; continue it with --resume")
        require(seeds == 1, f"{source} is the folder of one seed: leave out --seeds")
        source, out = str(recorded), out or recorded.parent
    config = load_config(source, overrides or [])
    configs = [config.with_seed(config.seed + i) for i in range(seeds)]
    folders = [_folder(source, config, out, seeds) for config in configs]
    for folder in folders:
        require(
            resume or overwrite or not (folder / "config.toml").exists(),
            f"{folder} already holds a run; continue it with --resume, start again with "
            "--overwrite, or choose another --out",
        )
    with Profile() if profile else nullcontext() as seconds, exit_on_interrupt(), explain_restart():
        results = run_and_show(configs, folders, resume, overwrite, track=track or [])
    if seconds:
        _write_profile(seconds, folders[0], format)
    for result, folder in zip(results, folders, strict=True):
        print_result(result, folder, format)


def run_and_show(
    configs: Sequence[Config],
    outs: Sequence[Path | None],
    resume: bool,
    overwrite: bool = False,
    title: str = "",
    track: Sequence[str] = (),
    parents: Sequence[Path | None] = (),
) -> list[Result]:
    """Run configs that differ in their seeds together; show their rounds and track them."""
    from fedfm.run.console import show_rounds
    from fedfm.run.prepare import follow_all
    from fedfm.run.runner import run_configs
    from fedfm.run.tracking import open_trackers

    if is_launched():
        end_on_termination()
    configs, data = follow_all(configs)
    first = configs[0]
    title = title or f"{first.composed.name}, {plural(first.training.clients, 'client')}"
    titles = [title if len(configs) == 1 else f"{title}, seed {c.seed}" for c in configs]
    with ExitStack() as stack:
        watchers = stack.enter_context(show_rounds(titles, first.training.rounds))
        if track:
            watchers = [
                _call_both(watch, stack.enter_context(open_trackers(track, config.as_toml(), out)))
                for watch, config, out in zip(watchers, configs, outs, strict=True)
                if out
            ]
        return run_configs(
            configs,
            outs=outs,
            watchers=watchers,
            data=data,
            resume=resume,
            overwrite=overwrite,
            parents=parents,
        )


def _call_both(show: Watcher, track: Watcher) -> Watcher:
    def watch(record: RoundRecord) -> None:
        show(record)
        track(record)

    return watch


def _folder(source: str, config: Config, out: Path | None, seeds: int) -> Path:
    if out is None:
        return Path("runs") / f"{Path(source).stem}-{config.composed.name}-{config.seed}"
    return out if seeds == 1 else out / f"seed-{config.seed}"


@contextmanager
def exit_on_interrupt(advice: str = "continue with --resume") -> Iterator[None]:
    """Let Ctrl-C end the command in a line that says how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        end(f"fedfm: interrupted; {advice}", 130)


@contextmanager
def explain_restart() -> Iterator[None]:
    """Let a run that diverged say how to start again in its folder."""
    from fedfm.rounds.server import Diverged

    try:
        yield
    except Diverged as problem:
        raise UserError(f"{problem}, and start again with --overwrite") from problem


def _write_profile(profile: Profile, folder: Path, format: str) -> None:
    """Write the seconds of every phase to profile.json, and print them for people.

    Of several processes, the first one does; the file then has a list for every phase.
    """
    from fedfm.engine.processes import connect
    from fedfm.run.console import numeric_table, print_table

    everyone: list[dict[str, float]] = connect().gather(dict(profile.seconds))
    if not is_first():
        return
    names = dict.fromkeys(name for seconds in everyone for name in seconds)
    several = {name: [seconds.get(name, 0.0) for seconds in everyone] for name in names}
    first = {name: seconds[0] for name, seconds in several.items()}
    text = json.dumps(first if len(everyone) == 1 else several, indent=2) + "\n"
    (folder / "profile.json").write_text(text)
    if format == "json":
        return
    more = [f"process {rank}" for rank in range(1, len(everyone))]
    table = numeric_table("seconds of every phase", "phase", ["seconds", "%", *more])
    for name, seconds in sorted(several.items(), key=lambda item: -item[1][0]):
        share = 100 * seconds[0] / sum(first.values())
        table.add_row(name, f"{seconds[0]:.3f}", f"{share:.1f}", *(f"{s:.3f}" for s in seconds[1:]))
    print_table(table)


def print_result(result: Result, folder: Path, format: str) -> None:
    """Print the result of a run and where its files are; of several processes, the first does."""
    from fedfm.run.console import describe_result
    from fedfm.run.folder import summarise

    if not is_first():
        return
    if format == "json":
        print(json.dumps(summarise(result) | {"folder": str(folder)}))
        return
    totals = result.totals
    print(
        f"{describe_result(result)}\n"
        f"sent {totals.floats_up:,} floats up and {totals.floats_down:,} down "
        f"in {totals.handshakes} handshakes\n"
        f"files in {folder}"
    )
