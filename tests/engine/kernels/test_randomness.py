"""Keyed random numbers of captured steps, under Triton's interpreter."""

import pytest
import torch

from fedfm.engine.kernels.randomness import BLOCK, fill_uniform

SEEDS = torch.tensor([5, 2**62 + 1, 17])
STEP = torch.tensor([3], dtype=torch.int32)


@pytest.mark.parametrize("each", [1, 7, BLOCK, 2 * BLOCK + 5])
def test_a_client_draws_its_own_numbers_whoever_is_beside_it(each):
    together = fill_uniform(3 * each, SEEDS, STEP, 2).view(3, each)
    for client in range(3):
        alone = fill_uniform(each, SEEDS[client : client + 1], STEP, 2)
        assert torch.equal(alone, together[client])
    assert len({tuple(row.tolist()) for row in together}) == 3


def test_every_step_and_call_draws_other_numbers_in_the_unit_interval():
    draws = [
        fill_uniform(600, SEEDS, torch.tensor([step], dtype=torch.int32), call)
        for step in (0, 1)
        for call in (0, 1)
    ]
    numbers = torch.stack(draws)
    assert len(numbers.unique()) > 0.99 * numbers.numel()
    assert 0 <= numbers.min() < 0.01
    assert 0.99 < numbers.max() < 1
    assert float(numbers.mean()) == pytest.approx(0.5, abs=0.02)


def test_no_client_draws_nothing():
    assert fill_uniform(0, SEEDS, STEP, 0).shape == (0,)
