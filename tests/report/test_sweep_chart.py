"""The report of a sweep: a line, a heat map or dots, and a table with the best first."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest

from fedfm.grid.store import Store, read_summary
from fedfm.grid.sweep import PREFIX
from fedfm.report.html.discover import discover_runs
from fedfm.report.html.page import render_page
from fedfm.report.html.sweep import SweptSettings, Tried, draw_sweep, list_sweeps
from fedfm.report.tables.statistics import get_table_metric
from tests.report.runs import write_run


def swept(keys: tuple[str, ...], *tried: tuple[Any, ...]) -> SweptSettings:
    each = [Tried(tuple(map(str, values)), mean, 0.5, 2) for *values, mean in tried]
    return SweptSettings("sweep mine", keys, tuple(sorted(each, key=lambda t: -t.mean)))


def drawn(sweep: SweptSettings) -> Any:
    picture = draw_sweep(sweep, "chart")
    assert picture is not None
    return fromstring(str(picture))


def paths(picture: Any, kind: str) -> list[str]:
    return [each.attrib["d"] for each in picture.iter("path") if each.attrib["class"] == kind]


def texts(picture: Any, kind: str = "") -> list[str]:
    return [str(t.text) for t in picture.iter("text") if kind in t.attrib.get("class", "")]


GRID = swept(("a.mu", "b.lr"), (1, 0.1, 50.0), (1, 0.01, 60.0), (10, 0.1, 70.0), (10, 0.01, 80.0))


def test_two_settings_are_a_heat_map_with_the_best_framed():
    picture = drawn(GRID)
    assert sorted(texts(picture, "count")) == ["50.0", "60.0", "70.0", "80.0"]
    (best,) = paths(picture, "best")
    assert paths(picture, "s6") == [best]
    assert len(paths(picture, "s1")) == 1
    assert {"1", "10", "0.01", "0.1", "a.mu ↓", "b.lr →"} <= set(texts(picture))
    description = str(picture.find("desc").text)
    assert "a.mu 10, b.lr 0.01 with 80.00" in description


def test_where_lower_is_better_the_lowest_is_framed_and_darkest():
    measure = get_table_metric("val_log_loss")
    tried = [
        Tried((a, b), mean, None, 1, measure)
        for a, b, mean in (("1", "x", 0.25), ("1", "y", 1.5), ("2", "x", 2.0), ("2", "y", 0.75))
    ]
    sweep = SweptSettings("sweep mine", ("a", "b"), tuple(sorted(tried, key=lambda t: t.rank)))
    picture = drawn(sweep)
    assert paths(picture, "s6") == paths(picture, "best")
    assert "a 1, b x with 0.2500." in str(picture.find("desc").text)
    assert sorted(texts(picture, "count")) == ["0.250", "0.750", "1.500", "2.000"]


def test_one_setting_with_small_values_is_a_line_with_its_own_scale():
    measure = get_table_metric("val_auc")
    tried = tuple(Tried((str(10 * n),), 0.9 - n / 100, 0.001, 2, measure) for n in range(3))
    picture = drawn(SweptSettings("sweep mine", ("a",), tried))
    ticks = [float(text) for text in texts(picture) if re.fullmatch(r"0\.\d+", text)]
    assert ticks == [0.88, 0.89, 0.9]
    assert "validation auc" in texts(picture, "name")


def test_cells_are_at_the_place_of_their_values():
    corners = {
        float(mean): tuple(map(float, re.findall(r"[\d.]+", path)[:2]))
        for shade in ("s1", "s3", "s5", "s6")
        for mean, path in zip(
            [{"s1": 50, "s3": 60, "s5": 70, "s6": 80}[shade]], paths(drawn(GRID), shade)[:1],
            strict=False,
        )
    }  # fmt: skip
    (x50, y50), (x80, y80) = corners[50.0], corners[80.0]
    assert x50 > x80  # 0.1 is right of 0.01
    assert y50 < y80  # 1 is above 10


def test_one_setting_is_a_line_in_the_order_of_its_values():
    picture = drawn(swept(("lr",), (0.1, 80.0), (0.001, 40.0), (0.01, 60.0)))
    line = paths(picture, "line")[0]
    places = [tuple(map(float, point.split())) for point in line[1:].split("L")]
    x, y = zip(*places, strict=True)
    assert [*x] == sorted(x)
    assert [*y] == sorted(y, reverse=True)
    assert np.isclose(x[1] - x[0], x[2] - x[1], atol=0.2)  # a logarithmic axis


def test_words_are_cells_in_a_row():
    picture = drawn(swept(("method",), ("fedavg", 70.0), ("fedfm", 80.0)))
    assert sorted(texts(picture, "count")) == ["70.0", "80.0"]
    assert "fedfm" in texts(picture)


def test_a_search_over_two_numbers_is_dots():
    rng = np.random.default_rng(0)
    trials = [(10 ** rng.uniform(-3, 0), rng.uniform(0, 1), 50.0 + n) for n in range(12)]
    picture = drawn(swept(("mu", "share"), *trials))
    assert sum(len(paths(picture, f"s{shade}")) for shade in range(1, 7)) == 12
    assert len(paths(picture, "best")) == 1


def test_a_single_trial_can_be_drawn():
    for keys in (("lr",), ("mu", "lr")):
        assert drawn(swept(keys, (*[0.1] * len(keys), 50.0))) is not None


def test_three_settings_have_no_chart():
    assert draw_sweep(swept(("a", "b", "c"), (1, 2, 3, 50.0)), "chart") is None


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Four settings of two seeds, as `fedfm sweep` stores them."""
    folder, summaries = tmp_path / "results", []
    for seed in (0, 1):
        for beta in (0.1, 0.5, 1.0, 5.0):
            run = folder / "runs" / f"{beta}-{seed}"
            write_run(run, seed=seed, kind="niid1", beta=beta)
            cell = {"partition.beta": f"beta = {beta}"}
            known = read_summary(run, folder)
            accuracy = 0.9 - 0.1 * abs(beta - 1) + 0.01 * seed
            recipe = f"{PREFIX}mine: partition.beta"
            summaries.append(replace(known, recipe=recipe, cell=cell, val_accuracy=accuracy))
            text = (run / "summary.json").read_text()
            value = f'"val_accuracy": {accuracy}'
            (run / "summary.json").write_text(re.sub('"val_accuracy": [0-9.e-]+', value, text))
    Store(folder).append(summaries)
    return folder


def test_the_report_shows_a_sweep_with_the_best_first(results):
    (sweep,) = list_sweeps(discover_runs([results]).runs)
    assert sweep["rows"][0] == ("1.0", "2", "90.50 ± 0.71")
    assert [row[0] for row in sweep["rows"]] == ["1.0", "0.5", "0.1", "5.0"]
    page = render_page(discover_runs([results]))
    assert "Sweep over partition.beta" in page
    assert "<strong>90.50 ± 0.71</strong>" in page


def test_runs_that_no_sweep_made_have_no_such_section(tmp_path):
    write_run(tmp_path / "run")
    findings = discover_runs([tmp_path])
    assert list_sweeps(findings.runs) == []
    assert "Sweep over" not in render_page(findings)
