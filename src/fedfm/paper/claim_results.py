"""Render the results of the paper's claims."""

from collections import Counter
from collections.abc import Iterator, Sequence

from fedfm.paper.claims import FAILS, HEADS, HOLDS, UNDECIDED, UNKNOWN, ClaimResult
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


WAITING = """\

### Claims without enough runs

"""


def render_claims(exact: Evidence, jpeg: Evidence | None) -> str:
    """Return the section: how many claims hold, a row for each with runs, and those without."""
    earlier: Sequence[ClaimResult | None] = (
        jpeg.claim_results if jpeg else [None] * len(exact.claim_results)
    )
    heads = (*HEADS, *(("on JPEG images",) if jpeg else ()))
    rows: list[list[str]] = []
    waiting: list[list[str]] = []
    for result, before in zip(exact.claim_results, earlier, strict=True):
        row = [*format_result(result), *([format_earlier(before)] if before else ())]
        judged = {result.outcome, before.outcome if before else UNKNOWN} != {UNKNOWN}
        (rows if judged else waiting).append(row)
    parts = [ABOUT.format(counts="\n".join(_list_counts(exact, jpeg)))]
    parts += [format_markdown_table(heads, rows)] if rows else []
    parts += [WAITING + format_markdown_table(HEADS[:2], [row[:2] for row in waiting])]
    return "\n".join(parts if waiting else parts[:-1])


def _list_counts(exact: Evidence, jpeg: Evidence | None) -> Iterator[str]:
    """Yield a sentence for each kind of images: how many claims there are of each outcome."""
    for evidence, images in ((exact, "exact pixels"), (jpeg, "JPEG images")):
        if evidence:
            counts = Counter(result.outcome for result in evidence.claim_results)
            several = sum(
                len(each.seeds) > 1 and each.outcome != UNKNOWN for each in evidence.claim_results
            )
            held, failed = counts[HOLDS], counts[FAILS]
            yield (
                f"On {images}, {held} of {counts.total()} claims hold, {failed} do not hold, "
                f"{counts[UNDECIDED]} are undecided, and {counts[UNKNOWN]} lack runs. {several} of "
                "the verdicts rest on several seeds."
            )


def format_result(result: ClaimResult) -> list[str]:
    """Return the cells under `HEADS`; the difference links to its cell."""
    says, paper, difference, *rest = result.row
    return [says, paper, link_difference(result, difference), *rest]


def link_difference(result: ClaimResult, text: str, suffix: str = "") -> str:
    """Return a difference as a link to its better cell, titled with the cells behind it."""
    if not text:
        return ""
    anchor = make_anchor(result.claim.recipe, make_title(result.better))
    return f'[{text}](#{anchor} "{describe_difference(result)}{suffix}")'


def describe_difference(result: ClaimResult) -> str:
    """Say which cells a difference is of."""
    than = "; ".join(make_title(rival) for rival in result.rivals)
    best = "the best of " if len(result.rivals) > 1 else ""
    recipe = result.claim.than_recipe
    measure = f" [{result.claim.measure}]" if result.claim.measure else ""
    where = f"{recipe}: " if recipe else ""
    return f"{make_title(result.better)} minus {best}{where}{than}{measure}"


def format_earlier(result: ClaimResult) -> str:
    """Return a verdict on the JPEG images in one cell."""
    *_, difference, _, seeds, outcome = result.row
    if not difference:
        return outcome
    link = link_difference(result, difference, " [JPEG images]")
    return f"{link}, {seeds} seed{'s' if seeds != '1' else ''}: {outcome}"
