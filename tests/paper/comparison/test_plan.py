"""The plan of the comparison: settings are chosen, the best methods get more seeds."""

from pathlib import Path

import pytest

from fedfm.grid.identity import digest
from fedfm.grid.recipe import expand_cells
from fedfm.grid.store import Store
from fedfm.paper.catalogue import load_recipe
from fedfm.paper.comparison.plan import ComparisonStep, ResultsSoFar, load_steps, plan_step
from fedfm.paper.comparison.tuning import Candidate, Choice, find_name, use_choices
from tests.paper.comparison.tiny import made_up

METHODS = [*load_recipe("field").axes["method"]]
SETTINGS = [*load_recipe("field-tune").axes["setting"]]
PUBLISHED, TUNE, FIRST, MORE = load_steps()[:4]
BEST = {"FedSAM": 80.0, "FedDyn": 79.0, "FedFM-Lite": 78.0, "FedACG": 77.0}
ACCURACIES = {method: BEST.get(method, 60.0) for method in METHODS}


def tuned_for(results: Path, only: tuple[str, ...] = ()) -> None:
    """Make up that the second of four settings is the best, for all methods or for some."""
    values = {label: 50.0 + (n % 4 == 1) for n, label in enumerate(SETTINGS)}
    for method in only or METHODS:
        made_up(ComparisonStep("field-tune", [method]), results, values)


def now(results: Path) -> ResultsSoFar:
    return ResultsSoFar(Store(results).summaries())


def test_every_method_has_four_settings_to_choose_from():
    names = [find_name(label) for label in SETTINGS]
    assert {name: names.count(name) for name in METHODS} == dict.fromkeys(METHODS, 4)
    assert len(names) == 4 * len(METHODS)


def test_the_tuned_runs_differ_from_the_others_in_their_rounds_only():
    """A setting of `field-tune` is one of `field` after 250 of 1,000 rounds."""
    compared = {cell.labels["method"]: cell.resolved for cell in expand_cells(load_recipe("field"))}
    for cell in expand_cells(load_recipe("field-tune")):
        config, training = cell.resolved, cell.resolved.training
        other = compared[find_name(cell.labels["setting"])]
        assert (training.rounds, other.training.rounds) == (250, 1000)
        assert config.method.keys() == other.method.keys()
        assert (config.data, config.model) == (other.data, other.model)
        assert training.server_validation == other.training.server_validation == 5000


def test_every_cell_follows_the_protocol():
    for name in ("field", "field-tune", "field-published", "field-matching", "field-anchors"):
        for cell in expand_cells(load_recipe(name)):
            config, run = cell.resolved, cell.resolved.training
            assert (run.clients, run.cohort, run.sampling) == (100, 10, "fixed")
            assert (run.epochs, run.batch_size, run.momentum) == (5, 50, 0.0)
            assert (run.weight_decay, run.clip_norm, run.clip_first) == (1e-3, 10.0, False)
            assert (run.lr_schedule, run.lr_unit, run.validation) == ("exponential", "round", 0)
            assert name == "field-tune" or run.lr == 0.1
            assert run.lr_gamma == (
                0.9995 if cell.title.endswith("FedDyn") and PAPERS(name) else 0.998
            )
            assert run.server_validation == (0 if PAPERS(name) else 5000)
            assert config.partition.kind == "dirichlet"
            assert config.partition.refill
            wanted = {"stem": "imagenet", "norm": "group", "groups": 2, "width": 64}
            assert wanted.items() <= config.model.options.items()
            augment = config.data.augment
            assert not isinstance(augment, bool | None)
            assert (augment.crop, augment.flip, augment.rotation) == (0.5, 0.5, 0.0)
            assert augment.padding == 4


def PAPERS(name: str) -> bool:
    """Whether a recipe repeats the published table."""
    return name == "field-published"


@pytest.mark.parametrize(
    ("method", "key", "value"),
    [
        ("FedAdam", "tau", 0.01),
        ("FedAdam", "lr", 0.1),
        ("FedDyn", "alpha", 0.1),
        ("FedCM", "alpha", 0.1),
        ("MoFedSAM", "alpha", 0.05),
        ("MoFedSAM", "radius", 0.1),
        ("FedSpeed", "strength", 0.1),
        ("FedSMOO", "alpha", 0.1),
    ],
)
def test_the_published_settings(method, key, value):
    cells = {cell.labels["method"]: cell for cell in expand_cells(load_recipe("field-published"))}
    (settings,) = cells[method].resolved.method.values()
    assert settings[key] == value


def test_the_published_numbers():
    numbers = load_recipe("field-published").values
    assert len(numbers) == 16
    for method, ten, sixty in (
        ("FedAvg", 77.31, 80.65),
        ("FedDyn", 78.96, 84.22),
        ("FedSMOO", 83.30, 86.87),
    ):
        for skew, number in (("0.1", ten), ("0.6", sixty)):
            label = f"CIFAR-10, 10%-100 / Dirichlet {skew} / {method} / best_test_accuracy"
            assert numbers[label] == number


def test_a_choice_needs_all_candidates_and_takes_the_first_of_equals():
    few = (Candidate("a", {}, 0.5), Candidate("b", {}, 0.7), Candidate("c", {}, 0.7))
    assert Choice(few).best == few[1]
    assert Choice((*few, Candidate("d", {}, None))).best is None


@pytest.mark.parametrize(
    ("words", "best", "end"),
    [
        (("a = 1", "a = 2", "a = 3"), 0, True),
        (("a = 1", "a = 2", "a = 3"), 1, False),
        (("a = 1", "a = 2", "a = 3"), 2, True),
        (("a = 1", "a = 2, too", "a = 3"), 0, False),
        (("a = 1", "b = 2", "b = 3"), 2, False),
        (("a = 1", "a = 2", "a = 3"), None, False),
    ],
)
def test_a_choice_at_an_end_of_its_range_is_known(words, best, end):
    values = [None if best is None else float(n == best) for n in range(len(words))]
    pairs = zip(words, values, strict=True)
    assert Choice(tuple(Candidate(word, {}, value) for word, value in pairs)).at_an_end == end


def test_a_method_waits_until_its_settings_have_been_tried(tmp_path):
    assert plan_step(FIRST, now(tmp_path)) == []
    tuned_for(tmp_path, ("FedDyn", "FedFM, "))
    jobs = plan_step(FIRST, now(tmp_path))
    assert [job.labels[0]["method"] for job in jobs] == ["FedDyn", "FedFM"]
    assert jobs[0].config.method == {"feddyn": {"alpha": 0.03}}
    assert jobs[1].config.method["fedfm"]["strength"] == 2.0


def test_a_chosen_learning_rate_reaches_every_recipe(tmp_path):
    tuned_for(tmp_path)
    summaries = Store(tmp_path).summaries()
    field, matching, anchors = (
        {
            tuple(cell.labels.values())[2:]: cell.resolved
            for cell in expand_cells(tuned.recipe)
            if cell.labels["skew"] == "Dirichlet 0.1"
        }
        for tuned in (
            use_choices(load_recipe(name), summaries, ())
            for name in ("field", "field-matching", "field-anchors")
        )
    )
    assert field["SCAFFOLD",].training.lr == 0.03
    assert field["FedSAM",].training.lr == 0.1
    assert field["FedETF",].model.options["head"] == "simplex"
    both = matching["SCAFFOLD", "with FedFM"]
    assert both.training.lr == 0.03
    assert [*both.method] == ["scaffold", "fedfm"]
    assert both.method["fedfm"]["strength"] == 2.0
    assert anchors["FedFM, calibration 0.1",].method["fedfm"]["calibration"] == 0.1
    assert anchors["FedFM, calibration 0.1",].method["fedfm"]["strength"] == 2.0
    assert digest(matching["FedDyn", "alone"].as_toml()) == digest(field["FedDyn",].as_toml())
    assert digest(anchors["FedFM",].as_toml()) == digest(field["FedFM",].as_toml())


def test_results_of_other_settings_choose_nothing(tmp_path):
    tuned_for(tmp_path)
    others = use_choices(load_recipe("field"), Store(tmp_path).summaries(), ["weight_decay=0.1"])
    assert {*others.waiting} == {*METHODS}
    quick = use_choices(load_recipe("field"), (), (), quick=True)
    assert not quick.waiting


def test_the_best_by_validation_and_fedfm_get_more_seeds_one_run_at_a_time(tmp_path):
    tuned_for(tmp_path)
    assert len(plan_step(FIRST, now(tmp_path))) == len(METHODS)
    assert plan_step(MORE, now(tmp_path)) == []
    made_up(FIRST, tmp_path, ACCURACIES)
    jobs = plan_step(MORE, now(tmp_path))
    chosen = ["FedDyn", "FedSAM", "FedFM", "FedFM-Lite"]  # in the order of the recipe
    assert [(job.labels[0]["method"], job.seeds) for job in jobs] == [
        (method, (seed,)) for seed in (1, 2) for method in chosen
    ]
    matching = plan_step(load_steps()[4], now(tmp_path))
    assert {job.labels[0]["method"] for job in matching if "fedfm" in job.config.method} == {
        *("FedDyn", "FedSAM", "FedACG"),
        *("FedAvg", "SCAFFOLD"),  # as good as the others, and first
    }


def test_a_step_that_is_published_waits_for_nothing(tmp_path):
    jobs = plan_step(PUBLISHED, now(tmp_path))
    assert len(jobs) == 8
    assert all(job.config.partition.beta == 0.1 for job in jobs)
    assert len(plan_step(TUNE, now(tmp_path))) == 4 * len(METHODS)


def test_titles_say_what_a_step_runs():
    assert MORE.title == "field, Dirichlet 0.1, the best 3, FedFM, seeds 1 and 2"
