"""The client's side: each step takes a session and returns the next one and what to send."""

from collections.abc import Collection, Iterable, Mapping

from cryptography.fernet import InvalidToken
from flwr.common.secure_aggregation.crypto.shamir import create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt

from fedfm.deploy.errors import BadEncryptedShares, SecureError, insist
from fedfm.deploy.secure import keys
from fedfm.deploy.secure.masked_integers import Words
from fedfm.deploy.secure.masks import apply_masks
from fedfm.deploy.secure.session import (
    Pair,
    PeerShares,
    PublicKeys,
    Session,
    digest_setup,
    share_index,
)
from fedfm.deploy.secure.shares import is_share


def open_session(purposes: Iterable[str]) -> tuple[Session, PublicKeys]:
    """Step 1: draw secrets for each sum of the round; return the public keys for the server."""
    secrets = {
        purpose: Pair(seed=keys.fresh_secret(), key=keys.fresh_secret())
        for purpose in sorted(set(purposes))
    }
    session = Session(encryption=keys.fresh_secret(), secrets=secrets)
    return session, session.public


def share_secrets(
    session: Session,
    client: int,
    public: Mapping[int, PublicKeys],
    threshold: int,
    minimum: int = 2,
) -> tuple[Session, dict[int, bytes]]:
    """Step 2: split this client's secrets into shares; encrypt some for every other client.

    Any `threshold` clients together can rebuild a secret; fewer learn nothing. A threshold below
    `minimum` is refused: the server could unmask a sum of fewer clients.
    """
    insist(not session.keys, "this client has already sent its shares")
    _check_members(session, client, public)
    _check_threshold(threshold, len(public), max(2, minimum))
    parts = _split_secrets(session, threshold, len(public))
    setup = {
        "client": client,
        "threshold": threshold,
        "keys": dict(public),
        "agreement": digest_setup(public, threshold),
        "held": {client: parts[share_index(public, client) - 1]},
    }
    session = session.model_copy(update=setup)
    others = (peer for peer in public if peer != client)
    return session, {peer: _seal(session, peer, parts) for peer in others}


def accept_encrypted_shares(session: Session, encrypted_shares: Mapping[int, bytes]) -> Session:
    """Step 3: read the encrypted shares of the others; these clients and this one take part.

    A second call with encrypted shares of the same senders changes nothing.
    """
    insist(bool(session.keys), "this client has not sent its shares yet")
    strangers = encrypted_shares.keys() - session.keys.keys() | encrypted_shares.keys() & {
        session.client
    }
    insist(not strangers, f"shares from {sorted(strangers)}, which are not other clients here")
    if len(session.held) > 1:
        same = encrypted_shares.keys() | {session.client} == session.held.keys()
        insist(same, "this client has already accepted the encrypted shares of other clients")
        return session
    few = f"{len(encrypted_shares) + 1} clients sent shares, {session.threshold} are needed"
    insist(len(encrypted_shares) + 1 >= session.threshold, few)
    shares = {
        sender: _unseal(session, sender, sealed) for sender, sealed in encrypted_shares.items()
    }
    return session.model_copy(update={"held": {**session.held, **shares}})


def mask(session: Session, purpose: str, words: Words) -> tuple[Session, Words]:
    """Step 4, once per purpose: hide the contribution; without all the masks it is noise."""
    _check_purpose(session, purpose)
    insist(len(session.held) > 1, "this client has no encrypted shares from the others yet")
    used = purpose in session.masked or purpose in session.answered
    insist(not used, f"this client has already masked '{purpose}', or that sum is over")
    secrets = session.secrets[purpose]
    pairs = {
        peer: keys.pair_mask_key(secrets.key, session.keys[peer].masking[purpose], purpose)
        for peer in session.held
        if peer != session.client
    }
    plus = [key for peer, key in pairs.items() if peer > session.client]
    minus = [key for peer, key in pairs.items() if peer < session.client]
    hidden = apply_masks(words, [keys.self_mask_key(secrets.seed, purpose), *plus], minus)
    return session.model_copy(update={"masked": session.masked | {purpose}}), hidden


def reveal_shares(
    session: Session, purpose: str, survivors: Collection[int], dropped: Collection[int]
) -> tuple[Session, dict[int, bytes]]:
    """Step 5: return a share of each survivor's seed and of each dropped client's key.

    Never return both for one client: after the first answer, a purpose is answered only for the
    same survivors.
    """
    _check_purpose(session, purpose)
    left, gone = frozenset(survivors), frozenset(dropped)
    _check_request(session, purpose, left, gone)
    shares = {peer: session.held[peer][purpose].seed for peer in left}
    shares |= {peer: session.held[peer][purpose].key for peer in gone - {session.client}}
    answered = {**session.answered, purpose: left}
    return session.model_copy(update={"answered": answered}), shares


def _check_purpose(session: Session, purpose: str) -> None:
    known = ", ".join(session.secrets)
    insist(purpose in session.secrets, f"no keys for '{purpose}', only for {known}")


def _check_members(session: Session, client: int, public: Mapping[int, PublicKeys]) -> None:
    listed = public.get(client) == session.public
    insist(listed, "the list of keys does not hold the keys that this client sent", client)
    for peer, peer_keys in public.items():
        peer_keys.check(session.secrets, peer)


def _check_threshold(threshold: int, clients: int, minimum: int) -> None:
    safe = minimum <= threshold <= clients < 2 * threshold
    rule = f"more than half of the {clients} clients, at least {minimum} and at most all"
    insist(safe, f"a threshold of {threshold} is not allowed: it must be {rule}")


def _split_secrets(session: Session, threshold: int, clients: int) -> list[dict[str, Pair]]:
    """Return the shares by index, then by purpose."""
    shares = {
        purpose: [
            create_shares(secret, threshold, clients) for secret in (secrets.seed, secrets.key)
        ]
        for purpose, secrets in session.secrets.items()
    }
    return [
        {purpose: Pair(seed=seed[i], key=key[i]) for purpose, (seed, key) in shares.items()}
        for i in range(clients)
    ]


def _seal(session: Session, peer: int, parts: list[dict[str, Pair]]) -> bytes:
    content = PeerShares(
        sender=session.client,
        receiver=peer,
        agreement=session.agreement,
        shares=parts[share_index(session.keys, peer) - 1],
    )
    return encrypt(_peer_key(session, peer), content.to_bytes())


def _unseal(session: Session, sender: int, sealed: bytes) -> dict[str, Pair]:
    try:
        content = PeerShares.from_bytes(decrypt(_peer_key(session, sender), sealed))
    except (InvalidToken, TypeError, SecureError):
        raise BadEncryptedShares(
            "its encrypted shares cannot be read: they were changed on the way", sender
        ) from None
    if problem := _find_problem(session, sender, content):
        raise BadEncryptedShares(problem, sender)
    return content.shares


def _find_problem(session: Session, sender: int, content: PeerShares) -> str | None:
    """Return why encrypted shares cannot be used; None if they can."""
    if (content.sender, content.receiver) != (sender, session.client):
        return "its encrypted shares are from or for another client"
    if content.agreement != session.agreement:
        return "it received other keys or another threshold than this client"
    index = share_index(session.keys, session.client)
    shares = [share for pair in content.shares.values() for share in (pair.seed, pair.key)]
    whole = content.shares.keys() == session.secrets.keys()
    fine = whole and all(is_share(share, index) for share in shares)
    return None if fine else "its encrypted shares are incomplete"


def _peer_key(session: Session, peer: int) -> bytes:
    return keys.derive_shared_key(session.encryption, session.keys[peer].encryption)


def _check_request(
    session: Session, purpose: str, left: frozenset[int], gone: frozenset[int]
) -> None:
    both = sorted(left & gone)
    insist(not both, f"asked for both secrets of {both}, which would show what they sent")
    everyone = left | gone == session.held.keys()
    insist(everyone, "asked about other clients than those that take part")
    few = f"{len(left)} clients contributed to '{purpose}', {session.threshold} are needed"
    insist(len(left) >= session.threshold, few)
    took_part = session.client not in left or purpose in session.masked
    insist(took_part, f"this client has not contributed to '{purpose}'", session.client)
    before = session.answered.get(purpose, left)
    insist(before == left, f"'{purpose}' was already answered for other survivors")
