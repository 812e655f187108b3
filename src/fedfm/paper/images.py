"""Compare runs on exact pixels with runs on JPEG images that differ in nothing else."""

import json
from collections import defaultdict
from statistics import fmean

from fedfm.grid.identity import extract_identity
from fedfm.grid.store import Store, Summary
from fedfm.paper.evidence import Evidence
from fedfm.report.tables.statistics import compute_deviation

HEADING = "## What JPEG images cost\n"
ABOUT = """\
The earlier runs used CIFAR-10 as JPEG files (quality 75, colours at half the resolution), with the
mean and the standard deviation of those images; the runs since then use the exact pixels.
"""
NOTHING = "Not measured yet: no run on exact pixels has the settings of one on JPEG images.\n"
Key = tuple[str, int]


def render_images(exact: Evidence, jpeg: Evidence | None) -> str:
    """Return the paragraph, with a sentence for each number of rounds."""
    if jpeg is None:
        return ""
    pairs = pair_runs(Store(exact.folder).summaries(), Store(jpeg.folder).summaries())
    sentences = [_describe(rounds, some) for rounds, some in sorted(pairs.items(), reverse=True)]
    if 100 not in pairs:
        sentences.insert(0, "Not measured yet for runs of 100 rounds.")
    return "\n".join([HEADING, ABOUT, *(sentences if pairs else [NOTHING]), ""])


def pair_runs(
    exact: list[Summary], jpeg: list[Summary]
) -> dict[int, list[tuple[Summary, Summary]]]:
    """Return by rounds the pairs with the same config, apart from the data, and the same seed."""
    known = {_make_key(run): run for run in jpeg}
    on_exact_pixels = {_make_key(run): run for run in exact}
    pairs: defaultdict[int, list[tuple[Summary, Summary]]] = defaultdict(list)
    for key, run in on_exact_pixels.items():
        if key in known:
            pairs[run.rounds].append((run, known[key]))
    return dict(pairs)


def _make_key(run: Summary) -> Key:
    identity = extract_identity(run.config)
    return json.dumps(identity | {"data": None}, sort_keys=True), run.seed


def _describe(rounds: int, pairs: list[tuple[Summary, Summary]]) -> str:
    """Return a sentence with the mean of both, and of the difference."""
    ours, theirs = ([100 * run.test_accuracy for run in side] for side in zip(*pairs, strict=True))
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    spread = compute_deviation(differences)
    deviation = "" if spread is None else f" (standard deviation over the pairs: {spread:.2f})"
    number = f"{len(pairs)} pairs of runs" if len(pairs) > 1 else "one pair of runs"
    return (
        f"After {rounds} rounds, {number} with the same method, settings, kind of partition and "
        f"seed have a mean test accuracy of {fmean(ours):.2f} percent on exact pixels and "
        f"{fmean(theirs):.2f} on JPEG images: a difference of {fmean(differences):+.2f} "
        f"points{deviation}.\n"
    )
