"""`fedfm reproduce`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedfm.cli.options import Collect, Overrides, Quick, Results, RunFirst, Time, With
from fedfm.cli.shared_grid import exit_if_incomplete, make_job_pool, run_stages
from fedfm.core.errors import require


def reproduce(
    item: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Only this item of the plan, from 1 to 9. Repeatable."),
    ] = None,
    budget: Time = None,
    quick: Quick = False,
    overrides: Overrides = None,
    settings: With = None,
    results: Results = Path("results"),
    collect: Collect = None,
    document: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a Markdown document about the results."),
    ] = None,
    jpeg: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Results on JPEG images, to compare with in FILE."),
    ] = None,
    run: RunFirst = True,
) -> None:
    """Reproduce the paper step by step, as far as the time allows, and write down the results.

    The most important steps come first. The same command continues an unfinished reproduction. The
    results folder's own settings are used: its data.toml, and what `tune` has chosen.
    """
    from fedfm.grid.budget import Budget
    from fedfm.grid.merge import collect_results
    from fedfm.grid.store import Store
    from fedfm.paper.catalogue import read_settings
    from fedfm.paper.plan import load_plan
    from fedfm.paper.stages import Stages
    from fedfm.run.console import log_to_console

    require(not (quick and document), "--quick gives no results for a document")
    time = Budget.parse(budget, whole=collect is not None)
    changes = [*read_settings(settings or []), *(overrides or [])]
    log_to_console()
    grid, left = None, []
    if run:
        stages = Stages(load_plan(), results, quick, changes, item or ())
        pool = make_job_pool("local", 1, None, results, time)
        grid = run_stages(stages, stages.count_missing(), results, time, pool, collect)
        left = stages.list_missing()
        if collect and Store(results).path.exists():
            collect_results(results, collect)
    if document:
        files = [word for path in settings or [] for word in ("--with", str(path))]
        words = [*files, *(word for change in overrides or [] for word in ("--set", change))]
        _write_document(document, results, jpeg, changes, words)
    exit_if_incomplete(grid, left)


def _write_document(
    path: Path, results: Path, jpeg: Path | None, changes: Sequence[str], words: Sequence[str]
) -> None:
    """Write the document with its pictures; print where they are."""
    from fedfm.paper.document import make_document
    from fedfm.paper.render import write_document

    for file in write_document(make_document(path, results, changes, words, jpeg)):
        print(f"wrote {file}")
