import sys
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from fedfm.core.errors import UserError
from fedfm.paper.catalogue import load_recipe
from fedfm.report import curves, figure
from fedfm.report.curves import (
    _average_runs,
    _choose_unit,
    draw_against_traffic,
    draw_over_parameter,
    parse_positions,
)
from fedfm.report.tables.build import build_table
from tests.grid.results import record, result, store_of


def run(*accuracies):
    return [record(n, accuracy) for n, accuracy in enumerate(accuracies, 1)]


RUNS = {
    "FedAvg": [run(0.1, 0.4, 0.5), run(0.2, 0.5, 0.6), run(0.3, 0.6, 0.7)],
    "FedFM": [run(0.2, 0.5, 0.7)],
}


def test_a_line_is_the_mean_and_its_band_the_sample_deviation():
    line = _average_runs("FedAvg", RUNS["FedAvg"])
    assert line.x.tolist() == [3000, 6000, 9000]
    assert line.mean == pytest.approx([20, 50, 60])
    assert line.spread == pytest.approx([10, 10, 10])
    assert _average_runs("FedFM", RUNS["FedFM"]).spread.tolist() == [0, 0, 0]


def test_what_counts_is_the_test_accuracy_of_the_best_validated_round_so_far():
    validated = zip(run(0.3, 0.2, 0.5, 0.6), (0.1, 0.4, 0.3, 0.4), strict=True)
    fallen = [each | {"val_accuracy": accuracy} for each, accuracy in validated]
    assert _average_runs("", [fallen]).mean == pytest.approx([30, 20, 20, 20])


@pytest.mark.parametrize(
    ("most", "expected"),
    [(999, (1, "floats")), (2e6, (1e6, "million floats")), (4e13, (1e9, "billion floats"))],
)
def test_what_was_sent_is_told_in_handy_numbers(most, expected):
    assert _choose_unit(most) == expected


def test_a_shorter_run_ends_the_line():
    line = _average_runs("", [run(0.1, 0.2, 0.3), run(0.3, 0.4)])
    assert line.mean == pytest.approx([20, 30])


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["0.1", "5"], [0.1, 5]),
        (["T_s = 1", "T_s = 20"], [1, 20]),
        (["20 %", "100 %"], [20, 100]),
        (["missing 3"], [3]),
        (["1e-3"], [0.001]),
        (["CIFAR-10", "CIFAR-100"], []),
        (["1", "all"], []),
    ],
)
def test_numbers_in_labels(labels, expected):
    assert list(parse_positions(labels).values()) == expected


VALUES = {"CG": {"0.1": [60.0, 62.0], "5.0": [70.0]}, "L2": {"0.1": [58.0, 59.0]}}
PICTURES = {
    "traffic": lambda path: draw_against_traffic(RUNS, "Traffic", path),
    "parameter": lambda path: draw_over_parameter(VALUES, "beta", "Parameter", path, "%"),
    "names": lambda path: draw_over_parameter({"": {"a": [1.0], "b": []}}, "", "50$ {", path, ""),
    "nothing": lambda path: draw_against_traffic({"FedAvg": []}, "Nothing", path),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_light_and_not_empty(name, tmp_path):
    path = PICTURES[name](tmp_path / "new" / "picture.png")
    with Image.open(path) as image:
        grey = np.asarray(image.convert("L"))
    assert grey.shape == (690, 1200)
    assert np.median(grey) == 255
    assert len(np.unique(grey)) > 20


def test_an_svg_is_well_formed_and_the_same_every_time(tmp_path):
    first, second = (
        draw_against_traffic(RUNS, "Same", tmp_path / name) for name in ("a.svg", "b.svg")
    )
    assert ElementTree.parse(first).getroot().tag.endswith("svg")
    assert first.read_bytes() == second.read_bytes()


def test_eight_methods_differ_in_colour_and_neighbours_in_dashes(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(curves, "save_chart", lambda figure, axes, *rest: seen.extend(axes.lines))
    draw_against_traffic({f"method {n}": RUNS["FedFM"] for n in range(8)}, "", tmp_path / "p.png")
    assert len({line.get_color() for line in seen}) == 8
    assert len(set(figure.DASHES)) == len(figure.DASHES)
    assert all(a.get_marker() != b.get_marker() for a, b in pairwise(seen))
    assert [line.is_dashed() for line in seen] == [n % len(figure.DASHES) > 0 for n in range(8)]


def test_pyplot_is_left_alone_and_other_suffixes_are_refused(tmp_path):
    before = "matplotlib.pyplot" in sys.modules
    draw_against_traffic(RUNS, "No pyplot", tmp_path / "p.png")
    assert ("matplotlib.pyplot" in sys.modules) == before
    with pytest.raises(UserError, match=r"\.png.*\.svg.*'\.pdf'"):
        draw_against_traffic(RUNS, "", tmp_path / "p.pdf")


def test_a_recipe_with_columns_is_drawn_over_them(tmp_path):
    found = [
        result({"method": "FedAvg", "beta": beta}, seed, 60 + seed, recipe="guiding")
        for beta in ("0.1", "5.0")
        for seed in (0, 1)
    ]
    table = build_table(load_recipe("guiding"), found)
    values = curves.collect_values(table)
    assert values == {"FedAvg": {"0.1": [60.0, 61.0], "5.0": [60.0, 61.0]}}
    assert curves.draw_curves(table, tmp_path, tmp_path / "p.png").exists()


def test_a_recipe_without_columns_is_drawn_against_what_was_sent(tmp_path, caplog):
    found = [result({"method": "FedFM"}, seed, 60.0, recipe="lite") for seed in (0, 1)]
    store = store_of(tmp_path, found)
    (tmp_path / found[1].folder / "rounds.jsonl").unlink()
    table = build_table(load_recipe("lite"), store.summaries())
    runs = curves.collect_rounds(table, tmp_path)
    assert [len(rounds) for rounds in runs["FedFM"]] == [4]
    assert len(caplog.records) == 1
    assert curves.draw_curves(table, tmp_path, tmp_path / "p.svg").exists()
