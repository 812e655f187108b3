"""Secure sums: the server learns the sum of the clients' numbers and nothing about any one client.

Double masking after Bonawitz et al. (2017), "Practical Secure Aggregation for Privacy-Preserving
Machine Learning". All functions are pure and take plain values; the caller carries the messages.

One setup serves several sums of a round, the *purposes*. Each purpose has its own masks:

    client   session, keys    = open_session(["measure", "train"])
    server   keys.check(["measure", "train"], client)
    client   session, encrypted = share_secrets(session, client, keys of all, threshold)
    client   session          = accept_encrypted_shares(session, those to this client)
    client   session, hidden  = mask(session, purpose, encode(bulk, fine, clients, range))
    server   total            = Words.zeros(*sizes(bulk_like, fine_like))
    server   add(total, hidden.pieces(), client)
    client   session, shares  = reveal_shares(session, purpose, survivors, dropped)
    server   words, liars     = unmask(total, purpose, keys of all, survivors, dropped,
                                       shares by client, threshold)
    server   bulk, fine       = decode(words, bulk_like, fine_like, len(survivors), range)

*Encrypted shares* are the encrypted message with the shares that one client gives another. Clients
may drop out at each step as long as `threshold` are left. A client that drops out before its
encrypted shares are delivered does not take part; `survivors` and `dropped` together are the
clients whose encrypted shares were delivered. An input that does not fit raises a `SecureError`.
Keep a session in memory only, and replace it by the one that each step returns: it records what
must not be done twice.
"""

from fedfm.deploy.secure.client import (
    accept_encrypted_shares,
    mask,
    open_session,
    reveal_shares,
    share_secrets,
)
from fedfm.deploy.secure.masked_integers import Words, add
from fedfm.deploy.secure.numbers import decode, encode, sizes, word_unit
from fedfm.deploy.secure.server import check_shares, unmask
from fedfm.deploy.secure.session import PublicKeys, Session

__all__ = [
    "PublicKeys",
    "Session",
    "Words",
    "accept_encrypted_shares",
    "add",
    "check_shares",
    "decode",
    "encode",
    "mask",
    "open_session",
    "reveal_shares",
    "share_secrets",
    "sizes",
    "unmask",
    "word_unit",
]
