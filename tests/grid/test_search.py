"""Searches: Optuna proposes, the store remembers, and the same proposals come again."""

from pathlib import Path

import pytest

from fedfm.core.errors import UserError
from fedfm.grid.search import Search
from fedfm.grid.store import Store
from fedfm.grid.sweep import Sweep
from tests.grid.grids import run, timeless
from tests.grid.test_sweep import sweep

pytest.importorskip("optuna")
RANGES = ("method=fedprox", "method.mu=0.001..10", "lr=0.001..0.5", "batch_size=8..64",
          "weight_decay=0.0,1e-3")  # fmt: skip


def search(results: Path, trials: int, searched: Sweep | None = None) -> list[dict[str, str]]:
    """Run a whole search; the labels of its cells."""
    made = Search(searched or sweep(*RANGES), trials, Store(results))
    for jobs in made.propose():
        run(jobs, results)
    return [cell.labels for cell in made.cells]


def test_proposals_are_within_their_ranges(tmp_path):
    made = Search(sweep(*RANGES), 30, Store(tmp_path))
    configs = [job.config for (job,) in made.propose()]
    assert len(configs) == 30
    assert all(0.001 <= config.method["fedprox"]["mu"] <= 10 for config in configs)
    assert all(0.001 <= config.training.lr <= 0.5 for config in configs)
    assert min(config.training.lr for config in configs) < 0.01  # on a logarithmic scale
    sizes = {config.training.batch_size for config in configs}
    assert len(sizes) > 10
    assert all(isinstance(size, int) and 8 <= size <= 64 for size in sizes)
    assert {config.training.weight_decay for config in configs} == {0.0, 1e-3}


def test_a_search_learns_from_results(tmp_path):
    """Without results every trial fails, and the proposals after the first ten are others."""
    labels = search(tmp_path, 13)
    blind = Search(sweep(*RANGES), 13, Store(tmp_path / "empty"))
    assert len([*blind.propose()]) == 13
    assert [cell.labels for cell in blind.cells][:10] == labels[:10]
    assert [cell.labels for cell in blind.cells][10:] != labels[10:]


def test_a_search_that_was_stopped_goes_on_as_if_it_had_not(tmp_path):
    whole = search(tmp_path / "whole", 12)
    first = search(tmp_path / "stopped", 5)
    lines = (tmp_path / "stopped" / "results.jsonl").read_text()
    assert search(tmp_path / "stopped", 12)[:5] == first == whole[:5]
    assert (tmp_path / "stopped" / "results.jsonl").read_text().startswith(lines)
    assert timeless(tmp_path / "stopped") == timeless(tmp_path / "whole")


def test_a_replay_ends_where_results_end(tmp_path):
    search(tmp_path, 4)
    made = Search(sweep(*RANGES), 12, Store(tmp_path))
    made.replay()
    assert len(made.cells) == 5


def test_a_trial_that_fails_does_not_end_the_search(tmp_path):
    """Such learning rates let every client diverge."""
    labels = search(tmp_path, 4, sweep("method=fedavg", "lr=1e30..1e38"))
    assert len(labels) == 4
    assert Store(tmp_path).summaries() == []


@pytest.mark.parametrize("wrong", ["lr=-1.0..0.1", "momentum=0.5..1.5", "rouns=1..5"])
def test_a_range_with_a_wrong_end_is_refused_at_once(tmp_path, wrong):
    with pytest.raises(UserError):
        Search(sweep("method=fedavg", wrong), 5, Store(tmp_path))
    assert not list(tmp_path.iterdir())
