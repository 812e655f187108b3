"""Random numbers of clients: the same alone and together, in every step and call others."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedfm.engine.randomness import KeyedDraws, Unkeyed, draw_for

CPU, SEEDS = torch.device("cpu"), (3, 2**62 + 5, 11)
CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "dropout of maps": lambda x: F.dropout1d(x.unsqueeze(-1), 0.4).squeeze(-1),
    "rand": lambda x: torch.rand(len(x), 1),
    "rand like": torch.rand_like,
    "uniform": lambda x: torch.empty_like(x).uniform_(2, 3),
    "normal": lambda x: torch.normal(x, 2.0),
    "normal of numbers": lambda x: torch.normal(1.0, 2.0, (len(x), 2)),
    "randn": lambda x: torch.randn(len(x), 3),
    "chances": lambda x: torch.bernoulli(x.sigmoid()),
    "chances in place": lambda x: torch.empty_like(x).bernoulli_(x.sigmoid()),
    "integers": lambda x: torch.randint(2, 9, (len(x), 2)),
    "integers like": lambda x: torch.randint_like(x, 5),
    "exponential": lambda x: torch.empty_like(x).exponential_(2.0),
    "gumbel": lambda x: F.gumbel_softmax(x),
    "slopes": lambda x: F.rrelu(x, training=True),
}


def draw(call: Callable[[Tensor], Tensor], x: Tensor, seeds=SEEDS, step: int = 0) -> Tensor:
    with KeyedDraws(seeds, CPU) as draws:
        draws.seeds.set_step(step)
        return call(x)


@pytest.mark.parametrize("name", CALLS)
def test_a_client_draws_the_same_alone_and_among_others(name):
    x = torch.randn(3, 4, 5)
    folded = draw(CALLS[name], x.flatten(0, 1)).unflatten(0, (3, 4))
    with KeyedDraws(SEEDS, CPU):
        mapped = torch.func.vmap(CALLS[name], randomness="different")(x) if name != "slopes" else (
            folded  # torch cannot map it
        )  # fmt: skip
    for client, seed in enumerate(SEEDS):
        alone = draw(CALLS[name], x[client], (seed,))
        assert torch.equal(folded[client], alone)
        assert torch.equal(mapped[client], alone)
    assert not torch.equal(folded[0], folded[1])


@pytest.mark.parametrize("name", CALLS)
def test_steps_and_calls_differ_and_the_global_generator_is_left_alone(name):
    x, before = -torch.ones(40, 5), torch.get_rng_state()
    first, second = draw(CALLS[name], x, (1,)), draw(CALLS[name], x, (1,), step=1)
    pair = draw(lambda x: torch.stack([CALLS[name](x), CALLS[name](x)]), x, (1,))
    assert torch.equal(pair[0], first)
    assert not torch.equal(pair[1], first)
    assert not torch.equal(second, first)
    assert torch.equal(before, torch.get_rng_state())


def test_numbers_have_the_distributions_of_torch():
    x = torch.zeros(20000)
    dropped = draw(lambda x: F.dropout(x + 1, 0.3), x, (1,))
    assert float(dropped.mean()) == pytest.approx(1, abs=0.03)
    assert set(dropped.tolist()) == {0.0, float(torch.tensor(1) / 0.7)}
    normal = draw(lambda x: torch.randn_like(x), x, (1,))
    assert float(normal.std()) == pytest.approx(1, abs=0.03)
    exponential = draw(lambda x: torch.empty_like(x).exponential_(4.0), x, (1,))
    assert float(exponential.mean()) == pytest.approx(0.25, abs=0.02)
    integers = draw(lambda x: torch.randint(2, 5, (2000,)), x, (1,))
    assert set(integers.tolist()) == {2, 3, 4}


def test_precision_changes_no_mask():
    x = torch.ones(50)
    masks = [draw(lambda x: F.dropout(x, 0.5), x.to(kind), (1,)) for kind in
             (torch.float32, torch.float64, torch.bfloat16)]  # fmt: skip
    assert torch.equal(masks[0] > 0, masks[1] > 0)
    assert torch.equal(masks[0] > 0, masks[2] > 0)


def test_one_client_of_a_cohort_draws_as_if_alone():
    x = torch.ones(6)
    with KeyedDraws(SEEDS, CPU):
        with draw_for(1, 0):
            within = F.dropout(x, 0.5), F.dropout(x, 0.5)
        after = F.dropout(torch.ones(18), 0.5)
    alone = draw(lambda x: torch.stack([F.dropout(x, 0.5) for _ in range(3)]), x, SEEDS[1:2])
    assert torch.equal(torch.stack(within), alone[:2])
    assert torch.equal(after.view(3, 6)[1], alone[2])


@pytest.mark.parametrize("call", [torch.randperm, lambda n: torch.rand(n)])
def test_one_number_for_several_clients_is_refused(call):
    with pytest.raises(Unkeyed, match="together"):
        draw(lambda _: call(4), torch.zeros(1))


def test_an_unknown_draw_is_named():
    with pytest.raises(Unkeyed, match="multinomial"):
        draw(lambda x: torch.multinomial(x, 2), torch.ones(3), (1,))


def test_an_order_is_drawn_for_one_client():
    order = draw(lambda x: torch.randperm(20), torch.zeros(1), (1,))
    assert sorted(order.tolist()) == list(range(20))
