"""Two processes with GPUs: with one each if there are two, and otherwise with the same one."""

import pytest
import torch

from fedfm import FedFM, Partition, Result, Training, simulate
from tests.processes import run_together

TRAINING = Training(clients=6, rounds=4, epochs=2, batch_size=16, lr=0.03)


def run_twice() -> list[Result]:
    return [
        simulate(
            "cnn",
            "digits",
            FedFM(strength=2.0, start_round=1),
            partition=Partition("niid1"),
            training=TRAINING,
            device="cuda",
            precision="fp32",
        )
        for _ in range(2)
    ]


def test_two_processes_get_what_one_gets_and_repeat_it_to_the_last_bit():
    alone, *_ = run_twice()
    first, second = run_together(2, run_twice)
    for result in (*first, *second):
        for name, value in result.best.model.params.items():
            assert torch.equal(value.cpu(), first[0].best.model.params[name].cpu())
    losses = [[record.train_loss for record in each.rounds] for each in (alone, first[0])]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
