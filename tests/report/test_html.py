import base64
import hashlib
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

from fedfm import FedAvg, Training, data, models, simulate
from fedfm.config import load_config, parse
from fedfm.core.errors import UserError
from fedfm.grid.store import FORMAT, Store, Summary
from fedfm.report.html import tables
from fedfm.report.html.discover import Discovery, discover_runs
from fedfm.report.html.group import POINTS, group_by_setting
from fedfm.report.html.page import render_page, write_report
from fedfm.report.html.svg import Scale
from tests.report.runs import write_run

VOID = {"meta", "input", "img", "br"}
PICTURE = b"\x89PNG invented"


@dataclass
class Node:
    """An element of a page."""

    tag: str
    attributes: dict[str, str]
    children: "list[Node | str]" = field(default_factory=list)

    def every(self, tag: str, **attributes: str) -> "list[Node]":
        return [node for node in self.walk() if node.tag == tag and node.has(attributes)]

    def walk(self) -> "Iterator[Node]":
        yield self
        for child in self.children:
            if isinstance(child, Node):
                yield from child.walk()

    def has(self, attributes: dict[str, str]) -> bool:
        wanted = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
        return all(self.attributes.get(key) == value for key, value in wanted.items())

    @property
    def text(self) -> str:
        parts = (child if isinstance(child, str) else child.text for child in self.children)
        return " ".join("".join(parts).split())


class Page(HTMLParser):
    """A page as a tree; an end that closes nothing, or something else, is a mistake."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.root = Node("root", {})
        self.open = [self.root]
        self.feed(source)
        assert self.open == [self.root]

    def handle_starttag(self, tag, attrs):
        node = Node(tag, {key: value or "" for key, value in attrs})
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag, attrs):
        self.open[-1].children.append(Node(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop().tag == tag

    def handle_data(self, data):
        self.open[-1].children.append(data)


def page_of(*places: Path, title: str | None = None) -> Node:
    return Page(render_page(discover_runs(places), title)).root


def rows(page: Node) -> list[list[str]]:
    """The first table's cells."""
    body = page.every("table", class_="sortable")[0].every("tbody")[0]
    return [[c.text for c in row.walk() if c.tag in ("th", "td")] for row in body.every("tr")]


def change(folder: Path, **changes: object) -> None:
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture
def runs(tmp_path) -> Path:
    """Two methods, three seeds."""
    for method in ("fedavg", "fedfm"):
        for seed in range(3):
            write_run(tmp_path / "runs" / f"{method}-{seed}", method, seed)
    return tmp_path / "runs"


# --- content --------------------------------------------------------------------------------------


def test_the_table_holds_the_numbers_of_the_runs(runs):
    row_of = {row[0]: row for row in rows(page_of(runs))}
    assert list(row_of) == ["fedavg", "fedfm"]
    for method, row in row_of.items():
        summaries = [summary(runs / f"{method}-{seed}") for seed in range(3)]
        accuracies = 100 * np.array([each["test_accuracy"] for each in summaries])
        assert row[1] == "3"
        assert row[2] == f"{accuracies.mean():.2f} ± {accuracies.std(ddof=1):.2f}"
        assert row[4] == f"{summaries[0]['totals']['floats_up']:,}"
        assert row[6] == "4.386 MB"
        assert row[8:] == ["8", "0.8"]


def test_the_headline_tells_what_was_run_and_which_method_is_best(runs):
    change(runs / "fedavg-0", test_accuracy=0.999)
    page = page_of(runs)
    assert page.every("title")[0].text == page.every("h1")[0].text == "Federated learning on digits"
    assert "2 methods, 6 runs over 3 seeds, finished" in page.every("p", class_="lead")[0].text
    tile = page.every("ul", class_="tiles")[0].every("li")[0].text
    best = max(rows(page), key=lambda row: float(row[2].split()[0]))
    assert best[0] in tile
    assert best[2] in tile


def test_the_sections_come_in_their_order(runs):
    (runs / "fedfm-0" / "profile.json").write_text('{"training": 3.0, "evaluation": 1.0}')
    (runs / "features.png").write_bytes(PICTURE)
    heads = [node.text for node in page_of(runs).walk() if node.tag in ("h2", "h3")]
    assert heads == [
        "digits, cnn, niid3 (missing 8), 10 clients, 8 rounds",
        "Accuracy over rounds",
        "Accuracy against bytes sent",
        "Results",
        "Cost of a round",
        "Clients",
        "Partition",
        "Feature space",
        "Where the time went",
        "Machine and versions",
        "Configs",
    ]


def test_the_numbers_behind_a_chart_are_means_and_ranges_over_seeds(runs):
    chart = page_of(runs).every("figure", id="s0-rounds")[0].every("script")[0]
    line = json.loads(chart.text)["lines"][1]
    files = [(runs / f"fedfm-{seed}" / "rounds.jsonl").read_text() for seed in range(3)]
    lines = [[json.loads(each)["test_accuracy"] for each in file.splitlines()] for file in files]
    accuracies = 100 * np.array(lines)
    assert line["label"] == "fedfm"
    assert line["x"] == list(range(1, 9))
    np.testing.assert_allclose(line["y"], accuracies.mean(0), rtol=1e-4)
    np.testing.assert_allclose(line["low"], accuracies.min(0), rtol=1e-4)
    np.testing.assert_allclose(line["high"], accuracies.max(0), rtol=1e-4)


def test_bytes_are_counted_up_and_down_from_the_first_round_on(runs):
    chart = page_of(runs).every("figure", id="s0-bytes")[0]
    numbers = json.loads(chart.every("script")[0].text)
    assert numbers["label"] == "MB"
    sent = 2 * 548_240 / 1e6 * np.arange(1, 9)
    np.testing.assert_allclose(numbers["lines"][0]["x"], sent, rtol=1e-4)
    assert [scale["log"] for scale in numbers["x"]] == [False, True]
    assert len(chart.every("svg", class_="chart")) == 2


def test_every_chart_has_a_text_alternative_and_unique_names(runs):
    page = page_of(runs)
    charts = page.every("svg", role="img")
    assert len(charts) == 5
    for chart in charts:
        title, described = chart.attributes["aria-labelledby"].split()
        assert chart.every("title", id=title)[0].text
        assert chart.every("desc", id=described)[0].text
    names = [node.attributes["id"] for node in page.walk() if "id" in node.attributes]
    assert len(names) == len(set(names))


def test_dots_and_cells_show_clients_and_their_samples(runs):
    page = page_of(runs)
    dots = page.every("svg", class_="dots")[0].every("path", class_="dot")
    assert [dot.attributes["d"].count("h0") for dot in dots] == [30, 30]
    counts = page.every("svg", class_="cells")[0].every("text")
    numbers = [text.text for text in counts if "count" in text.attributes["class"]]
    assert len(numbers) == 100
    assert numbers.count("·") == 80
    assert sum(int(number) for number in numbers if number != "·") <= 1438


def test_a_config_can_be_run_again(runs):
    configs = page_of(runs).every("details", class_="config")
    text = configs[1].every("pre")[0].children[0]
    assert isinstance(text, str)
    assert parse(tomllib.loads(text)) == load_config(str(runs / "fedfm-0" / "config.toml"))
    assert "in fedfm-2" in configs[1].text


def test_the_command_of_a_config_names_a_file_for_methods_of_ones_own(runs):
    written = tomllib.loads((runs / "fedfm-0" / "config.toml").read_text())
    written |= {"method": {"mine": {}}, "code": {"mine": "0123456789ab"}}
    folder = write_run(runs / "own")
    (folder / "config.toml").write_text(tomli_w.dumps(written))
    change(folder, method="mine")
    configs = page_of(runs).every("details", class_="config")
    commands = [config.every("code", class_="command")[0].text for config in configs]
    assert commands == [*["fedfm run my.toml"] * 2, "fedfm --methods FILE run my.toml"]
    assert "your own mine as FILE" in configs[2].text


def test_profile_and_pictures_are_shown(runs):
    (runs / "fedfm-0" / "profile.json").write_text('{"evaluation": 1.0, "training": 3.0}')
    (runs / "fedfm-0" / "features.png").write_bytes(PICTURE)
    page = page_of(runs)
    phases = page.every("svg", class_="bar")[0].every("text")
    assert [phase.text for phase in phases] == ["training 3.00 s, 75 %", "evaluation 1.00 s, 25 %"]
    source = page.every("img")[0].attributes["src"]
    assert base64.b64decode(source.removeprefix("data:image/png;base64,")) == PICTURE


# --- safety ---------------------------------------------------------------------------------------


def test_nothing_from_a_file_becomes_markup(runs):
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'"
    change(runs / "fedfm-0", method=evil, versions={evil: evil})
    (runs / "fedfm-1" / "profile.json").write_text(json.dumps({evil: 1.0}))
    page = page_of(runs, title=evil)
    assert page.every("h1")[0].text == evil
    assert evil in [row[0] for row in rows(page)]
    assert page.every("img") == []
    kinds = [script.attributes.get("type") for script in page.every("script")]
    assert kinds == ["application/json"] * 2 + [None]
    assert not any(key.startswith("on") for node in page.walk() for key in node.attributes)


def test_only_the_own_script_and_style_may_run(runs):
    page = page_of(runs)
    policy = page.every("meta", http_equiv="Content-Security-Policy")[0].attributes["content"]
    for element in (page.every("script")[-1], page.every("style")[0]):
        content = "".join(child for child in element.children if isinstance(child, str))
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{element.tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert not any("style" in node.attributes for node in page.walk())


def test_the_page_names_no_other_file(runs):
    source = render_page(discover_runs([runs]))
    assert not re.search(r"(src|href)=\"(?!data:|#)", source)
    assert "@import" not in source
    assert not re.search(r"url\(", source)
    assert set(re.findall(r"https?://[^\"]*", source)) == {"http://www.w3.org/2000/svg"}


# --- what is left out -----------------------------------------------------------------------------


def left_out(findings: Discovery) -> dict[str, str]:
    return {Path(each.what).name: each.why for each in findings.left_out}


def test_what_is_not_whole_is_named_and_the_rest_is_shown(runs):
    (runs / "fedavg-0" / "summary.json").unlink()
    (runs / "fedavg-1" / "rounds.jsonl").write_text("")
    (runs / "fedavg-2" / "summary.json").write_text("{")
    (runs / "fedfm-0" / "config.toml").write_text("data = 3")
    change(runs / "fedfm-1", totals={"everything": 3})
    why = left_out(discover_runs([runs]))
    assert list(why) == ["fedavg-0", "fedavg-1", "fedavg-2", "fedfm-0", "fedfm-1"]
    assert why["fedavg-0"] == "not finished: it has no summary.json"
    assert "0 of 8 rounds are there" in why["fedavg-1"]
    assert "cannot be read" in why["fedavg-2"]
    assert "[data] of the config is no table" in why["fedfm-0"]
    assert "another version of fedfm may have written it" in why["fedfm-1"]
    page = page_of(runs)
    assert [row[:2] for row in rows(page)] == [["fedfm", "1"]]
    note = page.every("details", id="left-out")[0].text
    assert all(name in note for name in why)


@pytest.mark.parametrize("accuracy", [float("nan"), "high", None])
def test_a_number_that_is_none_leaves_its_run_out(runs, accuracy):
    change(runs / "fedfm-1", test_accuracy=accuracy)
    assert list(left_out(discover_runs([runs]))) == ["fedfm-1"]


@pytest.mark.parametrize("content", ["{", "[1]", '{"training": "long"}'])
def test_a_run_is_shown_without_a_profile_that_cannot_be_read(runs, content):
    for name in ("profile.json", "machine.json"):
        (runs / "fedfm-0" / name).write_text(content)
    assert discover_runs([runs]).left_out == []
    assert page_of(runs).every("svg", class_="bar") == []


def test_half_a_character_spoils_no_page(runs, tmp_path):
    change(runs / "fedfm-0", method="half \ud800")
    assert "half ?" in write_report([runs], tmp_path / "report.html").path.read_text()


def test_a_copy_of_a_run_counts_once(runs):
    write_run(runs / "copy", "fedfm", 1)
    findings = discover_runs([runs, runs])
    assert len(findings.runs) == 6
    assert left_out(findings)["fedfm-1"].endswith("copy")
    change(runs / "copy", test_accuracy=0.125)
    reason = left_out(discover_runs([runs]))["fedfm-1"]
    assert "the same config and seed as" in reason
    assert reason.endswith("% instead of 12.50%")


def test_a_deployment_stands_beside_its_simulation(runs, tmp_path):
    write_run(runs / "server", "fedfm", 1)
    (runs / "server" / "members.json").write_text("{}")
    findings = discover_runs([runs])
    assert findings.left_out == []
    assert {run.method for run in findings.runs} >= {"fedfm", "fedfm (deployed)"}
    (setting,) = group_by_setting(findings.runs)
    simulated, deployed = (
        next(entry for entry in setting.entries if entry.label == label)
        for label in ("fedfm", "fedfm (deployed)")
    )
    assert [run.seed for run in deployed.runs] == [1]
    assert deployed.number == simulated.number + 1
    page = write_report([runs], tmp_path / "report.html").path.read_text()
    assert "fedfm (deployed)" in page


def test_a_deployment_with_the_clients_own_data_stands_apart(runs):
    """What the config names is not what they had."""
    write_run(runs / "server", "fedfm", 1)
    (runs / "server" / "members.json").write_text('{"own_data": true}')
    simulated, deployed = group_by_setting(discover_runs([runs]).runs)
    assert deployed.title == "clients' own data, cnn, as they are, 10 clients, 8 rounds"
    assert [entry.label for entry in deployed.entries] == ["fedfm (deployed)"]
    assert "fedfm (deployed)" not in {entry.label for entry in simulated.entries}
    last = page_of(runs).every("section", id="s1")[0]
    assert "The clients brought their own data, and only they know how many." in last.text
    assert last.every("svg", class_="cells") == []


@pytest.mark.filterwarnings("error")
def test_accuracies_that_are_all_alike_are_drawn(tmp_path):
    folder = write_run(tmp_path / "run")
    path = folder / "rounds.jsonl"
    lines = [json.loads(line) | {"test_accuracy": 1.0} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    change(folder, test_accuracy=1.0)
    drawn = page_of(folder).every("path", class_="line")
    assert drawn
    assert not any("nan" in line.attributes["d"] for line in drawn)


def test_no_run_at_all_is_an_error_that_says_why(tmp_path, runs):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"/empty.*`fedfm run`"):
        discover_runs([tmp_path / "empty"])
    with pytest.raises(UserError, match=r"/nowhere$"):
        discover_runs([tmp_path / "nowhere"])
    (runs / "fedfm-0" / "summary.json").unlink()
    with pytest.raises(UserError, match=r"fedfm-0:.*summary\.json"):
        discover_runs([runs / "fedfm-0"])


# --- result folders -------------------------------------------------------------------------------


def line(seed: int = 0, quick: bool = True, **changes: object) -> Summary:
    totals = dict.fromkeys(("floats_up", "floats_down", "bytes_up", "bytes_down"), 1000.0)
    given: dict[str, Any] = {
        "config": load_config("digits").as_toml(),
        "seed": seed,
        "method": "fedfm",
        "best_round": 3,
        "val_accuracy": 0.9,
        "test_accuracy": 0.91,
        "rounds": 30,
        "totals": totals | {"handshakes": 30.0, "seconds": 2.0},
        "folder": f"runs/x-{seed}",
        "quick": quick,
        "finished": "2026-11-01T12:30:00Z",
    }
    return Summary(**given | changes)


def test_results_without_their_folders_are_in_the_tables(tmp_path):
    store = Store(tmp_path)
    store.append([line(0), line(1, test_accuracy=0.93), line(1, recipe="other")])
    page = page_of(tmp_path)
    assert rows(page)[0][:4] == ["fedfm", "2", "92.00 ± 1.41", "3"]
    assert page.every("figure", class_="plot") == []
    assert "No curves" in page.every("section")[0].text
    assert "on 2026-11-01 12:30 UTC" in page.every("p", class_="lead")[0].text


def test_quick_runs_are_marked(tmp_path):
    Store(tmp_path).append([line(0), line(1, quick=False)])
    assert "1 of 2 runs are of reduced size" in page_of(tmp_path).every("p", role="note")[0].text


def test_a_run_and_its_line_are_one(tmp_path):
    folder = write_run(tmp_path / "runs" / "x-0")
    config = load_config(str(folder / "config.toml")).as_toml()
    Store(tmp_path).append([line(0, config=config)])
    findings = discover_runs([tmp_path])
    assert len(findings.runs) == 1
    assert len(findings.runs[0].accuracy) == 8
    assert findings.quick == {findings.runs[0].identity}
    assert findings.left_out == []


def test_lines_of_another_version_are_named(tmp_path):
    Store(tmp_path).append([line(0)])
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write(json.dumps(asdict(line(1)) | {"format": FORMAT + 1}) + "\n")
        file.write(json.dumps(asdict(line(2, totals={}))) + "\n")
    findings = discover_runs([tmp_path / "results.jsonl"])
    assert [run.seed for run in findings.runs] == [0]
    assert "2 of its lines cannot be read, or another" in left_out(findings)["results.jsonl"]


# --- few and many ---------------------------------------------------------------------------------


def test_a_single_run_of_a_single_round_has_no_deviation(tmp_path):
    folder = write_run(tmp_path / "one", rounds=1)
    page = page_of(folder)
    assert rows(page)[0][2] == f"{100 * summary(folder)['test_accuracy']:.2f}"
    assert "1 method, 1 run over 1 seed" in page.every("p", class_="lead")[0].text
    assert page.every("path", class_="band") == []


def test_settings_are_apart_and_variants_of_a_method_are_named(tmp_path):
    for missing in (1, 8):
        write_run(tmp_path / f"{missing}", missing=missing)
    weak = write_run(tmp_path / "weak", missing=8)
    config = load_config("digits", ["rounds=8", "fedfm.strength=1"]).as_toml()
    (weak / "config.toml").write_text(tomli_w.dumps(config))
    second, first = group_by_setting(discover_runs([tmp_path]).runs)
    assert first.title == "digits, cnn, niid3 (missing 1), 10 clients, 8 rounds"
    assert [entry.label for entry in first.entries] == ["fedfm"]
    assert {entry.label for entry in second.entries} == {"fedfm (strength=5)", "fedfm (strength=1)"}
    assert len(page_of(tmp_path).every("nav")[0].every("a")) == 2


def test_methods_of_ones_own_stand_beside_others(tmp_path):
    """Whatever file they are in, and though nobody names that file now."""
    write_run(tmp_path / "known")
    config = load_config("digits", ["rounds=8"]).as_toml()
    mine = {"method": {"mine": {}}, "code": {"mine": "0123456789ab"}}
    folder = write_run(tmp_path / "own")
    (folder / "config.toml").write_text(tomli_w.dumps(config | mine))
    change(folder, method="mine")
    (setting,) = group_by_setting(discover_runs([tmp_path]).runs)
    assert [entry.label for entry in setting.entries] == ["fedfm", "mine"]
    assert "unknown method" not in page_of(folder).text
    (folder / "config.toml").write_text(tomli_w.dumps(config | {"code": {"model.cnn": "ab"}}))
    assert len(group_by_setting(discover_runs([tmp_path]).runs)) == 2


def test_methods_have_the_labels_of_their_recipe(tmp_path):
    for rate in (0.03, 0.1):
        folder = write_run(tmp_path / "runs" / f"{rate}")
        config = load_config("digits", ["rounds=8", f"lr={rate}", "partition.kind=niid3"]).as_toml()
        (folder / "config.toml").write_text(tomli_w.dumps(config))
        cell = {"variant": f"FedFM, rate {rate:g}", "partition": "NIID-3"}
        Store(tmp_path).append([line(0, config=config, recipe="mine", cell=cell, quick=False)])
    write_run(tmp_path / "runs" / "by-hand", "fedavg")
    (setting,) = group_by_setting(discover_runs([tmp_path]).runs)
    labels = [entry.label for entry in setting.entries]
    assert labels == ["fedavg", "FedFM, rate 0.03", "FedFM, rate 0.1"]


def test_a_label_that_two_configs_share_also_says_how_they_differ(tmp_path):
    for n, rate in enumerate((0.03, 0.1)):
        config = load_config("digits", ["rounds=8", f"lr={rate}"]).as_toml()
        Store(tmp_path).append([line(n, config=config, recipe="main", cell={"method": "FedFM"})])
    (setting,) = group_by_setting(discover_runs([tmp_path]).runs)
    assert [entry.label for entry in setting.entries] == ["FedFM (lr=0.03)", "FedFM (lr=0.1)"]


def test_long_runs_of_many_methods_come_first(tmp_path):
    for name, rounds, missing in (("a", 3, 1), ("b", 8, 1), ("c", 8, 8), ("d", 8, 8)):
        method = "fedavg" if name == "d" else "fedfm"
        write_run(tmp_path / name, method, rounds=rounds, missing=missing)
    titles = [setting.title for setting in group_by_setting(discover_runs([tmp_path]).runs)]
    assert [title.split(", ")[2::2] for title in titles] == [
        ["niid3 (missing 8)", "8 rounds"],
        ["niid3 (missing 1)", "8 rounds"],
        ["niid3 (missing 1)", "3 rounds"],
    ]


def test_what_most_variants_have_is_not_in_their_names(tmp_path):
    for n, change in enumerate(("strength=1", "anchors=uniform", "guide=l2")):
        folder = write_run(tmp_path / f"{n}")
        config = load_config("digits", ["rounds=8", f"fedfm.{change}"]).as_toml()
        (folder / "config.toml").write_text(tomli_w.dumps(config))
    write_run(tmp_path / "plain")
    (setting,) = group_by_setting(discover_runs([tmp_path]).runs)
    assert {entry.label for entry in setting.entries} == {
        "fedfm", "fedfm (strength=1)", "fedfm (anchors=uniform)", "fedfm (guide=l2)",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("counts", "expected"), [(0.2, [0.3, 0.3, 0.2, 0.2]), (0.4, [0.3, 0.1, 0.2, 0.4])]
)
def test_a_model_costs_what_was_sent_until_its_round(tmp_path, counts, expected):
    """Chosen by validation, the third round counts; where the last counts, every round is one."""
    folder = write_run(tmp_path / "run", rounds=4)
    accuracies = zip((0.5, 0.4, 0.6, 0.5), (0.3, 0.1, 0.2, 0.4), strict=True)
    path = folder / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    changed = [
        line | {"val_accuracy": validation, "test_accuracy": test}
        for line, (validation, test) in zip(lines, accuracies, strict=True)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in changed))
    change(folder, test_accuracy=counts)
    (run,) = discover_runs([folder]).runs
    assert run.best_so_far.tolist() == expected
    (setting,) = group_by_setting([run])
    assert tables.find_common_accuracy(setting) == pytest.approx(100 * max(expected))


def test_files_of_ones_own_name_the_data(tmp_path):
    folder = write_run(tmp_path / "run")
    changes = {"data": {"name": "folder", "path": "data/retina.tar.xz"}}
    config = load_config("digits", ["rounds=8"]).as_toml() | changes
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    assert page_of(folder).every("h1")[0].text == "Federated learning on retina"


def test_long_curves_are_thinned_and_keep_their_ends(tmp_path):
    (setting,) = group_by_setting(discover_runs([write_run(tmp_path / "long", rounds=2000)]).runs)
    curve = setting.entries[0].curve
    assert curve is not None
    assert len(curve.rounds) == POINTS
    assert (curve.rounds[0], curve.rounds[-1]) == (1, 2000)


def test_a_run_from_python_is_shown_and_its_seeds_belong_together(tmp_path):
    digits = data.load("digits")
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = models.build("mlp", shape=digits.shape, classes=10, hidden=[8])
        training = Training(clients=2, rounds=1, epochs=1)
        simulate(model, digits, FedAvg(), training=training, seed=seed, out=tmp_path / f"{seed}")
    page = page_of(tmp_path)
    assert [row[:2] for row in rows(page)] == [["fedavg", "2"]]
    assert "the run was given its data in Python" in page.every("section")[0].text
    (config,) = page.every("details", class_="config")
    assert config.every("code", class_="command") == []


def test_data_that_are_not_at_hand_leave_a_note(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDFM_DATA", str(tmp_path / "data"))
    folder = write_run(tmp_path / "run")
    config = load_config("digits", ["data.name=cifar10"]).as_toml()
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    page = page_of(folder)
    assert page.every("svg", class_="cells") == []
    assert "The partition is not drawn" in page.every("section")[0].text


@pytest.mark.parametrize(("low", "high", "log"), [(0, 1, False), (3, 7, False), (0.5, 900, True)])
def test_ticks_are_round_and_on_the_scale(low, high, log):
    scale = Scale(low, high, 10, 110, log)
    assert 2 <= len(scale.ticks) <= 9
    assert all(low <= tick <= high for tick, _ in scale.ticks)
    np.testing.assert_allclose(scale([low, high]), [10, 110])


def test_a_report_is_written_whole_into_a_new_folder(runs, tmp_path):
    written = write_report([runs], tmp_path / "new" / "report.html", "Mine")
    assert written.runs == 6
    source = written.path.read_text()
    assert source.startswith("<!doctype html>")
    assert Page(source).root.every("h1")[0].text == "Mine"
    assert [each.name for each in written.path.parent.iterdir()] == ["report.html"]


# --- further metrics ------------------------------------------------------------------------------


def add_metrics(folder: Path) -> None:
    """Give a run further metrics, and results of clients."""
    path = folder / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        values = {"macro_f1": line["test_accuracy"] / 2, "log_loss": 2.5, "own": 7.0}
        line["metrics"] = {"val": values, "test": values}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    matrix = [[3, 1, 0], [0, 4, 0], [2, 0, 2]]
    by_class = {"class_f1": [0.75, 0.5, None], "confusion": matrix}
    over = {"clients": 2, "mean": 0.5, "deviation": 0.1, "worst": 0.4, "p10": 0.42}
    values = {"accuracy": [0.4, 0.6, None]}
    change(
        folder,
        metrics={"val": values, "test": {"macro_f1": 0.25, "log_loss": 2.5, "own": 7.0} | by_class},
        clients={"split": "test", "accuracy": over, "values": values},
        fine_tuned={"split": "test", "accuracy": over | {"mean": 0.9}, "values": values},
    )


@pytest.fixture
def measured(runs) -> Path:
    for folder in runs.iterdir():
        add_metrics(folder)
    return runs


def test_further_metrics_have_charts_and_columns(measured):
    page = page_of(measured)
    headings = [each.text for each in page.every("h3")]
    for heading in ("Macro f1 over rounds", "Log loss over rounds", "Own over rounds"):
        assert heading in headings
    heads = [each.text for each in page.every("table", class_="sortable")[0].every("th")]
    assert [h for h in heads if h.startswith("test ")][1:] == [
        "test macro f1, %", "test log loss", "test own",
    ]  # fmt: skip
    assert rows(page)[0][-3:] == ["25.00 ± 0.00", "2.5000 ± 0.0000", "7.0000 ± 0.0000"]
    (figure,) = [each for each in page.every("figure") if each.has({"id": "s0-test_log_loss"})]
    numbers = json.loads(figure.every("script")[0].text)
    assert numbers["percent"] is False
    assert numbers["lines"][0]["y"] == [2.5] * 8


def test_clients_and_classes_have_tables_and_the_matrix_a_picture(measured):
    page = page_of(measured)
    tables_by_head = {
        tuple(each.text for each in table.every("th", scope="col")): table
        for table in page.every("table", class_="sortable")
    }
    (clients,) = [heads for heads in tables_by_head if "worst client, %" in heads]
    assert clients[1:5] == (
        "mean over clients, %",
        "deviation over clients, %",
        "worst client, %",
        "10th percentile of clients, %",
    )
    assert [each.text for each in tables_by_head[clients].every("td")][2] == "40.00 ± 0.00"
    (classes,) = [heads for heads in tables_by_head if len(heads) == 4 and "0" in heads]
    assert [each.text for each in tables_by_head[classes].every("td")][:3] == ["0.750", "0.500", ""]
    titles = [each.text for each in page.every("title")]
    assert titles.count("Confusion") == 2
    assert "Test accuracy of clients" in titles


def test_clients_that_the_data_name_have_a_table(measured):
    for folder in measured.iterdir():
        summary = json.loads((folder / "summary.json").read_text())
        values = [0.4, 0.5, 0.6]
        summary["clients"]["values"]["accuracy"] = values
        (folder / "summary.json").write_text(json.dumps(summary))
        names = [f"<b>{k}</b>" for k in range(len(values))]
        (folder / "data.json").write_text(json.dumps({"clients": names}))
    page = page_of(measured)
    tables = page.every("table", class_="sortable")
    heads = [[each.text for each in table.every("th", scope="col")] for table in tables]
    place = heads.index(["method", *names])
    first = next(each.text for each in tables[place].every("td"))
    assert first == "40.00 ± 0.00"


def test_a_metric_without_a_value_in_a_round_has_no_chart(measured):
    for folder in measured.iterdir():
        path = folder / "rounds.jsonl"
        first, *rest = path.read_text().splitlines()
        line = json.loads(first)
        line["metrics"]["test"]["log_loss"] = None
        path.write_text("\n".join([json.dumps(line), *rest]) + "\n")
    headings = [each.text for each in page_of(measured).every("h3")]
    assert "Log loss over rounds" not in headings
    assert "Macro f1 over rounds" in headings


def test_a_run_without_validation_is_shown(runs):
    for folder in runs.iterdir():
        path = folder / "rounds.jsonl"
        lines = [
            json.loads(line) | {"val_accuracy": None} for line in path.read_text().splitlines()
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        change(
            folder,
            val_accuracy=None,
            client_accuracies=[],
            test_accuracy=lines[-1]["test_accuracy"],
        )
    discovered = discover_runs([runs])
    assert not discovered.left_out
    assert discovered.runs[0].best_so_far.tolist() == discovered.runs[0].accuracy.tolist()
    assert not page_of(runs).every("svg", class_="dots")
