"""The server's side: remove the masks from the sum of the masked words."""

from collections.abc import Callable, Collection, Mapping

from fedfm.deploy.errors import insist
from fedfm.deploy.secure import keys
from fedfm.deploy.secure.masks import apply_masks
from fedfm.deploy.secure.session import PublicKeys, share_index
from fedfm.deploy.secure.shares import is_share, rebuild_secret
from fedfm.deploy.secure.words import Words

Shares = Mapping[int, Mapping[int, bytes]]
"""By client that answered: its share for each client, as `reveal_shares` returned it."""


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
) -> Words:
    """Return the sum of the survivors' contributions, given the sum of their masked words.

    `public` holds all keys that were sent in step 2; the clients in `dropped` sent letters but are
    not in the sum. Raise a `SecureError` if fewer than `threshold` clients are left.
    """
    insist(len(survivors) >= threshold, _few(purpose, "contributed", len(survivors), threshold))
    insist(len(shares) >= threshold, _few(purpose, "answered", len(shares), threshold))
    for client, given in shares.items():
        check_shares(client, given, public, survivors, dropped)
    seeds = [
        _rebuild(owner, shares, threshold, _is_seed(public[owner], purpose)) for owner in survivors
    ]
    plus: list[bytes] = []
    minus = [keys.self_mask_key(seed, purpose) for seed in seeds]
    for owner in dropped:
        key = _rebuild(owner, shares, threshold, _is_key(public[owner], purpose))
        for peer in survivors:
            pair = keys.pair_mask_key(key, public[peer].masking[purpose], purpose)
            (plus if peer > owner else minus).append(pair)
    return apply_masks(total, plus, minus)


def _few(purpose: str, did: str, clients: int, threshold: int) -> str:
    return f"'{purpose}': {clients} clients {did}, {threshold} are needed; this sum is lost"


def _rebuild(owner: int, shares: Shares, threshold: int, fits: Callable[[bytes], bool]) -> bytes:
    by_client = {client: given[owner] for client, given in shares.items() if owner in given}
    return rebuild_secret(by_client, threshold, fits, owner)


def _is_seed(public: PublicKeys, purpose: str) -> Callable[[bytes], bool]:
    return lambda seed: keys.commitment(seed) == public.commitments[purpose]


def _is_key(public: PublicKeys, purpose: str) -> Callable[[bytes], bool]:
    return lambda key: keys.public_key(key) == public.masking[purpose]
