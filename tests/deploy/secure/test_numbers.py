"""Numbers as words: what fits comes back, what does not is refused by the client."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfm.deploy import secure
from fedfm.deploy.errors import SecureError
from tests.deploy.secure.rounds import plain_sum


def there_and_back(bulk, fine, range=1.0):
    words = secure.encode(bulk, fine, clients=1, range=range)
    return secure.decode(words, bulk, fine, clients=1, range=range)


@settings(deadline=None)
@given(
    st.lists(st.floats(-0.99, 0.99), min_size=1, max_size=50),
    st.floats(1.0, 1e6),
    st.integers(1, 20),
)
def test_a_sum_is_off_by_half_a_step_per_client(values, range, clients):
    bulk = {"a": torch.tensor(values, dtype=torch.float64) * range / clients}
    total = plain_sum([secure.encode(bulk, {}, clients, range)] * clients)
    found, _ = secure.decode(total, bulk, {}, clients, range)
    assert (found["a"] - clients * bulk["a"]).abs().max() <= clients * secure.word_unit(range) / 2


@settings(deadline=None)
@given(st.lists(st.integers(-(2**27), 2**27), min_size=1, max_size=20))
def test_integers_are_exact(values):
    fine = {"counts": torch.tensor(values)}
    assert torch.equal(there_and_back({}, fine)[1]["counts"], fine["counts"])


@settings(deadline=None)
@given(st.lists(st.integers(-(2**27), 2**27), min_size=1, max_size=20))
def test_whole_floats_are_exact(values):
    fine = {"sums": torch.tensor(values, dtype=torch.float64)}
    assert torch.equal(there_and_back({}, fine)[1]["sums"], fine["sums"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_types_and_shapes_come_back(dtype):
    values = torch.tensor([[-0.5, 0.25], [0.0, 0.75]], dtype=dtype)
    bulk, fine = there_and_back({"a": values, "none": torch.zeros(0)}, {"b": values.T[0]})
    assert torch.equal(bulk["a"], values)
    assert bulk["a"].dtype == dtype
    assert torch.equal(fine["b"], values.T[0])
    assert bulk["none"].shape == (0,)


def test_a_range_means_the_next_power_of_two():
    assert secure.word_unit(16.0) == 2.0**-27
    assert secure.word_unit(9.0) == 2.0**-27
    assert secure.word_unit(0.5) == 2.0**-32


def test_the_largest_allowed_values_do_not_wrap_around():
    clients = 3
    most = (2**31 - 1) // clients * secure.word_unit(1.0)
    bulk = {"a": torch.tensor([most, -most], dtype=torch.float64)}
    total = plain_sum([secure.encode(bulk, {}, clients, 1.0)] * clients)
    found, _ = secure.decode(total, bulk, {}, clients, 1.0)
    assert torch.equal(found["a"], clients * bulk["a"])
    with pytest.raises(SecureError):
        secure.encode({"a": bulk["a"] + secure.word_unit(1.0)}, {}, clients, 1.0)


@pytest.mark.parametrize("value", [1.0, -1.0, 1e38, 3.0])
def test_out_of_range(value):
    bulk = {"layer": {"weight": torch.full((3,), value)}}
    pattern = r"layer/weight\b.*\b0\.25\b.*\b4\b.*deployment\.range"
    with pytest.raises(SecureError, match=pattern):
        secure.encode(bulk, {}, clients=4, range=1.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite(value):
    spoilt = {"b": torch.tensor([0.0, value, 0.0])}
    for bulk, fine in ((spoilt, {}), ({}, spoilt)):
        with pytest.raises(SecureError, match=r"\bb\b.*finite"):
            secure.encode(bulk, fine, clients=4, range=1.0)


@pytest.mark.parametrize("value", [2**38, -(2**63), 2**63 - 1])
def test_integers_out_of_range(value):
    with pytest.raises(SecureError, match=r"\bcounts\b.*\b4\b"):
        secure.encode({}, {"counts": torch.tensor([value])}, clients=4, range=1.0)


def test_integers_have_no_place_in_bulk():
    with pytest.raises(SecureError, match=r"\bsteps\b.*integers"):
        secure.encode({"steps": torch.tensor([1])}, {}, clients=4, range=1.0)


@pytest.mark.parametrize("range", [0.0, -1.0, float("inf"), float("nan")])
def test_ranges_that_are_none(range):
    with pytest.raises(SecureError, match=rf"deployment\.range\b.* {range}\b"):
        secure.encode({}, {}, clients=4, range=range)


def test_a_sum_of_another_number_of_clients_is_lost():
    bulk = {"a": torch.zeros(3)}
    words = secure.encode(bulk, {}, clients=4, range=1.0)
    with pytest.raises(SecureError, match="masks"):
        secure.decode(words, bulk, {}, clients=2, range=1.0)
    with pytest.raises(SecureError, match="words"):
        secure.decode(words, {}, {}, clients=1, range=1.0)
