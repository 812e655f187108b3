"""`fedfm reproduce`: the paper's claims measured again, and the documents about it."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedfm.cli.grid import conclude, engine_for, run_all
from fedfm.cli.options import Collect, Overrides, Quick, Results, RunFirst, Time, With
from fedfm.config import override
from fedfm.core.errors import require
from fedfm.grid.budget import Budget
from fedfm.grid.jobs import Job, adopt, missing
from fedfm.grid.settings import settings_in
from fedfm.grid.store import Store
from fedfm.paper.plan import Plan, adopted, load_plan
from fedfm.run.console import log_to_console


def reproduce(
    budget: Time = None,
    quick: Quick = False,
    overrides: Overrides = None,
    settings: With = None,
    results: Results = Path("results"),
    collect: Collect = None,
    document: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the document, with its pictures.")
    ] = None,
    readme: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Put the headline into it, if there is one.")
    ] = None,
    run: RunFirst = True,
) -> None:
    """Run the reproduction, step by step, as far as there is time; write what is known by now.

    The steps come in the order in which they matter, and the same command goes on with them.
    """
    require(document is not None or readme is None, "--readme goes with --document")
    require(not (quick and document), "--quick has no results that a document could show")
    time = Budget.parse(budget, whole=collect is not None)
    changes = [*settings_in(settings or []), *(overrides or [])]
    log_to_console()
    plan, store = load_plan(), Store(results)
    grid, left = None, []
    if run:
        stages = list(stages_of(plan, quick, changes, results))
        engine = engine_for("local", 1, None, results, time)
        grid = run_all(_left(stages, store), results, time, engine, collect)
        left = [job for jobs in _left(stages, store) for job in jobs]
    adopted(plan, results, changes, quick)
    if document:
        write_documents(document, readme, results, changes, words(overrides, settings))
    conclude(grid, left)


def _left(stages: Sequence[Sequence[Job]], store: Store) -> list[list[Job]]:
    """What is missing of every stage."""
    there = store.summaries()
    return [missing(jobs, there) for jobs in stages]


def stages_of(
    plan: Plan, quick: bool, changes: Sequence[str], results: Path
) -> Iterator[list[Job]]:
    """The runs of every step whose turn has come."""
    chosen = any(override(change)[0][0] == "method" for change in changes)
    for number, step in enumerate(plan.steps, 1):
        if step.tuned and not chosen:
            choice = results / "tune" / "chosen.toml"
            said = f"step {number}, {step.recipe}, waits for a choice: --with {choice}"
            print(said, file=sys.stderr)
            continue
        jobs = step.jobs(quick, step.seeds, changes)
        adopt(jobs, Store(results))
        yield jobs


def words(overrides: Sequence[str] | None, settings: Sequence[Path] | None) -> list[str]:
    """The options that say what was run, as they were given."""
    files = [word for path in settings or [] for word in ("--with", str(path))]
    return [*files, *(word for change in overrides or [] for word in ("--set", change))]


def write_documents(
    path: Path, readme: Path | None, results: Path, changes: Sequence[str], given: Sequence[str]
) -> None:
    """The document, its pictures and the README's headline; say where they are."""
    from fedfm.paper.document import document, write
    from fedfm.paper.headline import write_headline

    made = document(path, results, changes, given)
    for each in write(made):
        print(f"wrote {each}")
    if readme:
        done = write_headline(made, readme)
        print(f"wrote the headline in {readme}" if done else f"no headline for {readme} yet")
