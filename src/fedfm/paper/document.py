"""What the document of the reproduction is made of."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedfm.grid.store import DRAWN_FILE
from fedfm.paper.discussion import fill_discussion
from fedfm.paper.evidence import Evidence
from fedfm.paper.missing import Inventory
from fedfm.paper.plan import ReproductionPlan, Section, load_plan
from fedfm.paper.sections import JPEG
from fedfm.paper.stages import UNTRAINED
from fedfm.report.tables.table import Table


@dataclass(frozen=True)
class Document:
    """What the document is made of."""

    path: Path
    exact: Evidence
    jpeg: Evidence | None
    overrides: tuple[str, ...]
    words: tuple[str, ...]
    """The options of the command line that say what was run: --set and --with."""

    @property
    def plan(self) -> ReproductionPlan:
        """Return the plan of the reproduction."""
        return self.exact.plan

    @property
    def results(self) -> Path:
        """Return the folder of the results."""
        return self.exact.folder

    @property
    def tables(self) -> Mapping[str, Table]:
        """Return the tables of the results, by recipe."""
        return self.exact.tables

    @cached_property
    def inventory(self) -> Inventory:
        """Return what has been run and what has not."""
        return Inventory.of(self.exact, self.jpeg, self.overrides)

    @property
    def discussion(self) -> str:
        """Return the discussion, from a file beside the document."""
        path = self.path.with_name(f"{self.path.stem}-discussion.md")
        text = path.read_text() if path.exists() else "Not written yet.\n"
        return fill_discussion(text, self.exact, self.jpeg)

    @property
    def command(self) -> str:
        """Return the command that writes it."""
        jpeg = ["--jpeg", str(self.jpeg.folder)] if self.jpeg else []
        options = ["--results", str(self.results), *jpeg, "--document", str(self.path)]
        return shlex.join(["fedfm", "reproduce", "--no-run", *self.words, *options])

    def choose_evidence(self, recipe: str) -> Evidence:
        """Return the runs of a recipe on exact pixels, or on JPEG images while these are more."""
        if self.jpeg is None or self.exact.count(recipe) >= self.jpeg.count(recipe):
            return self.exact
        return self.jpeg

    def list_pictures(self, part: Section) -> dict[str, Path]:
        """Return the pictures of a section that there are, by what they show."""
        recipe = part.selection
        if recipe.output in UNTRAINED:
            record = self.results / recipe.name / DRAWN_FILE
            rows = json.loads(record.read_text()) if record.exists() else []
            names = dict.fromkeys(row["picture"] for row in rows)
            paths = {Path(name).stem: self.picture(f"{recipe.name}-{name}") for name in names}
            return paths
        path = self.picture(f"{recipe.name}.png")
        if not path.exists():
            return {}
        images = f", on {JPEG}" if self.choose_evidence(recipe.name) is self.jpeg else ""
        return {f"{recipe.title}{images}": path}

    def picture(self, name: str) -> Path:
        """Return the path of a picture beside the document."""
        return self.path.with_name(f"{self.path.stem}-{name}")


def make_document(
    path: Path,
    results: Path,
    overrides: Sequence[str],
    words: Sequence[str],
    jpeg: Path | None = None,
) -> Document:
    """Return the document about results; `overrides` are what `words` stand for.

    Args:
        path: Where it will be.
        results: The folder of the results.
        overrides: The settings of all runs, beside those that the folder has.
        words: The options of the command that give these settings.
        jpeg: A folder with results on JPEG images, to compare with.
    """
    plan = load_plan()
    earlier = Evidence.of(plan, jpeg) if jpeg else None
    exact = Evidence.of(plan, results, overrides)
    return Document(path, exact, earlier, tuple(overrides), tuple(words))
