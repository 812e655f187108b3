"""Recompute costs and what JPEG images cost in docs/reproduction.md, without the product.

python -I tests/paper/recompute_costs.py docs/reproduction.md
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

PARAMETERS = {
    "ResNet18, 10 classes": (11_181_642, 5_120),
    "ResNet50, 100 classes": (23_705_252, 204_800),
}
"""Trainable parameters, and floats of the anchors."""
MODELS_HELD = {"FedProx": 2, "SCAFFOLD": 2, "FedDyn": 2, "MOON": 3}


class Finding(NamedTuple):
    """A number of the document, and what it should be."""

    kind: str
    where: str
    shown: str
    expected: str


def check_costs(text: str) -> Iterator[Finding]:
    """Floats from the numbers of parameters and anchors."""
    part = text.split("## Tables I, II, III and V: memory and bandwidth\n")[1].split("\n## ")[0]
    (head, rounds), (whole_head, processes), _ = read_tables(part)
    for row in rounds:
        cells = dict(zip(head, row, strict=True))
        for network, (parameters, anchors) in PARAMETERS.items():
            memory, sent = count(row[0], parameters, anchors)
            for what, floats in (("memory", memory), ("bandwidth", sent)):
                shown = cells[f"{network}: {what}"].split(" (")[0]
                yield Finding("floats", row[0], shown, f"{floats / 1e3:,.0f}")
    for row in processes:
        memory, sent = count(row[0], *PARAMETERS["ResNet50, 100 classes"])
        for name, shown in zip(whole_head[1:], row[1:], strict=True):
            clients = int(name.split(" = ")[1].split(":")[0])
            whole = clients * 100 * (memory if name.endswith("memory") else sent) / 1e8
            yield Finding("process", row[0], shown.split(" (")[0], f"{whole:,.0f}")


def check_images(path: Path) -> Iterator[Finding]:
    """Pairs of runs that differ in their images only."""
    text = path.read_text()
    folders = re.findall(r"\[the runs on [\w ]+\]\((\S+)\)", text)
    sides = [read_runs((path.parent / folder).resolve()) for folder in folders]
    pairs: dict[int, list[tuple[float, float]]] = {}
    for config, accuracy in sides[0].values():
        for other, theirs in sides[1].values() if sides[1:] else ():
            if agree(config, other):
                pairs.setdefault(read_training(config)["rounds"], []).append(
                    (100 * accuracy, 100 * theirs)
                )
    said = re.findall(
        r"After (\d+) rounds, (\d+|one) pairs? of runs .*? of (\S+) percent on exact pixels and "
        r"(\S+) on JPEG images: a difference of (\S+) points(?: \(.*?pairs: (\S+)\))?\.",
        text,
    )
    yield Finding("images", "rounds", str(sorted(int(s[0]) for s in said)), str(sorted(pairs)))
    for rounds, *shown in said:
        some = pairs[int(rounds)]
        less = [a - b for a, b in some]
        sides_means = (f"{fmean(pair[n] for pair in some):.2f}" for n in (0, 1))
        means = (*sides_means, f"{fmean(less):+.2f}")
        spread = f"{stdev(less):.2f}" if less[1:] else ""
        expected = [str(len(less)) if less[1:] else "one", *means, spread]
        yield Finding("images", rounds, str(shown), str(expected))


def read_tables(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """The tables of a text: their heads and rows."""
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.M)
    split = [[line.strip()[1:-1].split(" | ") for line in b.splitlines()] for b in blocks]
    clean = [[[c.strip() for c in line] for line in block] for block in split]
    return [(block[0], block[2:]) for block in clean]


def count(method: str, parameters: int, anchors: int) -> tuple[int, int]:
    """Memory and bandwidth of a method."""
    more = anchors if method == "FedFM" else 0
    held = MODELS_HELD.get(method, 1) * parameters + more
    return held, (2 if method == "SCAFFOLD" else 1) * parameters + more


def read_runs(results: Path) -> dict[str, tuple[dict[str, Any], float]]:
    """Config and test accuracy of every run in a folder."""
    lines = map(json.loads, (results / "results.jsonl").read_text().splitlines())
    return {line["folder"]: (line["config"], line["test_accuracy"]) for line in lines}


def read_training(config: dict[str, Any]) -> dict[str, Any]:
    """The section of the training, which was called otherwise once."""
    return config.get("training") or config["protocol"]


def agree(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two configs have the same values wherever both have one, images apart."""
    if one["seed"] != other["seed"] or one["method"].keys() != other["method"].keys():
        return False
    sections = [(one[name], other[name]) for name in ("model", "partition")]
    sections += [(one["method"][name], other["method"][name]) for name in one["method"]]
    sections.append((read_training(one), read_training(other)))
    return all(a[key] == b[key] for a, b in sections for key in a.keys() & b.keys())


def main(path: Path) -> int:
    """Check a document; print what differs, and how much was checked."""
    findings = [*check_costs(path.read_text()), *check_images(path)]
    wrong = [each for each in findings if each.shown != each.expected]
    assert "fedfm" not in sys.modules
    for kind, where, shown, expected in wrong:
        print(f"{kind}, {where}: {shown!r}, recomputed {expected!r}")
    print(json.dumps(Counter(each.kind for each in findings)))
    return len(wrong)


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1])), 1))
