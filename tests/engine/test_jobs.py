"""Several federations or seeds trained as one job: every one ends as it does alone."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedfm import (
    FedAvg,
    FedFM,
    Partition,
    Training,
    UserError,
    simulate,
    simulate_seeds,
)
from fedfm.config import make_config
from fedfm.core import trees
from fedfm.core.tables import flatten_keys
from fedfm.engine.executors import train_together
from fedfm.engine.networks import copy_model
from fedfm.methods import FedFMLite, Moon, Piece, Scaffold
from fedfm.rounds.round import open_round, run_round, run_rounds
from fedfm.rounds.server import Diverged
from fedfm.rounds.state import to_tree
from fedfm.run.folder import RunFolder
from fedfm.run.records import RoundRecord
from fedfm.run.runner import Run, run_together
from fedfm.verify import fixtures
from tests.folders import lines, timeless
from tests.rounds.together import run_without_divergence

METHODS: dict[str, tuple[Piece, ...]] = {
    "fedavg": (FedAvg(),),
    "scaffold+fedfm": (Scaffold(), FedFM(strength=1.0, start_round=1)),
    "moon": (Moon(mu=0.5),),
    "fedfm-lite": (FedFMLite(strength=1.0, start_round=0, models_every=2),),
}
SEEDS = (3, 4, 5)


def several(executor: str, *pieces: Piece):
    """Three federations with one executor: other seeds, other models, one with a client less."""
    modules = [
        fixtures.make_network("mlp", seed=k, hidden=[9], norm="batch", dtype=torch.float64)
        for k in range(3)
    ]
    first = fixtures.make_federation(modules[0], fixtures.make_images(), *pieces, executor=executor)
    feds = [replace(first, seed=seed) for seed in SEEDS]
    feds[1] = replace(feds[1], samples=fixtures.split_samples()[:3])
    start = fixtures.start(first)
    return feds, [replace(start, model=copy_model(module)) for module in modules]


def assert_same(one, other):
    ours, theirs = trees.flatten(one), trees.flatten(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("executor", ["loop", "stacked"])
@pytest.mark.parametrize("method", METHODS)
def test_jobs_trained_together_are_the_jobs_one_by_one(method, executor):
    """In the second round, where clients hold states and models of their own."""
    feds, states = several(executor, *METHODS[method])
    later = [run_round(state, fed)[0] for state, fed in zip(states, feds, strict=True)]
    jobs = [open_round(state, fed).job for state, fed in zip(later, feds, strict=True)]
    together = train_together(jobs, feds[0].executor)
    assert [len(outcome.steps) for outcome in together] == [4, 3, 4]
    for job, outcome in zip(jobs, together, strict=True):
        alone = feds[0].executor.train(job)
        assert_same(outcome.model._asdict(), alone.model._asdict())
        torch.testing.assert_close(outcome.loss, alone.loss, rtol=1e-9, atol=1e-9)
        assert torch.equal(outcome.steps, alone.steps)


@pytest.mark.parametrize("executor", ["loop", "stacked"])
@pytest.mark.parametrize("method", METHODS)
def test_rounds_of_several_federations_are_the_rounds_of_each(method, executor):
    feds, states = several(executor, *METHODS[method])
    alone = list(states)
    for _ in range(3):
        rounds = run_without_divergence(states, feds)
        singles = [run_round(state, fed) for state, fed in zip(alone, feds, strict=True)]
        for (state, log), (own, own_log) in zip(rounds, singles, strict=True):
            assert_same(to_tree(state), to_tree(own))
            assert (state.round, log.cohort, log.traffic, log.held) == (
                own.round, own_log.cohort, own_log.traffic, own_log.held,
            )  # fmt: skip
            torch.testing.assert_close(log.loss, own_log.loss, rtol=1e-9, atol=1e-9)
        states, alone = [state for state, _ in rounds], [state for state, _ in singles]


def test_jobs_of_different_pieces_are_not_joined():
    feds, states = several("loop", FedAvg())
    others, starts = several("loop", Moon())
    jobs = [open_round(states[0], feds[0]).job, open_round(starts[0], others[0]).job]
    with pytest.raises(AssertionError):
        train_together(jobs, feds[0].executor)


# --- Seeds ----------------------------------------------------------------------------------------

PROTOCOL = Training(clients=4, rounds=4, participation=0.5, epochs=1, batch_size=4)
LITE = FedFMLite(strength=1.0, start_round=1, models_every=2)


def build(seed: int) -> torch.nn.Module:
    return fixtures.make_network("mlp", seed=seed, hidden=[8], norm="batch", dtype=torch.float64)


def settings(executor="loop"):
    return {"partition": Partition("iid"), "training": PROTOCOL, "executor": executor}


def timeless_records(records: tuple[RoundRecord, ...]) -> list[dict[str, float]]:
    return [flatten_keys(record.as_dict()) | {"seconds": 0} for record in records]


@pytest.fixture(scope="module")
def singles(tmp_path_factory) -> Path:
    """The folders of single runs."""
    out = Path(tmp_path_factory.mktemp("singles"))
    for seed in SEEDS:
        folder = out / f"seed-{seed}"
        simulate(build(seed), fixtures.make_images(), LITE, seed=seed, out=folder, **settings())
    return out


def assert_folders_equal(out: Path, singles: Path):
    assert {path.name for path in out.iterdir()} == {f"seed-{seed}" for seed in SEEDS}
    for seed in SEEDS:
        assert timeless(out / f"seed-{seed}") == timeless(singles / f"seed-{seed}")


@pytest.mark.parametrize("executor", ["loop", "stacked", "auto"])
def test_seeds_together_report_what_each_reports_alone(executor):
    data = fixtures.make_images()
    together = simulate_seeds(build, data, LITE, seeds=SEEDS, **settings(executor))
    assert [result.seed for result in together] == list(SEEDS)
    for seed, result in zip(SEEDS, together, strict=True):
        alone = simulate(build(seed), data, LITE, seed=seed, **settings(executor))
        for ours, theirs in zip(
            timeless_records(result.rounds), timeless_records(alone.rounds), strict=True
        ):
            assert ours == pytest.approx(theirs, rel=1e-9)
        assert (result.method, result.best.round) == (alone.method, alone.best.round)
        assert_same(result.best.model._asdict(), alone.best.model._asdict())
    losses = {result.rounds[-1].train_loss for result in together}
    assert len(losses) == 3, "the seeds are different runs"


def test_every_seed_has_the_folder_of_a_single_run(tmp_path, singles):
    simulate_seeds(build, fixtures.make_images(), LITE, seeds=SEEDS, out=tmp_path, **settings())
    assert_folders_equal(tmp_path, singles)


@pytest.mark.parametrize("alive", [(0, 1, 2), (1, 2), (0,)])
def test_runs_are_watched_when_all_have_saved_the_round(tmp_path, monkeypatch, alive):
    """Also after some have diverged: whoever stops them then loses nothing."""
    seen: list[tuple[int, bool]] = []

    def some_diverge(states, feds):
        found = run_rounds(states, feds)
        if len(found) == len(SEEDS) and states[0].round == 1:
            lost = Diverged("training diverged", 1)
            return [each if k in alive else lost for k, each in enumerate(found)]
        return found

    def watch(record: RoundRecord) -> None:
        left = [SEEDS[k] for k in (alive if record.round > 1 else range(3))]
        saved = [len(lines(tmp_path / f"seed-{seed}")) for seed in left]
        seen.append((record.round, set(saved) == {record.round}))

    config = make_config(
        LITE, partition=Partition("iid"), training=PROTOCOL, seed=0, executor="loop"
    )
    runs = [Run(build(s), config.with_seed(s), tmp_path / f"seed-{s}", watch=watch) for s in SEEDS]
    monkeypatch.setattr("fedfm.run.simulation.run_rounds", some_diverge)
    with (
        nullcontext()
        if len(alive) == 3
        else pytest.raises(UserError, match=r"^seed \d+, round 2\b")
    ):
        run_together(runs, fixtures.make_images())
    later = [(n, True) for n in range(2, PROTOCOL.rounds + 1) for _ in alive]
    assert seen == [(1, True)] * 3 + later


class Stop(Exception):
    """Ends a run from outside."""


@pytest.mark.parametrize("round", [1, 2, 3])
@pytest.mark.parametrize("last", [0, 1])
def test_a_seed_that_was_left_behind_catches_up(tmp_path, singles, monkeypatch, round, last):
    """The run dies after seed number `last` has saved its round and before the next one has."""
    saves = RunFolder.save

    def dies(folder, progress, rounds=1, checkpoint=True):
        saves(folder, progress, rounds, checkpoint=checkpoint)
        if (folder.path.name, progress.state.round) == (f"seed-{SEEDS[last]}", round):
            raise Stop

    shared = {"data": fixtures.make_images(), "executor": "loop", **settings()}
    runs = [
        Run(
            build(seed),
            make_config(LITE, model=build(seed), seed=seed, **shared),
            tmp_path / f"seed-{seed}",
        )
        for seed in SEEDS
    ]
    monkeypatch.setattr(RunFolder, "save", dies)
    with pytest.raises(Stop):
        run_together(runs, fixtures.make_images())
    reached = [round if k <= last else round - 1 for k in range(3)]
    monkeypatch.setattr(RunFolder, "save", saves)
    written = [tmp_path / f"seed-{seed}" / "rounds.jsonl" for seed in SEEDS]
    assert [len(lines(path.parent)) if path.exists() else 0 for path in written] == reached
    simulate_seeds(
        build, fixtures.make_images(), LITE, seeds=SEEDS, out=tmp_path, resume=True, **settings()
    )
    assert_folders_equal(tmp_path, singles)
