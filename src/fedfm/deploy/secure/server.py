"""The server's side: what remains to be done when all masked words are added up."""

from collections.abc import Callable, Collection, Mapping

from fedfm.deploy.secure import keys
from fedfm.deploy.secure.errors import insist
from fedfm.deploy.secure.masks import with_masks
from fedfm.deploy.secure.session import PublicKeys, position
from fedfm.deploy.secure.shares import combined, is_share
from fedfm.deploy.secure.words import Words

Answers = Mapping[int, Mapping[int, bytes]]
"""By client that answered: its share for each client, as `revealed` gave it."""


def check_answer(
    client: int,
    answer: Mapping[int, bytes],
    public: Mapping[int, PublicKeys],
    survivors: Collection[int],
    dropped: Collection[int],
) -> None:
    """Refuse an answer from a stranger, or one that has not a share of the right form for each."""
    asked = {*survivors, *dropped}
    insist(client in asked, "it answered without being asked", client)
    whole = answer.keys() == asked - ({client} & {*dropped})
    insist(whole, "its answer has not a share for each client", client)
    index = position(public, client)
    right = all(is_share(share, index) for share in answer.values())
    insist(right, "its answer has something that is no share", client)


def unmasked(
    total: Words,
    purpose: str,
    public: Mapping[int, PublicKeys],
    survivors: Collection[int],
    dropped: Collection[int],
    answers: Answers,
    threshold: int,
) -> Words:
    """The sum of the survivors' contributions, from the sum of what they sent.

    `public` has all the keys that were sent round in step 2; `dropped` took part with their letters
    but are not in the sum. Raises a `SecureError` if fewer than `threshold` are left.
    """
    insist(len(survivors) >= threshold, _few(purpose, "contributed", len(survivors), threshold))
    insist(len(answers) >= threshold, _few(purpose, "answered", len(answers), threshold))
    for client, answer in answers.items():
        check_answer(client, answer, public, survivors, dropped)
    seeds = [
        _rebuilt(owner, answers, threshold, _is_seed(public[owner], purpose)) for owner in survivors
    ]
    plus: list[bytes] = []
    minus = [keys.self_mask_key(seed, purpose) for seed in seeds]
    for owner in dropped:
        key = _rebuilt(owner, answers, threshold, _is_key(public[owner], purpose))
        for peer in survivors:
            pair = keys.pair_mask_key(key, public[peer].masking[purpose], purpose)
            (plus if peer > owner else minus).append(pair)
    return with_masks(total, plus, minus)


def _few(purpose: str, did: str, clients: int, threshold: int) -> str:
    return f"'{purpose}': {clients} clients {did}, {threshold} are needed; this sum is lost"


def _rebuilt(owner: int, answers: Answers, threshold: int, fits: Callable[[bytes], bool]) -> bytes:
    shares = {client: answer[owner] for client, answer in answers.items() if owner in answer}
    return combined(shares, threshold, fits, owner)


def _is_seed(told: PublicKeys, purpose: str) -> Callable[[bytes], bool]:
    return lambda seed: keys.commitment(seed) == told.commitments[purpose]


def _is_key(told: PublicKeys, purpose: str) -> Callable[[bytes], bool]:
    return lambda key: keys.public_key(key) == told.masking[purpose]
