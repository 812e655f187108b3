"""List what the paper has and no run shows, and what running it would take."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedfm.grid.budget import Speed, format_duration
from fedfm.grid.jobs import Job, find_missing
from fedfm.grid.store import Store
from fedfm.paper.catalogue import load_recipe, read_settings
from fedfm.paper.evidence import Evidence
from fedfm.paper.plan import Section
from fedfm.paper.settings import list_settings_files
from fedfm.paper.stages import UNTRAINED
from fedfm.report.tables.formats import format_markdown_table

HEADS = ("where", "recipe", "cells not run", "runs", "what they take")
ABOUT = """\
## What is not measured

Cells without any run, and the runs that they need for as many seeds as the paper has. Times on one
H200 are estimated from finished runs of the same network and data. Tables share cells, so the total
is less than the sum.
"""


@dataclass(frozen=True)
class Inventory:
    """Which cells there are, and which have runs; a cell that several tables share counts once."""

    evidence: Evidence
    overrides: Sequence[str]
    """What all runs have been given beside the folder's own settings."""
    speed: Speed

    @staticmethod
    def of(exact: Evidence, jpeg: Evidence | None, overrides: Sequence[str]) -> "Inventory":
        """Take stock of the runs on exact pixels; those on JPEG images also tell the time."""
        stores = [Store(each.folder) for each in (exact, jpeg) if each]
        speed = Speed.of((run for store in stores for run in store.summaries()), "cuda")
        return Inventory(exact, overrides, speed)

    @cached_property
    def jobs(self) -> dict[str, list[Job]]:
        """Return the jobs of every section by recipe; none of one that is drawn at once."""
        files = read_settings(list_settings_files(self.evidence.folder))
        return {
            part.recipe: part.jobs(False, None, [*files, *self.overrides])
            for part in self.evidence.plan.parts
            if part.selection.output not in UNTRAINED
        }

    def list_jobs(self, part: Section) -> list[Job]:
        """Return the jobs of a section."""
        return self.jobs.get(part.recipe, [])

    def count(self, ours: bool = False) -> tuple[int, int]:
        """Return how many different cells have been run, and how many there are.

        Either those of the paper, or those that only we have.
        """
        parts = self.evidence.plan.parts
        papers = {job.digest for part in parts if not part.ours for job in self.list_jobs(part)}
        own = {job.digest for part in parts if part.ours for job in self.list_jobs(part)}
        wanted = own - papers if ours else papers
        run = {run.digest for run in Store(self.evidence.folder).summaries()}
        return len(wanted & run), len(wanted)

    def list_missing(self) -> Iterator[list[str]]:
        """Yield a row for each section, and for each data set of a section, that lacks cells."""
        run = {run.digest for run in Store(self.evidence.folder).summaries()}
        for part in self.evidence.plan.parts:
            recipe = load_recipe(part.recipe)
            absent = [job for job in self.list_jobs(part) if job.digest not in run]
            for label in recipe.axes.get("data", {"": {}}):
                jobs = [job for job in absent if label in ("", job.labels[0].get("data"))]
                if jobs:
                    where = f"{recipe.paper}, {label}" if label else recipe.paper
                    runs = sum(len(job.seeds) for job in jobs)
                    takes = part.takes.get(label) or self._estimate(jobs)
                    yield [where, f"`{recipe.name}`", str(len(jobs)), str(runs), takes]
            if recipe.output in UNTRAINED and not self.evidence.has_drawn(recipe.name):
                yield [recipe.paper, f"`{recipe.name}`", "", "", part.takes.get("", "minutes")]

    def _estimate(self, jobs: Sequence[Job]) -> str:
        seconds = [self.speed.seconds(job.config, len(job.seeds)) for job in find_missing(jobs, [])]
        known = [each for each in seconds if each is not None]
        return format_duration(sum(known)) if len(known) == len(seconds) else "unknown"


def render_missing(inventory: Inventory) -> str:
    """Return the section."""
    rows = list(inventory.list_missing())
    return f"{ABOUT}\n{format_markdown_table(HEADS, rows)}" if rows else ""
