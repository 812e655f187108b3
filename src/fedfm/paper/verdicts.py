"""Render the verdicts on the paper's claims."""

from collections import Counter
from collections.abc import Iterator, Sequence

from fedfm.paper.claims import FAILS, HEADS, HOLDS, UNDECIDED, UNKNOWN, Verdict
from fedfm.paper.evidence import Evidence, make_anchor, make_title
from fedfm.report.tables.formats import format_markdown_table

ABOUT = """\
## Which claims hold

{counts}

A difference is the mean over the seeds that both cells share, ± its sample standard deviation
(divisor n - 1). With several seeds, a claim is decided if Student's 95 % interval for these paired
differences lies on one side of zero; "comparable" is decided by the 90 % interval and a margin of
one point (two one-sided tests). With three seeds the 95 % interval reaches 2.5 standard deviations
to each side, so the test detects only differences that are large against their variation over
seeds. The tests are not corrected for their number: about one in twenty comparisons without a true
difference comes out as decided. With one seed nothing is tested: a difference below one point (0.01
for NMI and silhouette) is undecided, and "comparable" can fail but not hold. Counted floats and
handshakes need one run. "Not tuned" names rivals whose settings were not chosen on validation.
"""


def render_claims(exact: Evidence, jpeg: Evidence | None) -> str:
    """Return the section: how many claims hold, and a row for each."""
    earlier: Sequence[Verdict | None] = jpeg.verdicts if jpeg else [None] * len(exact.verdicts)
    pairs = list(zip(exact.verdicts, earlier, strict=True))
    heads = (*HEADS, *(("on JPEG images",) if jpeg else ()))
    rows = [
        [*format_verdict(verdict), *([format_earlier(before)] if before else ())]
        for verdict, before in pairs
    ]
    about = ABOUT.format(counts="\n".join(_list_counts(exact, jpeg)))
    return f"{about}\n{format_markdown_table(heads, rows)}"


def _list_counts(exact: Evidence, jpeg: Evidence | None) -> Iterator[str]:
    """Yield a sentence for each kind of images: how many claims there are of each outcome."""
    for evidence, images in ((exact, "exact pixels"), (jpeg, "JPEG images")):
        if evidence:
            found = Counter(verdict.outcome for verdict in evidence.verdicts)
            several = sum(
                len(each.seeds) > 1 and each.outcome != UNKNOWN for each in evidence.verdicts
            )
            held, failed = found[HOLDS], found[FAILS]
            yield (
                f"On {images}, {held} of {found.total()} claims hold, {failed} do not hold, "
                f"{found[UNDECIDED]} are undecided, and {found[UNKNOWN]} lack runs. {several} of "
                "the verdicts rest on several seeds."
            )


def format_verdict(verdict: Verdict) -> list[str]:
    """Return the cells under `HEADS`; the difference links to its cell."""
    says, paper, difference, *rest = verdict.row
    return [says, paper, link_difference(verdict, difference), *rest]


def link_difference(verdict: Verdict, text: str, suffix: str = "") -> str:
    """Return a difference as a link to its better cell, titled with the cells behind it."""
    if not text:
        return ""
    anchor = make_anchor(verdict.claim.recipe, make_title(verdict.better))
    return f'[{text}](#{anchor} "{describe_difference(verdict)}{suffix}")'


def describe_difference(verdict: Verdict) -> str:
    """Say which cells a difference is of."""
    than = "; ".join(make_title(rival) for rival in verdict.rivals)
    best = "the best of " if len(verdict.rivals) > 1 else ""
    recipe = verdict.claim.than_recipe
    measure = f" [{verdict.claim.measure}]" if verdict.claim.measure else ""
    where = f"{recipe}: " if recipe else ""
    return f"{make_title(verdict.better)} minus {best}{where}{than}{measure}"


def format_earlier(verdict: Verdict) -> str:
    """Return a verdict on the JPEG images in one cell."""
    *_, difference, _, seeds, outcome = verdict.row
    if not difference:
        return outcome
    link = link_difference(verdict, difference, " [JPEG images]")
    return f"{link}, {seeds} seed{'s' if seeds != '1' else ''}: {outcome}"
