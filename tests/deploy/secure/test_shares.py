"""Secrets from shares: what Flower's own function gives."""

from secrets import token_bytes

import pytest
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfm.deploy.errors import SecureError
from fedfm.deploy.secure.keys import SECRET_BYTES
from fedfm.deploy.secure.shares import is_share, rebuild_secret

SECRETS = st.one_of(
    st.binary(min_size=SECRET_BYTES, max_size=SECRET_BYTES),
    st.sampled_from([bytes(SECRET_BYTES), b"\xff" * SECRET_BYTES]),
)


def rebuilt(shares, secret):
    given_in = dict(enumerate(shares))
    return rebuild_secret(given_in, len(shares), lambda found: found == secret, owner=0).secret


@given(SECRETS, st.integers(2, 12), st.data())
@settings(max_examples=30, deadline=None)
def test_enough_shares_give_the_secret_as_with_flower(secret, threshold, data):
    clients = data.draw(st.integers(threshold, 12))
    shares = create_shares(secret, threshold, clients)
    chosen = data.draw(st.permutations(shares))[:threshold]
    assert rebuilt(chosen, secret) == combine_shares(chosen) == secret


def test_more_shares_than_needed_do_no_harm():
    secret = token_bytes(SECRET_BYTES)
    shares = dict(enumerate(create_shares(secret, 3, 6)))
    assert rebuild_secret(shares, 3, lambda found: found == secret, owner=0).secret == secret


@pytest.mark.parametrize(("clients", "liars"), [(4, {0}), (6, {1, 5}), (30, {0, 7})])
def test_wrong_shares_are_found_if_there_are_enough_others(clients, liars):
    secret, threshold = token_bytes(SECRET_BYTES), 2 * clients // 3 + (clients == 4)
    shares = dict(enumerate(create_shares(secret, threshold, clients)))
    for liar in liars:
        shares[liar] = shares[liar][:4] + token_bytes(32)
    found = rebuild_secret(shares, threshold, lambda found: found == secret, owner=0)
    assert found == (secret, liars)


def test_one_share_too_few_gives_something_else():
    secret = token_bytes(SECRET_BYTES)
    with pytest.raises(SecureError, match=r"client 0\b"):
        rebuilt(create_shares(secret, 4, 6)[:3], secret)


def test_the_form_of_a_share():
    first, second = create_shares(token_bytes(SECRET_BYTES), 2, 2)
    assert is_share(first, 1)
    assert is_share(second, 2)
    assert not is_share(first, 2)
    assert not is_share(first[:-1], 1)
    assert not is_share(create_shares(token_bytes(SECRET_BYTES + 1), 2, 2)[0], 1)
