"""Clients that spoil secure sums: the others go on in halves, and one that always does is named."""

import itertools
import math
from typing import ClassVar

import pytest

from fedfm.config.deployment import Deployment
from fedfm.deploy.errors import SecureError, SumLost
from fedfm.deploy.packets import Packet
from fedfm.deploy.server import secure_sums as module
from fedfm.deploy.server.secure_sums import SMALLEST, TRIALS, SecureSums
from fedfm.deploy.server.sums import Collected
from tests.deploy.server.maskers import LIKE, Clients, assert_sum_of, dead, lines_of

FOREVER = 10**6


def spoil(*spoilers, kind="train", times=FOREVER):
    """These clients send other words than their masks give, so many times each."""
    left = dict.fromkeys(spoilers, times)

    def change(asked, client, packet):
        if asked != kind or not left.get(client):
            return packet
        left[client] -= 1
        return Packet({}, {"words": {name: x + 1 for name, x in packet.trees["words"].items()}})

    return change


class Cohort:
    """A server and its clients, round after round."""

    def __init__(self, count, deed, **settings):
        self.clients = Clients(deed, count=count)
        for masker in self.clients.maskers.values():
            masker.expect(settings.get("minimum", 2))
        self.collector = SecureSums(self.clients.ask, Deployment(secure=True, **settings))
        self.questions = {client: Packet({}) for client in range(count)}

    def round(self, kinds=("train",)):
        """The last sum of one round."""
        for kind in kinds:
            found = self.collector.collect(kind, self.questions, LIKE, list(kinds))
        return found


def named(caplog):
    """The lines of clients that are left out for good."""
    return [line for line in lines_of(caplog) if "from now on" in line]


class Outcomes:
    """Stands for a sum over clients without the masks: it is lost if a spoiler acts."""

    asked: ClassVar[list[list[int]]] = []
    spoilers: ClassVar[set[int]] = set()

    def __init__(self, ask, deployment, clients, purposes, blame):
        self.clients = clients

    def collect(self, kind, questions, like):
        """The clients, if the sum is good."""
        Outcomes.asked.append(sorted(questions))
        if self.spoilers.intersection(questions):
            raise SumLost("the masks do not cancel")
        return Collected({}, sorted(questions))


@pytest.fixture
def unmasked(monkeypatch):
    """Many rounds of many clients in no time; yields where spoilers are set and sums are seen."""
    monkeypatch.setattr(module, "MaskedSum", Outcomes)
    monkeypatch.setattr(module, "add_answers", lambda answers: {})
    monkeypatch.setattr(Outcomes, "asked", [])
    return Outcomes


@pytest.mark.parametrize("spoiler", [0, 3])
def test_the_half_without_the_spoiler_counts(spoiler, caplog):
    """The run goes on with it, and the others are told why they are left out of this sum."""
    cohort = Cohort(6, spoil(spoiler))
    found = cohort.round()
    good = [c for c in range(6) if c % 2 != spoiler % 2]
    assert_sum_of(found, good)
    assert found.extra.handshakes > 3
    lines = lines_of(caplog)
    left_out = [line for line in lines if "is left out of 'train'" in line]
    assert len(left_out) == 3
    assert all("nobody can tell" in line and "do not cancel" in line for line in left_out)
    assert named(caplog) == []
    assert f"groups {[[0, 2, 4], [1, 3, 5]]}" in lines[0]


def test_a_client_that_spoils_every_sum_is_named(caplog):
    """In its third round, at the latest; then the others make whole sums."""
    cohort = Cohort(6, spoil(2))
    for _ in range(3):
        assert 2 not in cohort.round().clients
    (line,) = named(caplog)
    assert line.startswith("client 2 is left out from now on: of all clients it alone")
    cohort.clients.asked.clear()
    assert_sum_of(cohort.round(), [0, 1, 3, 4, 5], atol=1e-5)
    assert [kind for kind, _ in cohort.clients.asked] == ["keys", "shares", "train", "reveal"]


@pytest.mark.parametrize("count", [6, 7, 8, 13, 24, 100])
def test_it_is_named_after_as_many_rounds_as_its_group_can_be_halved(unmasked, count):
    for spoiler in range(count):
        cohort = Cohort(count, None)
        unmasked.spoilers = {spoiler}
        rounds = 0
        while not cohort.collector.excluded:
            assert spoiler not in cohort.round().clients
            rounds += 1
        assert cohort.collector.excluded == {spoiler}
        assert rounds <= math.ceil(math.log2(count)) + 1


def test_an_intermittent_spoiler_is_never_taken_for_another(unmasked):
    """It is in every lost sum, whatever it does in between."""
    found = 0
    for deeds in itertools.product([True, False], repeat=7):
        cohort = Cohort(9, None)
        for acts in deeds:
            unmasked.spoilers = {4} if acts else set()
            cohort.round()
        assert cohort.collector.excluded <= {4}
        found += cohort.collector.excluded == {4}
    assert found


def test_a_fault_that_is_gone_leaves_no_suspicion(caplog):
    cohort = Cohort(6, spoil(1, times=TRIALS))
    assert_sum_of(cohort.round(), [0, 2, 4])
    assert cohort.collector.suspects == {1, 3, 5}
    assert_sum_of(cohort.round(), range(6))
    assert not cohort.collector.suspects


@pytest.mark.parametrize("times", [1, 2])
def test_a_sum_that_is_lost_once_has_everybody_in_the_end(times):
    cohort = Cohort(6, spoil(1, times=times))
    assert_sum_of(cohort.round(), range(6))
    assert not cohort.collector.suspects


def test_halves_keep_their_keys_for_the_next_sum_of_the_round():
    cohort = Cohort(6, spoil(1, kind="measure"))
    assert_sum_of(cohort.round(("measure", "train")), [0, 2, 4])
    kinds = [kind for kind, asked in cohort.clients.asked if asked == [0, 2, 4]]
    assert kinds == ["keys", "shares", "measure", "reveal", "train", "reveal"]


def test_a_spoilt_second_sum_divides_the_clients_of_the_first():
    cohort = Cohort(6, spoil(5))
    assert_sum_of(cohort.round(("measure", "train")), [0, 2, 4])


# --- what it must not cost ------------------------------------------------------------------------


def cells(sets):
    """The smallest groups whose sums the sums over `sets` can be combined to."""
    everyone = sorted(set().union(*sets))
    signature = {c: tuple(c in group for group in sets) for c in everyone}
    return [[c for c in everyone if signature[c] == s] for s in {*signature.values()}]


@pytest.mark.parametrize("minimum", [2, 3, 4, 5])
@pytest.mark.parametrize("count", [5, 6, 9, 12, 17])
@pytest.mark.parametrize("spoilers", [(0,), (3,), (1, 2), (0, 1, 2, 3, 4)])
def test_no_combination_of_a_rounds_sums_is_over_few_clients(unmasked, count, minimum, spoilers):
    """Even if the server could read the lost ones, as where only the count was spoilt."""
    cohort, unmasked.spoilers = Cohort(count, None, minimum=minimum), {*spoilers}
    for _ in range(5):
        asked = set(range(count)) - cohort.collector.excluded
        unmasked.asked.clear()
        for _ in range(2):  # a round that is lost begins anew
            try:
                cohort.round()
                break
            except SumLost:
                pass
        least = min(len(asked), max(SMALLEST, minimum))
        assert all(len(cell) >= least for cell in cells([{*group} for group in unmasked.asked]))


@pytest.mark.parametrize("settings", [{}, {"minimum": 4}, {"threshold": 4}])
def test_clients_too_few_for_two_halves_are_not_divided(settings, caplog):
    """Then nobody can be named; the reason is said."""
    cohort = Cohort(5 if not settings else 7, spoil(1), **settings)
    everyone = sorted(cohort.questions)
    with pytest.raises(SumLost, match=rf"'train': {TRIALS} sums in a row are lost.*do not cancel"):
        cohort.round()
    assert {tuple(asked) for _, asked in cohort.clients.asked} == {tuple(everyone)}
    assert named(caplog) == []


def test_two_spoilers_in_both_halves_lose_the_sum(caplog):
    cohort = Cohort(6, spoil(0, 1))
    with pytest.raises(SumLost, match="do not cancel"):
        cohort.round()
    assert named(caplog) == []


def test_a_half_with_too_few_clients_does_not_end_the_sum_of_the_other(caplog):
    """Clients 3 and 5 die while the sum is repeated; client 1 is left alone."""
    lost = spoil(0, times=1)

    def change(kind, client, packet):
        if kind == "keys" and client in (3, 5) and len(cohort.clients.asked) > 4:
            return None
        return lost(kind, client, packet)

    cohort = Cohort(6, change)
    assert_sum_of(cohort.round(), [0, 2, 4])
    assert any(line.startswith("client 1 is left out of 'train'") for line in lines_of(caplog))


def test_too_few_clients_end_the_sum_at_once():
    cohort = Cohort(6, dead("keys", 0, 1, 2, 3, 4))
    with pytest.raises(SecureError) as caught:
        cohort.round()
    assert not isinstance(caught.value, SumLost)
