"""Recompute cells, claims and discussion of docs/reproduction.md from the runs' files.

    python -I tests/paper/recompute.py docs/reproduction.md

It uses nothing of the product. It reads the document, follows its links to the runs, and prints
every number that differs. Costs and pairs of images: recompute_costs.py.
"""

import json
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

RUN = re.compile(r"\[(JPEG )?(\d+)\]\((\S+?)\)")
TITLED = re.compile(r'\[([^\]]+)\]\(#(\S+) "(.*?)"\)')
DECIMALS = {"NMI": 3, "silhouette": 3, "floats up": 0, "handshakes": 0}
NAMES = {"nmi": "NMI", "floats_up": "floats up"}
LESS_IS_BETTER = ("floats up", "handshakes")
T975, T95 = {1: 12.7062047, 2: 4.3026527}, {1: 6.3137515, 2: 2.9199856}
Row = dict[str, str]


class Document:
    """The document's tables by heading, and the runs that its cells link to."""

    def __init__(self, path: Path) -> None:
        self.path, self.text = path, path.read_text()
        self.parts = dict(re.findall(r"^#+ (.+?)\n(.*?)(?=^#|\Z)", self.text, re.M | re.S))
        self.results: dict[Path, dict[str, Any]] = {}
        self.cells: dict[str, tuple[str, str, Row]] = {}
        """By anchor: the recipe, the cell's title, and its row."""
        for heading, text in self.parts.items():
            recipe = heading.rsplit("`", 2)[1] if heading.endswith("`)") else ""
            for head, rows in read_tables(text):
                for row in rows if head[-1] == "command" else ():
                    axes = head[: next(n for n, h in enumerate(head) if h.startswith("paper"))]
                    anchor = re.match(r'<a id="(.*?)"></a>', row[0])
                    assert anchor, row
                    labels = [re.sub(r"<a.*</a>", "", text).replace("\\", "") for text in row]
                    title = " / ".join(labels[: len(axes)])
                    self.cells[anchor[1]] = recipe, title, dict(zip(head, row, strict=True))
        self.by_title = {(recipe, title): row for recipe, title, row in self.cells.values()}

    def runs(self, row: Row, jpeg: bool) -> dict[int, Path]:
        """The folders of a cell's runs, by seed."""
        found = RUN.findall(row["runs"])
        return {
            int(seed): (self.path.parent / folder).resolve()
            for word, seed, folder in found
            if bool(word) == jpeg
        }

    def stored(self, folder: Path) -> dict[str, Any]:
        """The run's line in results.jsonl with the most measures."""
        results = folder.parents[1]
        if results not in self.results:
            lines = map(json.loads, (results / "results.jsonl").read_text().splitlines())
            known = self.results[results] = {}
            for line in lines:
                if len(line["measures"]) >= len(
                    known.get(line["folder"], {"measures": ()})["measures"]
                ):
                    known[line["folder"]] = line
        return self.results[results][f"runs/{folder.name}"]

    def values(self, row: Row, measure: str, jpeg: bool) -> dict[int, float]:
        """A measure of every run of a cell, by seed."""
        runs = self.runs(row, jpeg)
        return {seed: self.measure(folder, measure) for seed, folder in runs.items()}

    def measure(self, folder: Path, measure: str) -> float:
        """A number of a run, from its rounds."""
        if measure in ("NMI", "silhouette"):
            return self.stored(folder)["measures"][measure.lower()]
        rounds = [json.loads(line) for line in (folder / "rounds.jsonl").open()]
        best = max(rounds, key=lambda r: r["val_accuracy"])
        if measure.endswith("accuracy (%)"):
            return 100 * best[f"{'val' if measure.startswith('val') else 'test'}_accuracy"]
        return sum(r[measure.replace(" ", "_")] for r in rounds)


def read_tables(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """The tables of a text: their heads and rows."""
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.M)
    split = [[line.strip()[1:-1].split(" | ") for line in b.splitlines()] for b in blocks]
    clean = [[[c.strip() for c in line] for line in block] for block in split]
    return [(block[0], block[2:]) for block in clean]


def write(value: float, measure: str, sign: str = "") -> str:
    """A number as the document has it."""
    return f"{value:{sign},.{DECIMALS.get(measure, 2)}f}"


def summarise(values: list[float], measure: str) -> str:
    """Mean and deviation, with the divisor n - 1."""
    if not values:
        return ""
    spread = stdev(values) if values[1:] else 0
    known = values[1:] and (spread or DECIMALS.get(measure, 2))
    return write(fmean(values), measure) + (f" ± {write(spread, measure)}" if known else "")


def number(text: str) -> float:
    """The mean in a cell of a table."""
    return float(text.split(" ±")[0].replace(",", ""))


def first_measure(row: Row) -> str:
    """The measure of a table's first numbers."""
    return next(head for head in row if head.startswith("ours, ")).removeprefix("ours, ")


class Check:
    """Counts numbers, and keeps those that differ."""

    def __init__(self, document: Document) -> None:
        self.document, self.count, self.wrong = document, Counter[str](), list[str]()

    def equal(self, kind: str, where: str, shown: str, expected: str) -> None:
        """Compare a text of the document with the recomputed one."""
        self.count[kind] += 1
        if shown != expected:
            self.wrong.append(f"{kind}, {where}: {shown!r}, recomputed {expected!r}")

    def check_cells(self) -> None:
        """Ours, JPEG's, the difference, and the configs behind them."""
        for recipe, title, row in self.document.cells.values():
            where = f"{recipe} {title}"
            measures = [h.removeprefix("ours, ") for h in row if h.startswith("ours, ")]
            for measure in measures:
                several = f", {measure}" if measures[1:] else ""
                ours = list(self.document.values(row, measure, False).values())
                self.equal(
                    "cell", where, row[f"ours, {measure}"], summarise(ours, measure) or "not run"
                )
                paper = row[f"paper{several}"]
                less = write(fmean(ours) - number(paper), measure, "+") if ours and paper else ""
                self.equal("difference", where, row[f"difference{several}"], less)
                if f"JPEG images{several}" in row:
                    before = list(self.document.values(row, measure, True).values())
                    self.equal(
                        "JPEG", where, row[f"JPEG images{several}"], summarise(before, measure)
                    )
            self.check_configs(where, title, row)

    def check_configs(self, where: str, title: str, row: Row) -> None:
        """The runs have the seeds, the method and the partition that the row names."""
        for jpeg in (False, True):
            for seed, folder in self.document.runs(row, jpeg).items():
                config = tomllib.loads((folder / "config.toml").read_text())
                self.equal("seed", where, str(seed), str(config["seed"]))
                named = row.get("method", "").split(" (")[0].split(",")[0]
                method = re.sub("<.*>", "", named).lower()
                with_matching = {"fedfm"} if "with FM" in title.split(" / ") else set()
                expected = {method} - ({"fedavg"} if with_matching else set()) | with_matching
                if method:
                    self.equal("method", where, str(set(config["method"])), str(expected))
                if row.get("partition", "").endswith(("NIID-1", "NIID-2")):
                    kind = row["partition"][-6:].lower().replace("-", "")
                    self.equal("partition", where, config["partition"]["kind"], kind)

    def parse(self, anchor: str, title: str) -> tuple[Row, list[Row], str, set[str]]:
        """The row of a link, those that it is compared with, the measure, and the marks."""
        recipe, _, row = self.document.cells[anchor]
        marks = set(re.findall(r" \[([^\]]+)\]", title))
        cells = re.sub(r" \[[^\]]+\]", "", title)
        ours, _, than = cells.partition(" minus ")
        assert self.document.by_title[recipe, ours] is row, title
        elsewhere = re.match(r"([\w-]+): ", than)
        names = than.removeprefix("the best of ")
        if elsewhere:
            names = names.removeprefix(elsewhere[0])
        rivals = [
            self.document.by_title[elsewhere[1] if elsewhere else recipe, name]
            for name in names.split("; ")
            if name
        ]
        named = next((NAMES.get(mark, mark) for mark in marks - {"JPEG images", "paper"}), "")
        return row, rivals, named or first_measure(row), marks

    def differences(self, anchor: str, title: str, signed: bool) -> tuple[list[float], str]:
        """The differences seed by seed, and the measure; signed: above 0 is better."""
        row, rivals, measure, marks = self.parse(anchor, title)
        jpeg = "JPEG images" in marks
        sign = -1 if signed and measure in LESS_IS_BETTER else 1
        ours = self.document.values(row, measure, jpeg)
        theirs = [self.document.values(rival, measure, jpeg) for rival in rivals]
        best = max(theirs, key=lambda values: sign * fmean(values.values()))
        return [
            sign * (ours[seed] - best[seed]) for seed in sorted(ours.keys() & best.keys())
        ], measure

    def papers(self, anchor: str, title: str, signed: bool) -> str:
        """The difference of the paper's numbers."""
        row, rivals, measure, _ = self.parse(anchor, title)
        column = "paper" if "paper" in row else f"paper, {measure}"
        sign = -1 if signed and measure in LESS_IS_BETTER else 1
        texts = [each[column if column in each else "paper"] for each in (row, *rivals)]
        if not all(texts):
            return ""
        first, *others = (sign * number(text) for text in texts)
        return write(first - max(others), measure, "+") if others else texts[0].split(" ±")[0]

    def check_claims(self) -> None:
        """Differences, intervals, seeds and verdicts, and how many there are of each."""
        ((head, rows),) = read_tables(self.document.parts["Which claims hold"])
        without = read_tables(self.document.parts.get("Claims without enough runs", ""))
        waiting = {"not enough runs": sum(len(claims) for _, claims in without)}
        found = {False: Counter(waiting)}
        found[True] = Counter(waiting if "on JPEG images" in head else {})
        for cells in rows:
            row = dict(zip(head, cells, strict=True))
            for jpeg in (False, True) if "on JPEG images" in row else (False,):
                text = row["on JPEG images"] if jpeg else row["our difference"]
                verdict = text.split(": ")[-1] if jpeg else row["verdict"]
                if link := TITLED.search(text):
                    verdict = text[link.end() :].split(": ", 1)[1] if jpeg else verdict
                    self.check_claim(row, link, verdict, jpeg)
                found[jpeg][re.sub(r" \(.*", "", verdict)] += 1
        for jpeg, words in ((False, "exact pixels"), (True, "JPEG images")):
            n = found[jpeg]
            expected = (
                f"On {words}, {n['holds']} of {n.total()} claims hold, {n['**does not hold**']} do "
                f"not hold, {n['undecided']} are undecided, and {n['not enough runs']} lack runs."
            )
            if n:
                shown = expected if expected in self.document.text else "another sentence"
                self.equal("count", words, shown, expected)

    def check_claim(self, row: Row, link: re.Match[str], verdict: str, jpeg: bool) -> None:
        """One verdict."""
        shown, anchor, title = link.groups()
        values, measure = self.differences(anchor, title, signed=True)
        self.equal("claim", title, shown, self.write_difference(values, measure))
        self.equal("paper", title, row["paper's difference"], self.papers(anchor, title, True))
        seeds = re.search(r"\), (\d+) seed", row["on JPEG images"]) if jpeg else None
        self.equal("seeds", title, seeds[1] if seeds else row["seeds"], str(len(values)))
        comparable = "comparable" in row["claim"]
        limit = compute_point(measure) if comparable or "a point worse" in row["claim"] else 0.0
        outcome = judge(values, measure, limit, comparable)
        self.equal("verdict", title, re.sub(r" \(.*", "", verdict), outcome)
        if not jpeg:
            low, high = interval(values, measure, T975)
            several = len(values) > 1 and DECIMALS.get(measure, 2)
            ends = f"{write(low, measure, '+')} to {write(high, measure, '+')}" if several else ""
            self.equal("interval", title, row["95 % interval"], ends)

    def write_difference(self, values: list[float], measure: str) -> str:
        """A mean difference with its deviation."""
        spread = stdev(values) if values[1:] else 0
        known = values[1:] and (spread or DECIMALS.get(measure, 2))
        return write(fmean(values), measure, "+") + (
            f" ± {write(spread, measure)}" if known else ""
        )

    def check_discussion(self) -> None:
        """Every number that links to a cell."""
        text = self.document.text.split("## Discussion\n")[1].split("\n## ")[0]
        for shown, anchor, title in TITLED.findall(text):
            row, rivals, measure, marks = self.parse(anchor, title)
            ours = self.document.values(row, measure, "JPEG images" in marks)
            if "paper" in marks:
                expected = self.papers(anchor, title, False)
            elif shown.endswith(("seed", "seeds")):
                count = len(self.differences(anchor, title, False)[0]) if rivals else len(ours)
                expected = f"{count} seed{'s' if count > 1 else ''}"
            elif rivals:
                values, _ = self.differences(anchor, title, False)
                expected = write(fmean(values), measure, "+")
            else:
                expected = summarise(list(ours.values()), measure)
            self.equal("discussion", title, shown, expected)


def compute_point(measure: str) -> float:
    """One point of percents, 0.01 of shares, nothing of counts."""
    return {3: 0.01, 0: 0.0}.get(DECIMALS.get(measure, 2), 1.0)


def interval(values: list[float], measure: str, quantiles: dict[int, float]) -> tuple[float, float]:
    """Student's interval of paired differences; a point to each side of a single one."""
    if len(values) == 1 or not DECIMALS.get(measure, 2):
        half = compute_point(measure)
    else:
        half = quantiles[len(values) - 1] * stdev(values) / len(values) ** 0.5
    return fmean(values) - half, fmean(values) + half


def judge(values: list[float], measure: str, limit: float, comparable: bool) -> str:
    """The verdict on a claim."""
    low, high = interval(values, measure, T95 if comparable else T975)
    if comparable:
        if len(values) > 1 and -limit < low and high < limit:
            return "holds"
        return "**does not hold**" if low >= limit or high <= -limit else "undecided"
    if low >= -limit and high > -limit:
        return "holds"
    return "**does not hold**" if high <= -limit and low < -limit else "undecided"


def main(path: Path) -> int:
    """Check a document; print what differs, and how much was checked."""
    check = Check(Document(path))
    for part in ("cells", "claims", "discussion"):
        getattr(check, f"check_{part}")()
    assert "fedfm" not in sys.modules
    print("\n".join(check.wrong))
    print(json.dumps(check.count))
    return len(check.wrong)


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1])), 1))
