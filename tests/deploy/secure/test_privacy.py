"""What the server sees of one client is noise, before and after the sum; and the tests can tell."""

from secrets import token_bytes

import numpy as np
import pytest
import scipy
import torch
from Crypto.Cipher import AES

from fedfm.deploy import secure
from fedfm.deploy.errors import SecureError
from fedfm.deploy.secure import Words, client, keys
from fedfm.deploy.secure.masks import apply_masks
from fedfm.deploy.secure.shares import rebuild_secret
from tests.deploy.secure.rounds import PURPOSES, begin, same, words

CLIENTS, THRESHOLD, SIZE = 4, 3, 8000
RARE = 1e-7
"""A sound sum fails a test here that often by chance."""


def looks_uniform(seen: Words) -> bool:
    """Chi-square of the bytes of the words."""
    counts = np.bincount(seen.bulk.view(np.uint8), minlength=256)
    return bool(scipy.stats.chisquare(counts).pvalue > RARE)


def look_independent(ours: Words, theirs: Words) -> bool:
    """Correlation of the words as numbers, and of each of their bytes."""
    one, two = ([w.bulk, *w.bulk.view(np.uint8).reshape(-1, 4).T] for w in (ours, theirs))
    pairs = zip(one, two, strict=True)
    return all(
        scipy.stats.pearsonr(a.astype(float), b.astype(float)).pvalue > RARE for a, b in pairs
    )


def contributions(scale=0.1):
    return {each: words(each, CLIENTS, SIZE, scale) for each in range(CLIENTS)}


def contributed(scale=0.1):
    round = begin(CLIENTS, THRESHOLD)
    round.contribute("train", contributions(scale))
    return round


def rebuilt(round, purpose, kind, owner, answers):
    """The secret of a client that the server puts together from the answers."""
    told = round.keys[owner]
    fits = {
        "seed": lambda secret: keys.commitment(secret) == told.commitments[purpose],
        "key": lambda secret: keys.public_key(secret) == told.masking[purpose],
    }
    shares = {each: answer[owner] for each, answer in answers.items() if owner in answer}
    return rebuild_secret(shares, THRESHOLD, fits[kind], owner).secret


def without_self_mask(seen, seed, purpose="train"):
    return apply_masks(seen, [], [keys.self_mask_key(seed, purpose)])


def without_pair_masks(seen, round, key, owner, purpose="train"):
    pairs = {
        peer: keys.pair_mask_key(key, told.masking[purpose], purpose)
        for peer, told in round.keys.items()
        if peer != owner
    }
    return apply_masks(
        seen, [pairs[p] for p in pairs if p < owner], [pairs[p] for p in pairs if p > owner]
    )


def view_of_survivor(round):
    """Client 1's words without its own mask: all that the server can do where it survived."""
    answers = round.reveal("train", range(CLIENTS), range(CLIENTS))
    return without_self_mask(round.seen["train"][1], rebuilt(round, "train", "seed", 1, answers))


def view_of_late_client(round):
    """Client 1's words without pair masks: they came after the others had given its key."""
    left = [0, 2, 3]
    answers = round.reveal("train", left, left)
    key = rebuilt(round, "train", "key", 1, answers)
    return without_pair_masks(round.seen["train"][1], round, key, 1)


@pytest.mark.parametrize("scale", [0.0, 0.1, 0.5])
def test_masked_words_are_noise_whatever_they_hide(scale):
    for given_in in contributions(scale).values():
        assert not looks_uniform(given_in)
    for seen in contributed(scale).seen["train"].values():
        assert looks_uniform(seen)


@pytest.mark.parametrize("view", [view_of_survivor, view_of_late_client])
def test_what_remains_after_the_sum_is_noise(view):
    assert looks_uniform(view(contributed()))


def planted(monkeypatch, masks):
    monkeypatch.setattr(client, "apply_masks", masks)


def test_a_sum_without_self_masks_is_caught(monkeypatch):
    planted(monkeypatch, lambda hidden, plus, minus: apply_masks(hidden, plus[1:], minus))
    view = view_of_late_client(contributed())
    assert not looks_uniform(view)
    assert same(view, contributions()[1])


def test_a_sum_without_pair_masks_is_caught(monkeypatch):
    planted(monkeypatch, lambda hidden, plus, minus: apply_masks(hidden, plus[:1], []))
    view = view_of_survivor(contributed())
    assert not looks_uniform(view)
    assert same(view, contributions()[1])


def test_the_same_input_looks_new_in_every_session_purpose_and_client():
    round, other = contributed(0.0), contributed(0.0)
    round.contribute("measure", contributions(0.0))
    seen = round.seen["train"]
    assert look_independent(seen[1], other.seen["train"][1])
    assert look_independent(seen[1], round.seen["measure"][1])
    assert look_independent(seen[1], seen[2])


def test_a_mask_that_is_used_again_is_caught():
    round = begin(CLIENTS, THRESHOLD)
    forgetful = round.sessions[1]
    sent = [secure.mask(forgetful, "train", words(1, CLIENTS, SIZE, s))[1] for s in (0.0, 0.5)]
    assert not look_independent(*sent)


def test_words_of_both_kinds_have_masks_of_their_own():
    round = begin(CLIENTS, THRESHOLD)
    zeros = Words.zeros(4000, 2000)
    _, seen = secure.mask(round.sessions[1], "train", zeros)
    fine = Words(seen.fine.view(np.uint32), seen.fine)
    assert looks_uniform(fine)
    assert look_independent(seen, fine)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_mask_is_aes_256_in_counter_mode_from_the_whole_key(threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    key, size = token_bytes(32), 150_001
    masked = apply_masks(Words.zeros(size, size), [key], [])
    for kind, found in enumerate((masked.bulk.tobytes(), masked.fine.tobytes())):
        cipher = AES.new(key, AES.MODE_CTR, nonce=bytes([kind]), initial_value=0)
        assert found == cipher.encrypt(bytes(len(found)))
    assert same(apply_masks(masked, [], [key]), Words.zeros(size, size))


def test_two_clients_have_a_mask_in_common_that_no_third_has():
    one, two, three = (keys.fresh_secret() for _ in range(3))
    ours = keys.pair_mask_key(one, keys.public_key(two), "train")
    assert ours == keys.pair_mask_key(two, keys.public_key(one), "train")
    assert ours != keys.pair_mask_key(two, keys.public_key(one), "measure")
    assert ours != keys.pair_mask_key(three, keys.public_key(one), "train")


def attack(round):
    """Client 1 is in the sum of `measure` and drops out of `train`: what it sent to the first."""
    left = [0, 2, 3]
    round.contribute("measure", contributions())
    first = round.reveal("measure", range(CLIENTS), range(CLIENTS))
    round.contribute("train", {each: contributions()[each] for each in left})
    second = round.reveal("train", left, left)
    seed = rebuilt(round, "measure", "seed", 1, first)
    key = rebuilt(round, "train", "key", 1, second)
    half = without_self_mask(round.seen["measure"][1], seed, "measure")
    return without_pair_masks(half, round, key, 1, "measure")


def with_one_key(purposes):
    """What `opened` does, with a single key pair for all purposes."""
    session, _ = secure.open_session(purposes)
    key = session.secrets[PURPOSES[0]].key
    secrets = {name: pair.model_copy(update={"key": key}) for name, pair in session.secrets.items()}
    session = session.model_copy(update={"secrets": secrets})
    return session, session.public


def test_dropping_out_of_the_second_sum_does_not_open_the_first():
    assert looks_uniform(attack(begin(CLIENTS, THRESHOLD)))


def test_with_one_key_for_both_sums_it_would():
    found = attack(begin(CLIENTS, THRESHOLD, opening=with_one_key))
    assert same(found, contributions()[1])


def test_fewer_than_the_threshold_rebuild_nothing():
    round = contributed()
    answers = round.reveal("train", range(CLIENTS), range(THRESHOLD - 1))
    shares = {each: answer[1] for each, answer in answers.items()}
    seed = round.sessions[1].secrets["train"].seed
    with pytest.raises(SecureError, match=r"client 1\b"):
        rebuild_secret(shares, THRESHOLD - 1, lambda found: found == seed, owner=1)
