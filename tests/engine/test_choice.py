"""Which executor and precision a run gets, what it says about it, and what it keeps to."""

import itertools
import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedfm import (
    FedAvg,
    FedFM,
    Partition,
    Training,
    UserError,
    models,
    simulate,
    simulate_seeds,
)
from fedfm.core.checkpoint import Damaged
from fedfm.engine import choice, timing_cache
from fedfm.engine.choice import (
    BUDGET,
    EXECUTORS,
    FEWEST,
    HOPELESS,
    MARGIN,
    TURNS,
    ExecutorChoice,
    choose_executor,
    find_fastest,
    make_executor,
    use_precision,
)
from fedfm.engine.executors import LoopExecutor, StackedExecutor
from fedfm.engine.timing_cache import FILE, VARIABLE, cache_folder, recall, remember
from fedfm.run import simulation
from fedfm.run.records import RoundRecord
from fedfm.verify import fixtures
from tests.folders import timeless

CPU = torch.device("cpu")


def tiny() -> nn.Module:
    return fixtures.make_network("mlp", hidden=[8])


def chosen(name: str, precision="auto"):
    module = tiny()
    return make_executor(
        name, module, fixtures.make_device_data(fixtures.make_images(), module), precision
    )


def test_executors_go_by_name():
    assert type(chosen("loop")) is LoopExecutor
    assert type(chosen("stacked")) is StackedExecutor


def test_an_unknown_executor_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match=r"'zzz'.*auto, graph, loop, stacked, threads"):
        chosen("zzz")


def test_graphs_without_a_gpu_are_refused_with_what_to_do():
    with pytest.raises(UserError, match=r"executor graph.*device=cuda.*executor=stacked"):
        chosen("graph")


@pytest.mark.parametrize("name", ["auto", "fp32"])
def test_a_cpu_has_fp32(name):
    assert use_precision(name, CPU) is None
    assert chosen("stacked", name).net.low_dtype is None


@pytest.mark.parametrize("name", ["bf16", "tf32"])
def test_a_cpu_has_nothing_lower(name):
    with pytest.raises(UserError, match=f"precision {name}.*fp32"):
        chosen("stacked", name)


def test_an_unknown_precision_is_refused():
    with pytest.raises(UserError, match="precision 'bf61': did you mean 'bf16'"):
        chosen("loop", "bf61")


# --- The fastest ----------------------------------------------------------------------------------


class Timed:
    """Executors that take the seconds they are told, on a clock that only they move."""

    def __init__(self, monkeypatch, **seconds: list[float]) -> None:
        self.now = 0.0
        self.turns: list[str] = []
        monkeypatch.setattr(choice, "time", SimpleNamespace(perf_counter=lambda: self.now))
        self.executors = {name: self._executor(name, own) for name, own in seconds.items()}

    def _executor(self, name: str, seconds: list[float]):
        left = itertools.chain(seconds, itertools.repeat(seconds[-1]))

        def train(job: object) -> None:
            self.turns.append(name)
            self.now += next(left)

        return SimpleNamespace(train=train)

    def fastest(self, end: float = 1.0):
        return find_fastest(self.executors, None, end)  # type: ignore[arg-type]  # nobody looks


def test_the_fastest_wins_by_the_best_of_three_turns_after_a_warm_up(monkeypatch):
    timed = Timed(monkeypatch, first=[0.04, 0.012, 0.02, 0.03], second=[0.05, 0.011, 0.01, 0.2])
    name, seconds = timed.fastest()
    assert name == "second"
    assert seconds == pytest.approx({"first": 0.012, "second": 0.01})
    assert timed.turns == ["first", "second"] * (1 + TURNS)


@pytest.mark.parametrize(("ratio", "name"), [(0.99, "first"), (1.01, "second")])
def test_the_first_stays_unless_another_is_clearly_faster(monkeypatch, ratio, name):
    timed = Timed(monkeypatch, first=[0.01 * MARGIN * ratio], second=[0.01], third=[0.011])
    assert timed.fastest()[0] == name


def test_what_is_much_slower_is_not_tried_again(monkeypatch):
    timed = Timed(monkeypatch, first=[0.01], second=[0.01 * HOPELESS * 1.01], third=[0.012])
    assert timed.fastest()[0] == "first"
    assert timed.turns.count("second") == 1
    assert timed.turns.count("third") == 1 + TURNS


def test_when_time_is_up_the_warm_up_must_do(monkeypatch):
    timed = Timed(monkeypatch, first=[2.0], second=[1.5])
    assert timed.fastest() == ("second", {"first": 2.0, "second": 1.5})
    assert timed.turns == ["first", "second"]


def choose(module: nn.Module, shape=(1, 8, 8), rounds: int = 1) -> ExecutorChoice:
    data = fixtures.make_images(shape=shape)
    many = list(torch.arange(len(data.train.labels)).repeat(3).split(9))
    fed = fixtures.make_federation(module, data, FedAvg(), executor="loop", samples=many)
    plans = [fed.plan(0, client) for client in range(len(many))]
    return choose_executor(
        module, fixtures.make_device_data(data, module), plans, fed.training.optimizer, rounds
    )


def test_a_tiny_network_is_stacked_and_why_is_said():
    found = choose(tiny())
    assert found.name == "stacked"
    assert re.fullmatch(r"the first steps took stacked \d+ ms, loop \d+ ms.*", found.why)


class Reading(nn.Module):
    """Multiplies by a number that it reads on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(12, 6), nn.Linear(6, fixtures.CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x) * (1 + float(self.body.bias.detach().sum()))
        return features, self.head(features)


def test_a_network_that_cannot_be_stacked_is_not_and_why_is_said(monkeypatch):
    monkeypatch.setattr(choice, "find_fastest", lambda *_: pytest.fail("there is no choice"))
    module = Reading()
    name, why = choose(module, (12,))
    assert name == "loop"
    assert why.startswith("clients cannot be trained as one network: layer ''")


def test_what_is_faster_on_the_first_steps_is_chosen(monkeypatch):
    seen: dict[str, Any] = {}

    def find(candidates, job, end):
        steps = {plan.steps for plan in job.plans}
        seen.update(names=list(candidates), clients=len(job.plans), steps=steps)
        return "loop", {"stacked": 0.3, "loop": 0.1}

    monkeypatch.setattr(choice, "find_fastest", find)
    monkeypatch.setattr(choice, "BUDGET", 100 * BUDGET)  # enough on a busy machine, too
    assert choose(tiny()) == ("loop", "the first steps took stacked 300 ms, loop 100 ms")
    assert seen == {"names": ["stacked", "loop"], "clients": 10, "steps": {2}}


def test_with_several_threads_a_stack_for_each_is_tried_as_well(monkeypatch):
    monkeypatch.setattr(
        choice, "find_fastest", lambda candidates, *_: ("threads", dict.fromkeys(candidates, 1.0))
    )
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert choose(tiny()).name == "threads"


@pytest.mark.parametrize(
    ("seconds", "rounds", "timed"), [(0.001, 1, True), (0.5, 1, False), (0.5, 1000, True)]
)
def test_a_step_that_takes_long_is_timed_only_in_a_long_run(monkeypatch, seconds, rounds, timed):
    monkeypatch.setattr(choice, "_time", lambda *_: seconds)
    monkeypatch.setattr(choice, "find_fastest", lambda *_: ("stacked", {"stacked": 0.1}))
    found = choose(tiny(), rounds=rounds)
    assert found.name == ("stacked" if timed else "loop")
    assert ("arithmetic" in found.why) is not timed


def test_few_clients_are_timed_if_more_would_take_too_long(monkeypatch):
    seen: dict[str, int] = {}

    def find(candidates, job, end):
        seen.update(clients=len(job.plans), steps=job.plans[0].steps)
        return "loop", {"loop": 0.1}

    monkeypatch.setattr(choice, "_time", lambda *_: BUDGET / (2 * 2 * 7))
    monkeypatch.setattr(choice, "find_fastest", find)
    choose(tiny())
    assert seen["steps"] == 1
    assert FEWEST <= seen["clients"] <= 7


# --- What was measured before ---------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / FILE


def test_what_was_measured_once_is_kept_and_said(cache, monkeypatch):
    first = choose(tiny())
    monkeypatch.setattr(choice, "find_fastest", lambda *_: pytest.fail("it is known"))
    assert choose(tiny()) == (first.name, f"{first.why} (measured before)")
    assert len(json.loads(cache.read_text())) == 1


def test_other_shapes_are_measured_anew(cache, monkeypatch):
    choose(tiny())
    choose(fixtures.make_network("mlp", hidden=[9]))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(choice, "ThreadsExecutor", StackedExecutor)
    choose(tiny())
    assert len(json.loads(cache.read_text())) == 3


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff\xfe"])
def test_a_damaged_file_is_measured_anew_and_replaced(cache, text):
    cache.parent.mkdir()
    cache.write_bytes(text.encode("latin-1"))
    choose(tiny())
    assert len(json.loads(cache.read_text())) == 1


@pytest.mark.parametrize("entry", [None, 3, {}, {"executor": "unheard of", "why": "?"}])
def test_a_strange_entry_is_measured_anew(cache, entry):
    choose(tiny())
    (key,) = json.loads(cache.read_text())
    cache.write_text(json.dumps({key: entry}))
    assert choose(tiny()).name in EXECUTORS
    assert json.loads(cache.read_text())[key]["executor"] in EXECUTORS


def test_the_file_forgets_the_oldest(cache, monkeypatch):
    monkeypatch.setattr(timing_cache, "KEPT", 2)
    for key in ("a", "b", "c"):
        remember(key, {"executor": "loop"})
    assert list(json.loads(cache.read_text())) == ["b", "c"]


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "cache"))
    remember("a", {"executor": "loop"})
    assert recall("a") is None


def test_it_can_be_switched_off(cache, monkeypatch):
    monkeypatch.setenv(VARIABLE, "off")
    choose(tiny())
    assert cache_folder() is None
    assert not cache.exists()


def test_by_default_it_is_in_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "fedfm"


# --- What the folder knows ------------------------------------------------------------------------

PROTOCOL = Training(clients=4, rounds=3, epochs=1, batch_size=4)


class Stop(Exception):
    """Ends a run from outside."""


def stop(record: RoundRecord) -> None:
    raise Stop


def run(out: Path, **options):
    module, data = tiny(), fixtures.make_images()
    common: dict[str, Any] = {"partition": Partition("iid"), "training": PROTOCOL, "out": out}
    return simulate(module, data, FedFM(start_round=1), **common, **options)


def says(monkeypatch, name: str) -> None:
    """Let the trial find that executor the fastest."""
    monkeypatch.setattr(
        simulation, "choose_executor", lambda *_: ExecutorChoice(name, f"{name} was faster")
    )


def test_the_folder_records_the_executor_and_why(tmp_path, monkeypatch, caplog):
    says(monkeypatch, "loop")
    with caplog.at_level(logging.INFO, "fedfm"):
        run(tmp_path / "auto")
    assert "executor loop: loop was faster" in caplog.text
    run(tmp_path / "told", executor="stacked")
    auto, told = (
        json.loads((tmp_path / name / "machine.json").read_text()) for name in ("auto", "told")
    )
    assert (auto["executor"], auto["why"]) == ("loop", "loop was faster")
    assert (told["executor"], told["why"]) == ("stacked", "asked for")
    assert auto["device"] == told["device"] == "cpu"


def dropping() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Dropout(0.5), nn.PReLU())
    return models.BodyAndHead(body, nn.Linear(6, fixtures.CLASSES))


@pytest.mark.parametrize("executor", ["loop", "stacked", "threads"])
def test_a_resumed_run_with_dropout_is_the_whole_run_to_the_bit(tmp_path, executor):
    common: dict[str, Any] = {
        "partition": Partition("iid"),
        "training": PROTOCOL,
        "executor": executor,
    }
    data = fixtures.make_images()
    simulate(dropping(), data, FedFM(start_round=1), out=tmp_path / "whole", **common)
    with pytest.raises(Stop):
        simulate(dropping(), data, FedFM(start_round=1), out=tmp_path / "run", watch=stop, **common)
    torch.manual_seed(9)
    simulate(dropping(), data, FedFM(start_round=1), out=tmp_path / "run", resume=True, **common)
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")
    note = "mapped over clients by torch.func"
    why = json.loads((tmp_path / "run" / "machine.json").read_text())["why"]
    assert (note in why) is (executor != "loop")


@pytest.mark.parametrize("executor", ["stacked", "threads"])
def test_the_record_names_the_layer_that_cannot_be_stacked(tmp_path, executor):
    simulate(
        Reading(),
        fixtures.make_images(shape=(12,)),
        FedAvg(),
        partition=Partition("iid"),
        training=PROTOCOL,
        executor=executor,
        out=tmp_path / "run",
    )
    why = json.loads((tmp_path / "run" / "machine.json").read_text())["why"]
    assert "not trained as one network: layer ''" in why


@pytest.mark.parametrize(("began", "now"), [("loop", "stacked"), ("stacked", "loop")])
def test_a_resumed_run_keeps_to_the_executor_it_began_with(tmp_path, monkeypatch, began, now):
    says(monkeypatch, began)
    run(tmp_path / "whole")
    with pytest.raises(Stop):
        run(tmp_path / "run", watch=stop)
    says(monkeypatch, now)
    used = []

    def spied(name, *arguments):
        used.append(name)
        return make_executor(name, *arguments)

    monkeypatch.setattr(simulation, "make_executor", spied)
    run(tmp_path / "run", resume=True)
    assert used == [began]
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")


def test_every_seed_keeps_to_the_executor_it_began_with(tmp_path, monkeypatch):
    """Two seeds were begun one by one with different choices, then go on together."""
    options: dict[str, Any] = {"partition": Partition("iid"), "training": PROTOCOL}
    for seed, name in ((0, "stacked"), (1, "loop")):
        says(monkeypatch, name)
        for place, watch in (("whole", None), ("run", stop)):
            out = tmp_path / place / f"seed-{seed}"
            try:
                simulate(tiny(), fixtures.make_images(), FedFM(start_round=1), seed=seed, out=out,
                         watch=watch, **options)  # fmt: skip
            except Stop:
                assert place == "run"
    simulate_seeds(lambda seed: tiny(), fixtures.make_images(), FedFM(start_round=1), seeds=(0, 1),
                   out=tmp_path / "run", resume=True, **options)  # fmt: skip
    for seed in (0, 1):
        ours, theirs = (timeless(tmp_path / place / f"seed-{seed}") for place in ("run", "whole"))
        assert ours == theirs


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"executor": "loop"}', "\xff\xfe"])
def test_a_damaged_record_of_the_machine_is_said(tmp_path, text):
    with pytest.raises(Stop):
        run(tmp_path / "run", watch=stop)
    (tmp_path / "run" / "machine.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(Damaged, match=r"machine\.json"):
        run(tmp_path / "run", resume=True)
