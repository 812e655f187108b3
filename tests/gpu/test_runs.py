"""Whole runs on a GPU: precision, crashes, augmentation."""

import statistics
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedfm import FedFM, Partition, Result, Training, data, models, simulate, simulate_seeds
from fedfm.data.augment import apply, draw

PROTOCOL = Training(clients=10, rounds=15, epochs=3, batch_size=16, lr=0.03)
SEEDS = (0, 1, 2)


def network(seed: int):
    torch.manual_seed(seed)
    return models.build("cnn", shape=(1, 8, 8), classes=10, norm="batch").to("cuda")


def accuracies(precision: str) -> list[float]:
    results = simulate_seeds(
        network,
        data.load("digits"),
        FedFM(strength=5, start_round=3),
        seeds=SEEDS,
        partition=Partition("niid1"),
        training=PROTOCOL,
        precision=precision,
    )
    return [result.test_accuracy for result in results]


def test_bf16_ends_within_the_seed_to_seed_deviation_of_fp32():
    exact, low = accuracies("fp32"), accuracies("bf16")
    print("fp32", exact, "bf16", low)
    deviation = statistics.stdev(exact)
    assert abs(statistics.mean(exact) - statistics.mean(low)) <= 2 * deviation


class Stop(Exception):
    """Ends a run from outside."""


def assert_goes_on(run: Callable[..., Result]) -> None:
    """A run that is stopped in its third round and resumed ends bit for bit as one that was not."""

    def stop(record):
        if record.round == 3:
            raise Stop

    whole = run("whole")
    with pytest.raises(Stop):
        run("stopped", watch=stop)
    resumed = run("stopped", resume=True)
    for name, value in whole.best.model.params.items():
        assert torch.equal(value, resumed.best.model.params[name].to(value.device))


def test_a_run_on_a_gpu_goes_on_bit_for_bit_after_it_was_stopped(tmp_path):
    def run(out, **options):
        return simulate(
            network(0),
            data.load("digits"),
            FedFM(strength=5, start_round=2),
            training=Training(clients=10, rounds=4, epochs=1, batch_size=16),
            out=tmp_path / out,
            **options,
        )

    assert_goes_on(run)


def test_augmentation_can_be_captured_in_a_graph():
    rng = np.random.default_rng(0)
    batch = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
    draws = draw(rng, 8)
    held, angles = batch.cuda(), draws.cuda()
    apply(held, angles)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        changed = apply(held, angles)
    for _ in range(2):
        angles.copy_(draw(rng, 8))
        graph.replay()
        assert torch.equal(changed, apply(held, angles))
