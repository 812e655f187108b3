"""Secure sums: the server learns what clients' numbers add up to, and nothing of any one of them.

Double masking after Bonawitz et al. (2017), "Practical Secure Aggregation for Privacy-Preserving
Machine Learning". Pure functions on plain values; who carries the messages is another matter.

One set-up serves several sums of a round, the *purposes*, each with masks of its own:

    client   session, keys    = opened(["measure", "train"])
    server   keys.check(["measure", "train"], client)
    client   session, letters = shared(session, own, keys of all, threshold)
    client   session          = accepted(session, letters to this client)
    client   session, hidden  = masked(session, purpose, encode(bulk, fine, clients, range))
    server   total            = Words.zeros(*sizes(bulk_like, fine_like))
    server   add(total, hidden.pieces(), client)
    client   session, answer  = revealed(session, purpose, survivors, dropped)
    server   words            = unmasked(total, purpose, keys of all, survivors, dropped,
                                         answers by client, threshold)
    server   bulk, fine       = decode(words, bulk_like, fine_like, len(survivors), range)

Each step may lose clients, as long as `threshold` are left. Those lost before their letters came
do not take part at all; `survivors` and `dropped` together are those whose letters were delivered.
What does not fit raises a `SecureError`, whose `client` is the one to blame where that is known. A
session must live in memory only, and the one that a step returns must replace the one it was given:
it remembers what must not be done twice.
"""

from fedfm.deploy.secure.client import accepted, masked, opened, revealed, shared
from fedfm.deploy.secure.errors import SecureError
from fedfm.deploy.secure.numbers import decode, encode, sizes, step
from fedfm.deploy.secure.server import Answers, check_answer, unmasked
from fedfm.deploy.secure.session import PublicKeys, Session
from fedfm.deploy.secure.words import Words, add

__all__ = [
    "Answers",
    "PublicKeys",
    "SecureError",
    "Session",
    "Words",
    "accepted",
    "add",
    "check_answer",
    "decode",
    "encode",
    "masked",
    "opened",
    "revealed",
    "shared",
    "sizes",
    "step",
    "unmasked",
]
