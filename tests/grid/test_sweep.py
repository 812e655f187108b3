"""Sweeps: values as people write them, the cells that they mean, and the best of their results."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean

import pytest

from fedfm.config import load_config
from fedfm.core.errors import UserError
from fedfm.grid.store import Store
from fedfm.grid.sweep import Axis, Span, Sweep, find_best, mean_of, split_values
from tests.grid.grids import run

SMALL = ("executor=stacked", "model.name=mlp", "model.hidden=[8]", "partition.kind=iid",
         "training.rounds=2", "training.epochs=1", "training.clients=4")  # fmt: skip


def sweep(*settings: str, seeds: int = 1, source: str = "digits") -> Sweep:
    return Sweep("mine", source, tuple(map(Axis.parse, (*SMALL, *settings))), seeds)


@pytest.mark.parametrize(
    ("text", "values"),
    [("1,10,50", ["1", "10", "50"]), ("0.1", ["0.1"]), ("[8,16]", ["[8,16]"]),
     ("[8], [8, 16]", ["[8]", "[8, 16]"]), ('"a,b",c', ['"a,b"', "c"]),
     ("a,'b,[c'", ["a", "'b,[c'"]),
     ("{a = 1, b = 2},3", ["{a = 1, b = 2}", "3"]), ("1,,2", ["1", "", "2"])],
)  # fmt: skip
def test_values_are_separated_by_commas_outside_brackets_and_quotes(text, values):
    assert split_values(text) == values


@pytest.mark.parametrize(
    ("text", "span", "whole", "log"),
    [("0.001..0.1", Span(0.001, 0.1), False, True), ("1..5", Span(1, 5), True, False),
     ("1..100", Span(1, 100), True, True), ("0..100", Span(0, 100), True, False),
     ("-1.0..1", Span(-1.0, 1), False, False), ("0.5..4", Span(0.5, 4), False, False)],
)  # fmt: skip
def test_a_range_is_whole_or_not_and_logarithmic_where_it_is_wide(text, span, whole, log):
    axis = Axis.parse(f"training.lr={text}")
    assert (axis.span, axis.values, axis.swept) == (span, (), True)
    assert axis.span is not None
    assert (axis.span.whole, axis.span.log) == (whole, log)


@pytest.mark.parametrize("text", ["data.path=../samples", "data.path=a/../b", "data.name=a..b"])
def test_a_path_is_no_range(text):
    axis = Axis.parse(text)
    assert axis.span is None
    assert axis.values == (text.partition("=")[2],)


@pytest.mark.parametrize(
    "wrong", ["lr", "lr=", "lr=1,,2", "lr=2..1", "lr=1..1", "seed=0,1", "lr=0.1,"]
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(UserError):
        Axis.parse(wrong)


def test_keys_are_written_as_everywhere_and_equal_values_count_once():
    assert Axis.parse("lr=0.1,0.2,0.1") == Axis("training.lr", ("0.1", "0.2"))
    assert Axis.parse("fedfm.strength = 1 , 2").key == "method.fedfm.strength"


def test_a_grid_has_a_cell_for_every_combination():
    cells = sweep("method.strength=1,10", "lr=0.01,0.1,0.2").make_grid()
    settings = [
        (c.config["method"]["fedfm"]["strength"], c.config["training"]["lr"]) for c in cells
    ]
    assert settings == [*product((1.0, 10.0), (0.01, 0.1, 0.2))]
    assert cells[0].labels == {"method.strength": "strength = 1", "training.lr": "lr = 0.01"}
    assert {cell.resolved.training.rounds for cell in cells} == {2}


def test_lists_and_methods_can_be_swept():
    texts = ("model.name=mlp", "model.hidden=[4],[8, 8]", 'method=fedavg,["fedprox", "fedfm"]')
    plain = Sweep("mine", "digits", tuple(map(Axis.parse, texts)))
    assert [(c.resolved.model.options["hidden"], c.resolved.composed.name)
            for c in plain.make_grid()] == [
        ([4], "fedavg"), ([4], "fedprox+fedfm"), ([8, 8], "fedavg"), ([8, 8], "fedprox+fedfm")
    ]  # fmt: skip


def test_keys_of_the_same_last_part_are_told_apart():
    (cell, *_) = sweep('method=["fedprox", "moon"]', "fedprox.mu=1,2", "moon.mu=3,4").make_grid()
    assert [*cell.labels.values()] == ["method.fedprox.mu = 1", "method.moon.mu = 3"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [([], "nothing to sweep"), (["lr=0.1"], "nothing to sweep"), (["lr=1,2", "lr=3"], "twice"),
     (["lr=0.1..1"], "--search"), (["lr=0.1,-1"], "lr must be positive"),
     (["method.strenth=1,2"], "did you mean 'strength'"), (["rouns=1,2"], "rounds"),
     (["method=fedavg,fedfm", "method.strength=1,2"], "strength"),
     (['method=["fedprox", "moon"]', "method.mu=1,2"], "fedprox.mu or moon.mu")],
)  # fmt: skip
def test_a_wrong_sweep_is_refused_in_words(settings, words):
    with pytest.raises(UserError, match=words):
        sweep(*settings).make_grid()


@pytest.mark.parametrize(("metric", "sign"), [("macro_f1", 1), ("log_loss", -1)])
def test_settings_are_compared_by_the_metric_that_chooses_the_round(tmp_path: Path, metric, sign):
    planned = sweep("lr=0.001,0.1", f"select_by={metric}", f'metrics=["{metric}"]', seeds=2)
    cells = planned.make_grid()
    assert planned.make_recipe(cells).measures == (f"val_{metric}",)
    jobs = planned.plan(cells)
    run(jobs, tmp_path)
    summaries = Store(tmp_path).summaries()
    means = {
        job.digest: fmean(s.metrics[f"val_{metric}"] for s in summaries if s.digest == job.digest)
        for job in jobs
    }
    assert {job.digest: mean_of(job, summaries) for job in jobs} == pytest.approx(means)
    best = find_best(jobs, summaries)
    assert best is not None
    assert best.digest == max(means, key=lambda digest: sign * means[digest])


def test_one_metric_compares_all_settings():
    with pytest.raises(UserError, match="one value"):
        sweep("select_by=macro_f1,auc", 'metrics=["macro_f1", "auc"]').make_grid()


def test_settings_without_validation_cannot_be_compared():
    with pytest.raises(UserError, match=r"^[^\n]*validation = 0[^\n]*$"):
        sweep("lr=0.1,0.2", "validation=0").make_grid()


def test_a_methods_setting_needs_no_piece_in_a_run_either():
    config = load_config("digits", ["method=fedproto", "method.strength=3"])
    assert config.method == load_config("digits", ["method=fedproto", "fedproto.strength=3"]).method
    with pytest.raises(UserError, match="known"):
        load_config("digits", ["method=fedavg", "method.strength=3"])


def test_two_settings_make_a_table_with_rows_and_columns():
    two, three = sweep("method.strength=1,2", "lr=0.01,0.1"), sweep("lr=0.1,0.2")
    recipe = two.make_recipe(two.make_grid())
    assert (recipe.rows, recipe.columns) == (("method.strength",), ("training.lr",))
    recipe = three.make_recipe(three.make_grid())
    assert (recipe.rows, recipe.columns) == (("training.lr",), ())


def test_seeds_begin_with_the_configs_and_are_one_job():
    planned = sweep("lr=0.01,0.1", "seed=5", seeds=3)
    assert [job.seeds for job in planned.plan(planned.make_grid())] == [(5, 6, 7)] * 2


def test_values_that_mean_the_same_are_one_job_of_two_cells():
    planned = sweep("lr=0.1,0.10")
    (job,) = planned.plan(planned.make_grid())
    assert [labels["training.lr"] for labels in job.labels] == ["lr = 0.1", "lr = 0.10"]


def test_the_best_has_the_highest_mean_validation_accuracy_of_all_its_seeds(tmp_path: Path):
    planned = sweep("lr=0.001,0.1,0.01", seeds=2)
    jobs = planned.plan(planned.make_grid())
    assert find_best(jobs, []) is None
    run(jobs, tmp_path)
    summaries = Store(tmp_path).summaries()
    means = {job.digest: mean_of(job, summaries) for job in jobs}
    best = find_best(jobs, summaries)
    assert best is not None
    assert means[best.digest] == max(mean for mean in means.values() if mean is not None)
    assert best.config.training.lr == 0.1
    half = [each for each in summaries if each.key != (best.digest, 1)]
    assert mean_of(best, half) is None
    other = find_best(jobs, half)
    assert other is not None
    assert other.digest != best.digest
    swapped = [replace(each, test_accuracy=1 - each.test_accuracy) for each in summaries]
    assert find_best(jobs, swapped) == best
