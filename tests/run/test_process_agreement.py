"""Runs that several processes share: the results of one process, files, bad input."""

import os
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fedfm import Partition, Result, RoundRecord, UserError, models, simulate, simulate_seeds
from fedfm.core.client_states import OnDisk
from fedfm.core.torchrun import RESUME
from fedfm.data.dataset import Dataset
from fedfm.data.split import Split
from fedfm.engine.processes import TIMEOUT, ProcessGroup, connect
from fedfm.methods import PIECES
from fedfm.privacy import Privacy
from fedfm.run.process_agreement import check_inputs, check_states_folder
from tests.folders import contents, lines
from tests.processes import ENDED, run_together

TRAINING = {
    "clients": 7,
    "participation": 0.7,
    "rounds": 3,
    "epochs": 1,
    "batch_size": 4,
    "lr": 0.05,
}
SMALL = {"clients": 3, "rounds": 1, "epochs": 1}
STATES = ("disk", "memory")
CLASSES, BROKEN = 3, 4
"""The number of classes, and the client whose inputs are not numbers where one is broken."""


def blobs(broken: bool = False) -> Dataset:
    """Clients of unequal size with numbers of their own; some test samples belong to them."""
    rng = torch.Generator().manual_seed(0)
    sizes = torch.tensor([9, 30, 12, 7, 20, 15, 11])
    clients = torch.arange(7).repeat_interleave(sizes)
    labels = torch.randint(CLASSES, (len(clients),), generator=rng)
    inputs = torch.randn(len(clients), 5, generator=rng) + torch.eye(CLASSES, 5)[labels]
    split = Split(inputs.double(), labels, clients)
    data = Dataset("blobs", split, split, tuple("abc"), clients=tuple("stuvwxy"))
    if broken:
        data.train.inputs[data.train.clients == BROKEN] = torch.nan
    return data


def network(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return models.build("mlp", shape=(5,), classes=CLASSES, hidden=[6], norm="batch").double()


def run(
    method: Any, broken: bool = False, training: Any = (), seed_of_network: int = 0, **options: Any
) -> Result:
    """A short run in float64."""
    settings = TRAINING | dict(training)
    chosen = {"partition": Partition("natural"), "executor": "stacked", **options}
    return simulate(network(seed_of_network), blobs(broken), method, training=settings, **chosen)


MATCHING = {"strength": 1.0, "start_round": 1}
ALIKE = ("fedadagrad", "fedyogi", "fedlc", "fedrs", "feddecorr", "feduv", "fedsam")
"""Methods that exchange what FedAdam, balanced softmax, FedNTD or MoFedSAM do, which are here."""
METHODS: dict[str, Any] = {
    **{name: name for name in PIECES if name not in ("centralised", "fedfm", "fedfm-lite", *ALIKE)},
    "fedfm": {"fedfm": MATCHING},
    "fedfm, uniform": {"fedfm": MATCHING | {"anchors": "uniform"}},
    "fedfm-lite": {"fedfm-lite": MATCHING},
    "fedfm-lite, every 3": {"fedfm-lite": MATCHING | {"models_every": 3}},
    "scaffold+fedfm": {"scaffold": {}, "fedfm": MATCHING},
}
CLIPPED = Privacy(noise=0.3, anchor_noise=0.0)
"""Reports without noise need no accountant, whose import takes seconds."""
COINS = {"sampling": "coin", "participation": 0.4}
"""About three of seven clients in a round; sometimes fewer than there are processes."""
RUNS: dict[str, Callable[[], Result]] = {
    "again": partial(run, {"fedfm": MATCHING}),
    **{name: partial(run, method) for name, method in METHODS.items()},
    "states on disk": partial(run, "scaffold", client_states="disk"),
    "clients that fail": partial(run, {"feddyn": {}, "fedfm": MATCHING}, broken=True),
    "coins": partial(run, "scaffold", training=COINS, client_states="disk", seed=2),
    "privacy": partial(
        run, {"fedfm": MATCHING}, privacy=CLIPPED, deployment={"minimum": 3}
    ),
    "metrics": partial(
        run, "fedavg", metrics=["auc", "log_loss", "confusion"],
        training={"select_by": "log_loss"},
    ),
    "own models, metrics": partial(run, "fedbn", metrics=["auc"]),
    "fine-tuning": partial(run, "fedavg", metrics=["auc"], training={"fine_tune": 2}),
    "loop": partial(run, {"fedprox": {}, "fedfm": MATCHING}, executor="loop"),
    "adam": partial(
        run, "fedavg", training={"optimizer": "adamw", "lr_schedule": "cosine"}
    ),
}  # fmt: skip


THREE = ("coins", "states on disk", "ditto", "metrics", "clients that fail")
"""The runs of three processes."""
REFUSED: dict[str, tuple[Callable[[int], Any], str]] = {
    "config": (
        lambda rank: run("fedavg", training={"lr": 0.1 + rank}),
        r"process 1 has another config.*lr \(process 0 0\.1, process 1 1\.1\)",
    ),
    "data": (
        lambda rank: run("fedavg", broken=rank == 1),
        "process 1 has another config.*data.digest.*random data from a seed",
    ),
    "inputs": (
        lambda rank: check_inputs(connect(), blobs(rank == 1), [network(rank)]),
        "process 1 has another input.*data.digest.*model.digest.*manual_seed.*from a seed",
    ),
    "model": (
        lambda rank: run("fedavg", seed_of_network=rank),
        "process 1 has another config.*model.digest.*manual_seed",
    ),
    "too many": (
        lambda rank: run("fedavg", training={"participation": 0.1}),
        r"2 processes, but a round has 1 client \(participation = 0\.1 of 7\).*at most 1",
    ),
    "coins": (
        lambda rank: run("fedavg", training=COINS | {"participation": 0.1}),
        "2 processes, but a round has about 1 client",
    ),
    "centralised": (lambda rank: run("centralised"), "centralised.*cannot share.*without torchrun"),
    "folder": (
        lambda rank: check_states_folder(connect(), OnDisk(hide_folder(rank))),
        "process 1 does not see .*, where what clients keep.*--out.*client_states",
    ),
    "steps": (
        lambda rank: connect().wait() if rank else run("fedavg"),
        "the processes do not do the same",
    ),
}  # fmt: skip


def work_of_two(folder: Path) -> dict[str, Any]:
    """All that two processes are asked to do, in one go: starting them takes longer."""
    rank, seen = connect().rank, list[int]()
    run("fedavg", out=folder, watch=lambda record: seen.append(record.round))
    kept = contents(folder)
    seeds = simulate_seeds(
        "mlp", "digits", "fedavg", seeds=[3, 4], executor="loop", training={**SMALL}
    )
    return {
        "seen": seen,
        "kept": kept,
        "runs": do_runs([*RUNS]),
        "seeds": seeds,
        "refused": {name: refuse(partial(wrong, rank)) for name, (wrong, _) in REFUSED.items()},
        "versions": refuse(pretend_another_version),
        "late": refuse(answer_late),
    }


def do_runs(names: Sequence[str]) -> dict[str, Result]:
    return {name: RUNS[name]() for name in names}


def hide_folder(rank: int) -> Path:
    """Return a folder that only the first process has."""
    return Path("/dev/null/states") if rank else Path.cwd()


def refuse(do: Callable[[], Any]) -> str:
    """Why a process did not do it."""
    try:
        do()
    except UserError as problem:
        return str(problem)
    return "it was done"


def pretend_another_version() -> None:
    with pytest.MonkeyPatch.context() as patch:
        if connect().rank:
            patch.setattr("fedfm.run.process_agreement.__version__", "0.0")
        run("fedavg")


def answer_late() -> None:
    """Let the first process wait for a second that does not answer, in a group of their own."""
    os.environ[TIMEOUT] = "0.5"
    group = ProcessGroup()
    if group.rank:
        time.sleep(1)
        raise UserError("late")
    group.wait()


def work_of_three(folder: Path) -> dict[str, Any]:
    """All that three processes are asked to do; they go on with what one process began."""
    resumed = {states: goes_on(folder / states, states) for states in STATES}
    return {
        "runs": do_runs(THREE) | resumed,
        "rounds": {each: lines(folder / each) for each in STATES},
    }


def goes_on(folder: Path, states: str) -> Result:
    return run("scaffold", out=folder, resume=True, client_states=states)


@pytest.fixture(scope="module")
def alone() -> dict[str, Result]:
    return do_runs([*RUNS])


@pytest.fixture(scope="module")
def two(tmp_path_factory, compute_once) -> Any:
    """What each of two processes did."""
    folder = tmp_path_factory.mktemp("two")
    return compute_once("two", lambda: run_together(2, work_of_two, folder))


@pytest.fixture(scope="module")
def three(tmp_path_factory, compute_once) -> Any:
    """What each of three processes did, after one began two runs."""

    def work() -> list[Any]:
        folder = tmp_path_factory.mktemp("three")
        for states in STATES:
            with pytest.raises(Stop):
                begin(folder / states, 1, states)
        return run_together(3, work_of_three, folder)

    return compute_once("three", work)


class Stop(Exception):
    """Ends a run from outside."""


def begin(folder: Path, rounds: int, states: str) -> str:
    """Begin a run and stop it after so many rounds; returns why it ended in other processes."""

    def stop(record: RoundRecord) -> None:
        if record.round == rounds:
            raise Stop

    try:
        run("scaffold", out=folder, watch=stop, client_states=states)
    except UserError as problem:
        return str(problem)
    raise AssertionError("the first process has raised Stop")


def numbers(result: Result) -> list[Any]:
    """Everything that a run computes, without the model and its seconds."""
    rounds = [record.as_dict() | {"seconds": 0.0} for record in result.rounds]
    best = result.best
    clients = [each and each.describe() for each in (best.clients, best.fine_tuned)]
    return [best.round, best.val_accuracy, best.metrics, best.client_accuracies, clients, rounds]


def assert_equal(result: Result, other: Result, tolerance: float) -> None:
    model, same = (r.best.model.params | r.best.model.buffers for r in (result, other))
    assert model.keys() == same.keys()
    for name, value in model.items():
        torch.testing.assert_close(value, same[name], rtol=tolerance, atol=tolerance, msg=name)
    assert flat(numbers(result)) == pytest.approx(
        flat(numbers(other)), rel=tolerance, abs=tolerance
    )


def flat(value: Any, name: str = "") -> dict[str, float]:
    if isinstance(value, dict):
        return {k: v for key, each in value.items() for k, v in flat(each, f"{name}/{key}").items()}
    if isinstance(value, list | tuple):
        return flat(dict(enumerate(value)), name)
    return {name: value if isinstance(value, int | float) else hash(value)}


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_get_what_one_gets(alone, two, name):
    for each in two:
        assert_equal(each["runs"][name], alone[name], 1e-9)


@pytest.mark.parametrize("name", RUNS)
def test_both_processes_get_the_same_to_the_last_bit(two, name):
    first, second = (each["runs"][name] for each in two)
    assert_equal(first, second, tolerance=0.0)


def test_a_repeated_run_repeats_to_the_last_bit(two):
    assert_equal(two[0]["runs"]["again"], two[0]["runs"]["fedfm"], tolerance=0.0)


@pytest.mark.parametrize("name", THREE)
def test_three_processes_get_what_one_gets(alone, three, name):
    for each in three:
        assert_equal(each["runs"][name], alone[name], 1e-9)


def test_rounds_of_coins_have_fewer_clients_than_processes(alone):
    """Otherwise the runs above would not show what an idle process does."""
    of_one = sum(p.numel() for p in network(0).parameters())
    assert min(record.floats_up for record in alone["coins"].rounds) == 2 * of_one


def test_seeds_that_are_trained_together_are_shared(two):
    expected = simulate_seeds(
        "mlp", "digits", "fedavg", seeds=[3, 4], executor="loop", training={**SMALL}
    )
    for each in two:
        for result, other in zip(each["seeds"], expected, strict=True):
            assert_equal(result, other, 1e-4)  # float32


@pytest.mark.parametrize("states", STATES)
def test_three_processes_go_on_with_what_one_began(alone, three, states):
    for each in three:
        assert_equal(each["runs"][states], alone["scaffold"], 1e-9)
    assert len(three[0]["rounds"][states]) == 3


@pytest.mark.parametrize("states", STATES)
def test_one_process_goes_on_with_what_two_began(alone, tmp_path, states):
    """The first of the two ends without a word, and the other one says so."""
    gone, told = run_together(2, begin, tmp_path / "run", 2, states)
    assert gone == ENDED
    assert told == f"another process of this run has ended: {RESUME}"
    assert_equal(goes_on(tmp_path / "run", states), alone["scaffold"], 1e-9)


def test_the_first_process_keeps_the_books(two, tmp_path):
    assert [each["seen"] for each in two] == [[1, 2, 3], []]
    run("fedavg", out=tmp_path / "one")
    kept, wanted = two[0]["kept"], contents(tmp_path / "one")
    assert kept.keys() == wanted.keys()
    for name in ("config.toml", "data.json", "machine.json"):
        assert kept[name] == wanted[name]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_shared_is_refused_in_every_process(two, name):
    for each in two:
        assert re.search(REFUSED[name][1], each["refused"][name])


def test_processes_of_another_version_are_refused(two):
    for each in two:
        assert "process 1 has another version than process 0: fedfm" in each["versions"]


def test_a_process_that_does_not_answer_is_not_waited_for_longer_than_asked(two):
    assert two[0]["late"].startswith(
        f"another process of this run did not answer within 0.5 s ({TIMEOUT}"
    )


def test_a_timeout_that_is_no_number_is_refused(monkeypatch):
    monkeypatch.setenv(TIMEOUT, "soon")
    with pytest.raises(UserError, match=f"{TIMEOUT} must be seconds, not 'soon'"):
        ProcessGroup()
