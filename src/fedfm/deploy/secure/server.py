"""The server's side: remove the masks from the sum of the masked words."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from fedfm.deploy.errors import SecureError, SumLost, insist
from fedfm.deploy.secure import keys
from fedfm.deploy.secure.masked_integers import Words
from fedfm.deploy.secure.masks import apply_masks
from fedfm.deploy.secure.session import PublicKeys, share_index
from fedfm.deploy.secure.shares import is_share, rebuild_secret

Shares = Mapping[int, Mapping[int, bytes]]
"""By client that answered: its share for each client, as `reveal_shares` returned it."""


class Unmasked(NamedTuple):
    """A sum, and the clients that have sent wrong shares or given wrong ones to others."""

    words: Words
    liars: frozenset[int]


def check_shares(
    client: int,
    shares: Mapping[int, bytes],
    public: Mapping[int, PublicKeys],
    survivors: Collection[int],
    dropped: Collection[int],
) -> None:
    """Refuse shares from a client that was not asked, and sets that are incomplete or malformed."""
    asked = {*survivors, *dropped}
    insist(client in asked, "it answered without being asked", client)
    whole = shares.keys() == asked - ({client} & {*dropped})
    insist(whole, "its answer does not hold one share for each client", client)
    index = share_index(public, client)
    valid = all(is_share(share, index) for share in shares.values())
    insist(valid, "its answer holds something that is not a share", client)


def unmask(
    total: Words,
    purpose: str,
    public: Mapping[int, PublicKeys],
    survivors: Collection[int],
    dropped: Collection[int],
    shares: Shares,
    threshold: int,
) -> Unmasked:
    """Return the sum of the survivors' contributions, given the sum of their masked words.

    `public` holds all keys that were sent in step 2; the clients in `dropped` sent shares but are
    not in the sum. Raise a `SecureError` if fewer than `threshold` clients are left, and `SumLost`
    if the shares do not give the secrets.
    """
    insist(len(survivors) >= threshold, _few(purpose, "contributed", len(survivors), threshold))
    insist(len(shares) >= threshold, _few(purpose, "answered", len(shares), threshold))
    for client, given in shares.items():
        check_shares(client, given, public, survivors, dropped)
    fits = {owner: _is_seed(public[owner], purpose) for owner in survivors}
    fits |= {owner: _is_key(public[owner], purpose) for owner in dropped}
    secrets, liars = _rebuild_all(fits, shares, threshold)
    plus: list[bytes] = []
    minus = [keys.self_mask_key(secrets[owner], purpose) for owner in survivors]
    for owner in dropped:
        for peer in survivors:
            pair = keys.pair_mask_key(secrets[owner], public[peer].masking[purpose], purpose)
            (plus if peer > owner else minus).append(pair)
    return Unmasked(apply_masks(total, plus, minus), liars)


def _few(purpose: str, did: str, clients: int, threshold: int) -> str:
    return f"'{purpose}': {clients} clients {did}, {threshold} are needed; this sum is lost"


Fits = Mapping[int, Callable[[bytes], bool]]
"""By owner of a secret: whether bytes are this secret."""


def _rebuild_all(
    fits: Fits, shares: Shares, threshold: int
) -> tuple[dict[int, bytes], frozenset[int]]:
    """Return the secrets by owner, and the clients that lie.

    Raise `SumLost` if a secret cannot be rebuilt.
    """
    secrets, pairs, lost = {}, list[tuple[int, int]](), dict[int, str]()
    for owner, fit in fits.items():
        given = {client: parts[owner] for client, parts in shares.items() if owner in parts}
        try:
            secrets[owner], wrong = rebuild_secret(given, threshold, fit, owner)
            pairs += [(owner, client) for client in wrong]
        except SecureError as problem:
            lost[owner] = str(problem)
    if lost:
        raise SumLost("; ".join(lost.values()), _find_bad_dealers(lost, fits, shares, threshold))
    return secrets, _find_liars(pairs)


def _find_bad_dealers(
    lost: Collection[int], fits: Fits, shares: Shares, threshold: int
) -> Collection[int]:
    """Return the owners that gave wrong shares to others, if it must have been them.

    With a share more than needed, one client that lies cannot spoil the secret of another. Where
    the same clients' shares give most other secrets, the owners of the lost ones are at fault.
    """
    certain = len(shares) > threshold and 2 * len(lost) < len(fits)
    return lost if certain else ()


def _find_liars(pairs: Collection[tuple[int, int]]) -> frozenset[int]:
    """Return who is at fault, given pairs of an owner and a client with a wrong share of it.

    A single pair does not tell which of the two lies. Of several pairs, it is who is in most.
    """
    counts = Counter(client for pair in pairs for client in {*pair})
    most = max(counts.values(), default=0)
    liars = {client for client, count in counts.items() if count == most}
    return frozenset(liars) if most > 1 and len(liars) == 1 else frozenset()


def _is_seed(public: PublicKeys, purpose: str) -> Callable[[bytes], bool]:
    return lambda seed: keys.commitment(seed) == public.commitments[purpose]


def _is_key(public: PublicKeys, purpose: str) -> Callable[[bytes], bool]:
    return lambda key: keys.public_key(key) == public.masking[purpose]
