"""Feature skew: what happens to the inputs of which client."""

import numpy as np
import pytest
import torch

from fedfm.core.errors import UserError
from fedfm.data import Dataset, Split, load
from fedfm.data.partition import Partition, divide

DIGITS = load("digits")


def table(n: int = 400) -> Dataset:
    numbers = torch.randn(n, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(n) % 2
    return Dataset(
        "table", Split(numbers, labels), Split(numbers, labels), ("a", "b"), (0.0,), (2.0,)
    )


def changes(data: Dataset, partition: Partition, clients: int = 4) -> list[torch.Tensor]:
    """What is added to the inputs of each client."""
    changed, shards = divide(data, clients, partition, 0)
    return [changed.train.inputs[s].float() - data.train.inputs[s].float() for s in shards]


def test_the_first_client_sees_the_samples_as_they_are_and_later_ones_see_less_of_them():
    for transform in ("rotation", "noise", "brightness"):
        found = [c.abs().mean() for c in changes(DIGITS, Partition("feature", transform=transform))]
        assert found[0] == 0
        assert found[1] > 0
        assert found == sorted(found)


def test_brightness_and_noise_are_in_units_of_normalised_inputs():
    bright = changes(table(), Partition("feature", transform="brightness", severity=3.0))
    for client, change in enumerate(bright):
        assert torch.allclose(change, torch.full_like(change, 2.0 * client), atol=1e-5)
    noise = changes(table(4000), Partition("feature", transform="noise", severity=3.0))
    assert [float(change.std()) for change in noise] == pytest.approx([0, 2, 4, 6], rel=0.05)


def test_a_quarter_turn_is_one():
    changed, shards = divide(DIGITS, 2, Partition("feature", severity=2.0), 0)
    before, after = DIGITS.train.inputs[shards[1]], changed.train.inputs[shards[1]]
    assert torch.equal(after, torch.rot90(before, 1, (2, 3)))


def test_images_stay_images():
    for transform in ("rotation", "noise", "brightness"):
        changed, _ = divide(DIGITS, 4, Partition("feature", transform=transform, severity=9.0), 0)
        assert changed.train.inputs.dtype == torch.uint8
        assert int(changed.train.inputs.max()) <= 16, "the largest value before"


def test_test_samples_belong_to_clients_and_are_changed_like_theirs():
    partition = Partition("feature", transform="brightness", severity=3.0)
    changed, shards = divide(table(), 4, partition, 0)
    assert changed.clients == ("0", "1", "2", "3")
    assert changed.train.clients is not None
    assert changed.test.clients is not None
    for client, shard in enumerate(shards):
        assert (changed.train.clients[shard] == client).all()
    assert changed.test.clients.bincount().tolist() == [100] * 4
    added = changed.test.inputs - table().test.inputs
    assert torch.allclose(added, 2.0 * changed.test.clients[:, None].float(), atol=1e-5)


def test_a_seed_gives_the_same_again_and_another_seed_something_else():
    partition = Partition("feature", transform="noise")
    one, again, other = (divide(DIGITS, 4, partition, seed)[0].digest for seed in (1, 1, 2))
    assert one == again
    assert one != other


def test_what_cannot_be_changed_is_refused():
    with pytest.raises(UserError, match=r"\(5,\).*rotation.*noise"):
        divide(table(), 4, Partition("feature"), 0)
    tokens = Split(torch.ones(8, 3, dtype=torch.int64), torch.arange(8) % 2)
    with pytest.raises(UserError, match="int64"):
        divide(Dataset("t", tokens, tokens, ("a", "b")), 2, Partition("feature"), 0)


def test_all_classes_are_dealt_evenly():
    _, shards = divide(DIGITS, 5, Partition("feature"), 0)
    assert np.ptp([len(shard) for shard in shards]) <= 1
    assert sorted(np.concatenate(shards)) == list(range(len(DIGITS.train)))


@pytest.mark.parametrize("kind", [dict, torch.Tensor])
def test_token_ids_and_dicts_are_not_skewed(kind):
    ids = torch.arange(12).view(4, 3)
    split = Split({"ids": ids} if kind is dict else ids, torch.arange(4) % 2)
    data = Dataset("ids", split, split, ("a", "b"))
    with pytest.raises(UserError, match=r"shape \(3,\) of int64"):
        divide(data, 2, Partition("feature", transform="noise"), 0)
