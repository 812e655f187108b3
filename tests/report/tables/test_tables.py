import csv
import io
import json
import logging
import math
import re
from dataclasses import replace
from typing import Any

import pytest
import scipy

from fedfm.config import parse
from fedfm.core.errors import UserError
from fedfm.grid.recipe import Recipe
from fedfm.grid.store import Summary
from fedfm.paper.catalogue import list_recipe_names, load_recipe
from fedfm.report.tables.build import build_table
from fedfm.report.tables.formats import FORMATS, render_table
from fedfm.report.tables.statistics import MEASURES, compute_paired_p, get_table_metric, rank_values
from tests.grid.results import result, results

METHODS: dict[str, dict[str, Any]] = {
    name: {"method": {"fedavg": {}}} for name in ("FedAvg", "FedProx", "MOON", "FedFM")
}
ONE_AXIS = Recipe(
    "sample",
    "A sample",
    {"method": METHODS},
    rows=("method",),
    columns=(),
    paper="Table 0",
    values={"FedAvg": [70.0, 0.5], "FedFM": 74.0},
)
THREE_SEEDS = {
    "FedAvg": [70.0, 71.0, 72.0],
    "FedProx": [69.0, 72.0, 72.0],
    "FedFM": [74.0, 75.5, 76.0],
}


def entry(table, row, column=0):
    return table.entries[(row,), table.columns[column]]


@pytest.fixture
def table():
    return build_table(ONE_AXIS, results(THREE_SEEDS))


def test_mean_and_sample_deviation_and_difference_are_as_by_hand(table):
    fedavg, fedfm = entry(table, "FedAvg"), entry(table, "FedFM")
    assert fedavg.mean == pytest.approx(71.0)
    assert fedavg.deviation == pytest.approx(1.0)
    assert fedavg.difference == pytest.approx(1.0)
    assert fedfm.mean == pytest.approx((74 + 75.5 + 76) / 3)
    assert fedfm.deviation == pytest.approx(
        math.sqrt((1.1667**2 + 0.3333**2 + 0.8333**2) / 2), 1e-3
    )
    assert fedfm.difference == pytest.approx(75.16667 - 74, abs=1e-4)
    assert entry(table, "FedProx").difference is None


def test_the_best_and_the_second_are_marked_and_ties_share(table):
    assert [entry(table, row).rank for row in METHODS] == [2, 2, 0, 1]  # two of 71.00


@pytest.mark.parametrize(
    ("measure", "values", "expected"),
    [
        ("test_accuracy", [1.0, 3.0, 2.0], [0, 1, 2]),
        ("test_accuracy", [3.0, 3.001, 2.0, 1.0], [1, 1, 2, 0]),
        ("test_accuracy", [3.0, None, 2.0], [1, 0, 2]),
        ("test_accuracy", [None, 2.0], [0, 0]),
        ("test_accuracy", [], []),
        ("floats_up", [10.0, 20.0, 30.0], [1, 2, 0]),
        ("best_round", [1.0, 2.0], [0, 0]),
        ("nmi", [0.4131, 0.4134, 0.5], [2, 2, 1]),
    ],
)
def test_ranks(measure, values, expected):
    assert rank_values(values, MEASURES[measure]) == expected


def test_the_paired_test_is_that_of_scipy_over_common_seeds(table):
    comparison = entry(table, "FedFM").comparison
    assert comparison.p == pytest.approx(
        scipy.stats.ttest_rel(THREE_SEEDS["FedFM"], THREE_SEEDS["FedAvg"]).pvalue
    )
    t = (25 / 6) / (math.sqrt(((4 - 25 / 6) ** 2 * 2 + (4.5 - 25 / 6) ** 2) / 2) / math.sqrt(3))
    assert comparison.p == pytest.approx(2 * scipy.stats.t.sf(t, 2))
    assert comparison.pairs == 3
    assert comparison.significant
    assert not entry(table, "FedProx").comparison.significant
    assert entry(table, "FedAvg").comparison is None


def test_there_is_no_paired_test_without_three_common_seeds_or_with_equal_differences():
    assert compute_paired_p({0: 1.0, 1: 2.0}, {0: 3.0, 1: 5.0}) is None
    assert compute_paired_p({0: 1.0, 1: 2.0, 2: 4.0}, {1: 3.0, 2: 5.0, 3: 1.0}) is None
    assert compute_paired_p({0: 1.0, 1: 2.0, 2: 3.0}, {0: 2.0, 1: 3.0, 2: 4.0}) is None
    ours, theirs = {0: 1.0, 1: 2.0, 2: 4.0, 9: 7.0}, {0: 1.5, 1: 2.7, 2: 4.1, 8: 0.0}
    expected = scipy.stats.ttest_rel([1.0, 2.0, 4.0], [1.5, 2.7, 4.1]).pvalue
    assert compute_paired_p(ours, theirs) == pytest.approx((expected, 3))


def test_without_fedavg_the_first_row_is_the_baseline():
    kinds: dict[str, dict[str, Any]] = {"without": {}, "with": {}}
    recipe = Recipe("sample", "Other rows", {"kind": kinds}, rows=("kind",), columns=())
    runs = results({"without": [1.0, 2.0, 3.0], "with": [5.0, 6.5, 7.0]}, axis="kind")
    table = build_table(recipe, runs)
    assert table.baseline == "without"
    assert entry(table, "with").comparison.significant
    assert "* differs from without" in render_table(table, "markdown").replace("\\*", "*")


def test_a_baseline_with_one_cell_serves_all_columns():
    recipe = load_recipe("lambda")
    runs = [
        result({"start": start, "lambda": weight}, seed, value, recipe="lambda")
        for start, weight, values in [
            ("FedAvg", "0", [66.0, 67.0, 68.0]),
            ("T_s = 20", "50", [71.0, 72.5, 73.0]),
        ]
        for seed, value in enumerate(values)
    ]
    table = build_table(recipe, runs)
    (tested,) = [each for each in table.entries.values() if each.comparison]
    assert tested.labels == {"start": "T_s = 20", "lambda": "50"}
    assert len(table.missing) == 3 * 7 - 1


def test_cells_that_were_not_run_are_empty_and_named(table):
    moon = entry(table, "MOON")
    assert (moon.mean, moon.deviation, moon.rank, moon.comparison) == (None, None, 0, None)
    assert table.missing == [{"method": "MOON"}]
    markdown = render_table(table, "markdown")
    assert "| MOON |  |" in markdown
    assert "Not run: 1 of 4 cells: MOON." in markdown


def test_one_seed_has_no_deviation_and_no_test():
    markdown = render_table(
        build_table(ONE_AXIS, results({"FedAvg": [70.0], "FedFM": [74.0]})), "markdown"
    )
    assert "| FedFM | **74.00** (n=1) |\n| *paper* | 74.00 (+0.00) |" in markdown
    assert "| FedAvg | <u>70.00</u> (n=1) |\n| *paper* | 70.00 ± 0.50 (+0.00) |" in markdown
    assert "t-test" not in markdown


def test_markdown_has_the_marks_and_a_column_for_each(table):
    markdown = render_table(table, "markdown")
    assert "| FedFM | **75.17** ± 1.04\\* |\n| *paper* | 74.00 (+1.17) |" in markdown
    assert "| FedProx | <u>71.00</u> ± 1.73 |" in markdown
    assert "n = 3" in markdown
    assert "suggestive, not conclusive" in markdown
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(METHODS) + 2
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows} == {3}


def two_axes(**changes) -> Recipe:
    given = {
        "axes": {"method": METHODS, "data": {"A & B_1": {}, "C": {}}, "beta": {"0.1": {}, "5": {}}},
        "rows": ("method",),
        "columns": ("data", "beta"),
    }
    return Recipe("sample", "Under_scored 50% | {x}", **(given | changes))


def test_measures_become_columns_with_their_own_decimals():
    recipe = replace(
        ONE_AXIS,
        measures=("nmi", "floats_total", "test_accuracy"),
        values={"FedFM / nmi": 0.557, "FedFM / floats_total": 3_000_001},
    )
    runs = [
        result({"method": "FedFM"}, n, 70.0, measures={"nmi": 0.5 + n / 100}) for n in (0, 1, 2)
    ]
    markdown = render_table(build_table(recipe, runs), "markdown")
    assert "| method | NMI | floats up and down | test accuracy (%) |" in markdown
    assert "| FedFM | 0.510 ± 0.010 | 3,000,000 | 70.00 ± 0.00 |" in markdown
    assert "| *paper* | 0.557 (-0.047) | 3,000,001 (-1) |  |" in markdown


def test_a_measure_that_is_lacking_is_named_and_not_counted_as_run():
    recipe = replace(ONE_AXIS, measures=("nmi", "test_accuracy"))
    nan = result({"method": "FedAvg"}, 0, 70.0, measures={"nmi": math.nan})
    table = build_table(recipe, [nan])
    assert entry(table, "FedAvg").mean is None
    assert "Run, but without NMI for some seeds: FedAvg." in render_table(table, "markdown")
    json.loads(render_table(table, "json"), parse_constant=pytest.fail)


def test_an_unknown_measure_and_format():
    with pytest.raises(UserError, match="measure 'nmj': did you mean 'nmi'"):
        build_table(replace(ONE_AXIS, measures=("nmj",)), [])
    with pytest.raises(UserError, match="format 'html'"):
        render_table(build_table(ONE_AXIS, []), "html")


def test_latex_is_balanced_and_escaped():
    recipe = two_axes(values={"FedFM / A & B_1 / 0.1": [74.0, 1.0]})
    cell = {"method": "FedFM", "data": "A & B_1", "beta": "0.1"}
    latex = render_table(build_table(recipe, [result(cell, 0, 75.0)]), "latex")
    assert latex.count("{") - latex.count("\\{") == latex.count("}") - latex.count("\\}")
    assert re.findall(r"\\begin{(\w+)}", latex) == ["table", "tabular"]
    assert re.findall(r"\\end{(\w+)}", latex) == ["tabular", "table"]
    assert r"Under\_scored 50\% | \{x\}" in latex
    assert r"\multicolumn{2}{c}{A \& B\_1}" in latex
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}" in latex
    assert r"& {\scriptsize 74.00 $\pm$ 1.00 ($+1.00$)} &  &  &  \\" in latex
    assert [latex.count(rule) for rule in ("toprule", "midrule", "bottomrule")] == [1, 3, 1]
    unescaped = re.sub(r"\\[&%$#_{}\\]", "", latex).replace("% needs", "")
    assert "_" not in unescaped
    assert "%" not in unescaped
    assert unescaped.count("$") % 2 == 0
    body = latex[latex.index("\\midrule\n") : latex.index("\\bottomrule")].replace("\\&", "")
    assert {line.count("&") for line in body.splitlines()[1:]} == {4}
    assert latex.isascii()


def test_latex_marks(table):
    latex = render_table(table, "latex")
    assert r"FedFM & \textbf{75.17} $\pm$ 1.04$^{*}$ \\" in latex
    assert r"FedProx & \underline{71.00} $\pm$ 1.73 \\" in latex


def test_in_latex_no_line_end_takes_a_star_or_a_bracket_for_its_own(table):
    axes: dict[str, dict[str, Any]] = {"method": {"FedAvg": {}, "[a]": {}, "*b": {}}}
    for each in (table, build_table(replace(ONE_AXIS, axes=axes), [])):
        assert not re.search(r"\\\\\s*[\[*]", render_table(each, "latex"))


def test_text_is_never_cut_and_styled_on_a_terminal_only(table, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    plain = render_table(table, "text")
    assert "75.17 ± 1.04*" in plain
    assert "74.00 (+1.17)" in plain
    assert "\x1b[" not in plain
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stdout", Terminal())
    styled = render_table(table, "text")
    assert "\x1b[1m75.17\x1b[0m" in styled
    assert "\x1b[4m71.00\x1b[0m" in styled


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_text_shows_brackets_in_labels():
    recipe = Recipe("sample", "[bold]", {"method": {"[red]x": {}}}, rows=("method",), columns=())
    text = render_table(build_table(recipe, results({"[red]x": [1.0, 2.0, 3.0]})), "text")
    assert "[red]x" in text
    assert "[bold]" in text


def test_json_and_csv_lead_to_every_run(table):
    cells = json.loads(render_table(table, "json"))["cells"]
    fedfm = next(cell for cell in cells if cell["labels"] == {"method": "FedFM"})
    assert [run["seed"] for run in fedfm["runs"]] == [0, 1, 2]
    assert [run["folder"] for run in fedfm["runs"]] == [f"runs/FedFM-{n}" for n in range(3)]
    assert [run["value"] for run in fedfm["runs"]] == pytest.approx(THREE_SEEDS["FedFM"])
    assert fedfm["paper_mean"] == 74.0
    assert fedfm["rank"] == 1
    rows = list(csv.DictReader(io.StringIO(render_table(table, "csv"))))
    row = next(row for row in rows if row["method"] == "FedFM")
    assert row["folders"] == "runs/FedFM-0;runs/FedFM-1;runs/FedFM-2"
    assert row["digests"].split(";") == [run["digest"] for run in fedfm["runs"]]
    assert float(row["mean"]) == pytest.approx(fedfm["mean"])
    assert float(row["p"]) == pytest.approx(fedfm["p"])
    moon = next(row for row in rows if row["method"] == "MOON")
    assert (moon["mean"], moon["rank"], moon["n"], moon["folders"]) == ("", "", "0", "")


def test_the_newest_of_several_results_is_used_and_said_once(caplog):
    old = results({"FedAvg": [60.0, 61.0]})
    new = [
        replace(each, test_accuracy=0.7, config={"lr": 2}, finished="2026-02-01T00:00:00")
        for each in old
    ]
    with caplog.at_level(logging.WARNING):
        table = build_table(ONE_AXIS, [*new, *old])
    assert entry(table, "FedAvg").mean == pytest.approx(70.0)
    assert [record.message for record in caplog.records] == [
        "sample: for 2 runs there are results of different configs; the newest are used"
    ]


def test_the_same_run_twice_is_nothing_to_say(caplog):
    runs = results(THREE_SEEDS)
    assert build_table(ONE_AXIS, [*runs, *runs]).entries == build_table(ONE_AXIS, runs).entries
    assert not caplog.records


def test_a_cell_that_the_recipe_lacks_is_left_out_and_said(caplog):
    build_table(ONE_AXIS, [*results(THREE_SEEDS), result({"method": "FedXY"}, 0, 99.0)])
    (record,) = caplog.records
    assert record.message == "sample: 1 results are left out: the recipe has no such cell as FedXY"


def test_a_cell_with_other_settings_than_the_recipe_has_is_named(table):
    assert table.altered == []
    assert "other settings" not in render_table(table, "markdown")
    first, *others = results(THREE_SEEDS)
    fewer = parse({"method": "fedavg", "training": {"rounds": 7}}).as_toml()
    changed = build_table(ONE_AXIS, [replace(first, config=fewer), *others])
    assert changed.altered == [{"method": "FedAvg"}]
    lines = csv.DictReader(render_table(changed, "csv").splitlines())
    assert {line["method"] for line in lines if line["other_settings"] == "True"} == {"FedAvg"}
    note = "Run with other settings than the recipe's: FedAvg."
    assert note in render_table(changed, "markdown")


def test_a_recipe_with_an_unknown_method_still_has_its_table():
    axes = {"method": METHODS | {"FedXY": {"method": {"fedxy": {}}}}}
    table = build_table(replace(ONE_AXIS, axes=axes), results(THREE_SEEDS | {"FedXY": [50.0]}))
    assert entry(table, "FedXY").mean == 50.0
    assert entry(table, "FedAvg").mean == pytest.approx(71.0)


@pytest.mark.parametrize("format", FORMATS)
def test_reduced_runs_have_a_table_of_their_own_that_says_so(format):
    full = results(THREE_SEEDS)
    reduced = [replace(each, quick=True, test_accuracy=0.123) for each in full[:3]]
    table = build_table(ONE_AXIS, [*full, *reduced], quick=True)
    assert table.caption.startswith("REDUCED (--quick), no results: A sample")
    shown = render_table(table, format)
    assert "REDUCED (--quick), no results" in shown
    assert "12.3" in shown
    assert "75.1" not in shown
    assert "(+" not in shown
    assert "REDUCED" not in render_table(build_table(ONE_AXIS, [*full, *reduced]), format)
    if format not in ("csv",):
        assert "Do not compare" in shown.replace("\n", " ")
    else:
        assert all(row["reduced"] == "True" for row in csv.DictReader(io.StringIO(shown)))


def test_columns_keep_the_order_of_the_labels_and_missing_ones_are_grouped_by_row():
    cell = {"method": "FedAvg", "data": "C", "beta": "5"}
    table = build_table(
        two_axes(skipped=({"method": "MOON", "beta": "5"},)), [result(cell, 0, 50.0)]
    )
    assert [column.labels for column in table.columns] == [
        ("A & B_1", "0.1"),
        ("A & B_1", "5"),
        ("C", "0.1"),
        ("C", "5"),
    ]
    assert len(table.missing) == 13
    text = render_table(table, "text").replace("\n", " ")
    assert "Not run: 13 of 14 cells: FedAvg (A & B_1 / 0.1, A & B_1 / 5, C / 0.1);" in text
    assert "MOON (all)" in text


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", list_recipe_names())
def test_every_recipe_of_the_package_has_a_table_without_results(name, quick):
    table = build_table(load_recipe(name), [], quick)
    assert len(table.missing) * len({c.measure for c in table.columns}) == len(table.entries)
    for format in FORMATS:
        assert render_table(table, format)


def test_every_value_of_the_paper_finds_its_cell():
    for name in list_recipe_names():
        recipe = load_recipe(name)
        shown = [entry for entry in build_table(recipe, []).entries.values() if entry.paper]
        assert len(shown) == len(recipe.values), name


@pytest.mark.parametrize(
    ("name", "heading", "scale", "better"),
    [
        ("test_macro_f1", "test macro f1 (%)", 100, 1),
        ("val_log_loss", "validation log loss", 1, -1),
        ("worst_accuracy", "worst client, accuracy (%)", 100, 1),
        ("p10_auc", "10th percentile of clients, auc", 1, 1),
        ("deviation_accuracy", "deviation over clients, accuracy (%)", 100, -1),
        ("fine_tuned_mean_accuracy", "mean over clients, accuracy, fine-tuned (%)", 100, 1),
    ],
)
def test_metrics_and_clients_are_measures(name, heading, scale, better):
    measure = get_table_metric(name)
    assert (measure.heading, measure.scale, measure.better) == (heading, scale, better)
    config = parse({}).as_toml()
    summary = Summary(config, 0, "fedavg", 1, None, 0.5, 1, {}, "x", metrics={name: 0.25})
    assert measure.of(summary) == 0.25 * scale
    assert get_table_metric("val_accuracy").of(summary) is None


@pytest.mark.parametrize("name", ["test_confusion", "worst_f1", "best_accuracy", "test_"])
def test_measures_of_unknown_metrics(name):
    with pytest.raises(UserError):
        get_table_metric(name)
