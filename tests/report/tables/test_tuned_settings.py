"""Settings chosen on validation, and taken over by other recipes."""

import tomllib
from pathlib import Path

import pytest

from fedfm.core.errors import UserError
from fedfm.grid.recipe import expand_cells
from fedfm.paper.catalogue import load_recipe, read_settings
from fedfm.report.tables.build import build_table
from fedfm.report.tables.tuned_settings import (
    ChosenSettings,
    choose_settings,
    extend_choice,
    find_beyond,
    write_choice,
)
from tests.grid.results import result

TUNE = load_recipe("tune")
SHARED = "FedFM, lambda = 5"  # it has T_s = 5 like every other row of FedFM
FOUND = {"FedProx, mu = 0.01": 0.66, "FedProx, mu = 0.1": 0.68, "MOON, mu = 1": 0.67}


@pytest.fixture
def table():
    """Validation accuracies that are not those on the test set."""
    return build_table(
        TUNE,
        [
            result(
                {"partition": partition, "setting": label},
                0,
                99 - 100 * value,
                val_accuracy=value + more,
                recipe="tune",
            )
            for label, value in FOUND.items()
            for partition, more in (("NIID-1", -0.01), ("NIID-2", 0.01))
        ],
    )


def test_the_best_by_validation_is_chosen(table):
    found = {each.method: each for each in choose_settings(TUNE, table)}
    assert found.keys() == {"fedprox", "moon"}
    assert found["fedprox"].settings == {"mu": 0.1}
    assert found["fedprox"].words == "fedprox: mu = 0.1 (68.00 %)"
    assert "also tried: mu = 0.001 (not run), mu = 0.01 (66.00 %)" in found["fedprox"].format_toml()


def test_the_choice_is_a_file_that_other_recipes_take(table, tmp_path):
    path = write_choice(TUNE, table, tmp_path)
    assert path is not None
    assert path == tmp_path / "tune" / "chosen.toml"
    assert tomllib.loads(path.read_text()) == {
        "method": {"fedprox": {"mu": 0.1}, "moon": {"mu": 1.0}}
    }
    changes = read_settings([path])
    assert changes == ["method.fedprox.mu=0.1", "method.moon.mu=1.0"]
    methods = {
        cell.title: cell.resolved.method
        for cell in expand_cells(load_recipe("modularity"), overrides=changes)
    }
    assert methods["FedProx / with FM"]["fedprox"] == {"mu": 0.1}
    assert methods["MOON / without FM"]["moon"] == {"mu": 1.0, "tau": 0.5}
    assert methods["FedAvg / without FM"] == {"fedavg": {}}


def test_settings_that_one_partition_lacks_are_not_chosen():
    labels = {"partition": "NIID-1", "setting": "FedProx, mu = 1"}
    (only,) = [result(labels, 0, 1.0, val_accuracy=0.99, recipe="tune")]
    assert list(choose_settings(TUNE, build_table(TUNE, [only]))) == []


def test_settings_that_all_rows_share_are_not_part_of_the_choice():
    rows = [
        result({"partition": p, "setting": SHARED}, 0, 1.0, val_accuracy=0.7, recipe="tune")
        for p in ("NIID-1", "NIID-2")
    ]
    (chosen,) = choose_settings(TUNE, build_table(TUNE, rows))
    assert chosen.settings == {"strength": 5.0}


def test_texts_and_truths_can_be_chosen():
    settings = {"guide": "l2", "loud": True, "strength": 1e-05}
    text = ChosenSettings("fedfm", settings, 50.0, ()).format_toml()
    assert tomllib.loads(text) == {"method": {"fedfm": settings}}


def test_what_is_compared_is_not_set_by_anything_else():
    changed = list(expand_cells(TUNE, overrides=["fedprox.mu=7", "rounds=3"]))
    assert {cell.resolved.training.rounds for cell in changed} == {3}
    pieces = [cell.resolved.method for cell in changed if "fedprox" in cell.resolved.method]
    assert [each["fedprox"]["mu"] for each in pieces[:3]] == [0.001, 0.01, 0.1]


def test_what_would_not_be_kept_is_not_chosen_between(tmp_path):
    text = """
    title = "lr"
    output = "choice"
    rows = ["setting"]
    columns = []
    [axes.setting.slow]
    method.fedavg = {}
    training.lr = 0.01
    """
    (tmp_path / "lr.toml").write_text(text)
    with pytest.raises(UserError, match=r"recipe lr.*'slow'.*training"):
        load_recipe(str(tmp_path / "lr.toml"))


def test_nothing_run_is_no_choice(tmp_path):
    assert write_choice(TUNE, build_table(TUNE, []), tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_texts_and_lists_in_files_of_settings(tmp_path):
    path = tmp_path / "data.toml"
    path.write_text('[data]\nname = "folder"\npath = "my images.tar"\n[model]\nchannels = [4, 8]\n')
    (cell, *_) = expand_cells(load_recipe("anchors"), overrides=read_settings([path]))
    assert (cell.config["data"]["path"], cell.config["model"]["channels"]) == (
        "my images.tar",
        [4, 8],
    )


@pytest.mark.parametrize(
    ("text", "pattern"), [(None, r"settings\.toml$"), ("a =", r"settings\.toml.*TOML")]
)
def test_bad_files_are_named(tmp_path, text, pattern):
    path = Path(tmp_path / "settings.toml")
    if text:
        path.write_text(text)
    with pytest.raises(UserError, match=pattern):
        read_settings([path])


def run_moon(values: dict[str, float], recipe=TUNE):
    """Validation accuracies by mu, under both partitions."""
    return build_table(
        recipe,
        [
            result(
                {"partition": where, "setting": f"MOON, mu = {mu}"},
                0,
                50.0,
                val_accuracy=value,
                recipe="tune",
            )
            for mu, value in values.items()
            for where in ("NIID-1", "NIID-2")
        ],
    )


@pytest.mark.parametrize(
    ("best", "beyond"), [("0.1", ["MOON, mu = 0.02"]), ("1", []), ("10", ["MOON, mu = 20"])]
)
def test_a_choice_at_the_end_of_its_range_gets_one_value_beyond(best, beyond):
    values = dict.fromkeys(("0.1", "0.5", "1", "5", "10"), 0.5) | {best: 0.6}
    table = run_moon(values)
    assert find_beyond(TUNE, table) == beyond
    extended = extend_choice(TUNE, table)
    assert [*extended.axes["setting"]] == [*TUNE.axes["setting"], *beyond]
    more = run_moon(values | {label.split()[-1]: 0.7 for label in beyond}, extended)
    assert extend_choice(extended, more).axes == extended.axes


def test_nothing_beyond_is_asked_for_while_a_value_was_not_run():
    assert find_beyond(TUNE, run_moon({"0.1": 0.6, "0.5": 0.5})) == []


def test_a_choice_for_one_label_reaches_only_that_one(tmp_path):
    recipe = load_recipe("tune-l2")
    runs = [
        result(
            {"partition": where, "setting": label}, 0, 50.0, val_accuracy=value, recipe="tune-l2"
        )
        for label, value in (("L2, lambda = 1", 0.6), ("L2, lambda = 10", 0.5))
        for where in ("NIID-1", "NIID-2")
    ]
    path = write_choice(recipe, build_table(recipe, runs), tmp_path)
    assert path is not None
    assert read_settings([path]) == ["only.FedFM (L2, tuned).method.fedfm.strength=1.0"]
