"""The client's side: each step takes a session and gives the next one and what to send."""

from collections.abc import Collection, Iterable, Mapping

from cryptography.fernet import InvalidToken
from flwr.common.secure_aggregation.crypto.shamir import create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt

from fedfm.deploy.secure import keys
from fedfm.deploy.secure.errors import SecureError, insist
from fedfm.deploy.secure.masks import with_masks
from fedfm.deploy.secure.session import Letter, Pair, PublicKeys, Session, agreement, position
from fedfm.deploy.secure.shares import is_share
from fedfm.deploy.secure.words import Words


def opened(purposes: Iterable[str]) -> tuple[Session, PublicKeys]:
    """Step 1: fresh secrets for each sum of the round, and the public keys for the server."""
    secrets = {
        purpose: Pair(seed=keys.fresh_secret(), key=keys.fresh_secret())
        for purpose in sorted(set(purposes))
    }
    session = Session(encryption=keys.fresh_secret(), secrets=secrets)
    return session, session.public


def shared(
    session: Session, own: int, public: Mapping[int, PublicKeys], threshold: int
) -> tuple[Session, dict[int, bytes]]:
    """Step 2: this client's secrets in shares, a letter for every other client whose keys came.

    Any `threshold` clients together can rebuild a secret, fewer learn nothing.
    """
    insist(not session.keys, "this client has sent its shares already")
    _check_members(session, own, public, threshold)
    parts = _parts(session, threshold, len(public))
    mine = parts[position(public, own) - 1]
    session = session.having(
        own=own,
        threshold=threshold,
        keys=dict(public),
        agreement=agreement(public, threshold),
        held={own: mine},
    )
    others = (peer for peer in public if peer != own)
    return session, {peer: _sealed(session, peer, parts) for peer in others}


def accepted(session: Session, letters: Mapping[int, bytes]) -> Session:
    """Step 3: the letters of the others that sent theirs; from now on these and we take part.

    May be called again with letters of the same senders, which then changes nothing.
    """
    own = session.own
    insist(bool(session.keys), "this client has not sent its shares yet")
    strangers = letters.keys() - session.keys.keys() | letters.keys() & {own}
    insist(not strangers, f"letters from {sorted(strangers)}, which are no other clients' numbers")
    if len(session.held) > 1:
        same = letters.keys() | {own} == session.held.keys()
        insist(same, "this client has accepted the letters of other clients before")
        return session
    few = f"{len(letters) + 1} clients sent shares, {session.threshold} are needed"
    insist(len(letters) + 1 >= session.threshold, few)
    read = {sender: _unsealed(session, sender, letter) for sender, letter in letters.items()}
    return session.having(held={**session.held, **read})


def masked(session: Session, purpose: str, words: Words) -> tuple[Session, Words]:
    """Step 4, once per purpose: the contribution, which without all the masks is noise."""
    _check_purpose(session, purpose)
    insist(len(session.held) > 1, "this client has no letters from the others yet")
    used = purpose in session.masked or purpose in session.answered
    insist(not used, f"this client has masked '{purpose}' before, or that sum is over")
    secrets = session.secrets[purpose]
    pairs = {
        peer: keys.pair_mask_key(secrets.key, session.keys[peer].masking[purpose], purpose)
        for peer in session.held
        if peer != session.own
    }
    plus = [key for peer, key in pairs.items() if peer > session.own]
    minus = [key for peer, key in pairs.items() if peer < session.own]
    hidden = with_masks(words, [keys.self_mask_key(secrets.seed, purpose), *plus], minus)
    return session.having(masked=session.masked | {purpose}), hidden


def revealed(
    session: Session, purpose: str, survivors: Collection[int], dropped: Collection[int]
) -> tuple[Session, dict[int, bytes]]:
    """Step 5: a share per client: of the seed of a survivor, of the key of one that dropped out.

    Never of both: after the first answer the same purpose has the same survivors or no answer.
    """
    _check_purpose(session, purpose)
    left, gone = frozenset(survivors), frozenset(dropped)
    _check_request(session, purpose, left, gone)
    answer = {peer: session.held[peer][purpose].seed for peer in left}
    answer |= {peer: session.held[peer][purpose].key for peer in gone - {session.own}}
    return session.having(answered={**session.answered, purpose: left}), answer


def _check_purpose(session: Session, purpose: str) -> None:
    known = ", ".join(session.secrets)
    insist(purpose in session.secrets, f"no keys for '{purpose}', only for {known}")


def _check_members(
    session: Session, own: int, public: Mapping[int, PublicKeys], threshold: int
) -> None:
    insist(public.get(own) == session.public, "the list of keys has not this client's own", own)
    for peer, told in public.items():
        told.check(session.secrets, peer)
    safe = 2 <= threshold <= len(public) < 2 * threshold
    rule = f"more than half of the {len(public)} clients, at least 2, and no more than all"
    insist(safe, f"a threshold of {threshold} does not do: it must be {rule}")


def _parts(session: Session, threshold: int, clients: int) -> list[dict[str, Pair]]:
    """The shares by position, then by purpose."""
    split = {
        purpose: [
            create_shares(secret, threshold, clients) for secret in (secrets.seed, secrets.key)
        ]
        for purpose, secrets in session.secrets.items()
    }
    return [
        {purpose: Pair(seed=seed[i], key=key[i]) for purpose, (seed, key) in split.items()}
        for i in range(clients)
    ]


def _sealed(session: Session, peer: int, parts: list[dict[str, Pair]]) -> bytes:
    letter = Letter(
        sender=session.own,
        receiver=peer,
        agreement=session.agreement,
        shares=parts[position(session.keys, peer) - 1],
    )
    return encrypt(_letter_key(session, peer), letter.to_bytes())


def _unsealed(session: Session, sender: int, sealed: bytes) -> dict[str, Pair]:
    try:
        letter = Letter.from_bytes(decrypt(_letter_key(session, sender), sealed))
    except (InvalidToken, TypeError, SecureError):
        raise SecureError("its letter cannot be read: it is not as it was sent", sender) from None
    addressed = (letter.sender, letter.receiver) == (sender, session.own)
    insist(addressed, "its letter is of or for another client", sender)
    same = letter.agreement == session.agreement
    insist(same, "it was told other keys or another threshold than this client", sender)
    index = position(session.keys, session.own)
    shares = [share for pair in letter.shares.values() for share in (pair.seed, pair.key)]
    whole = letter.shares.keys() == session.secrets.keys()
    insist(whole and all(is_share(s, index) for s in shares), "its letter is incomplete", sender)
    return letter.shares


def _letter_key(session: Session, peer: int) -> bytes:
    return keys.agreed(session.encryption, session.keys[peer].encryption)


def _check_request(
    session: Session, purpose: str, left: frozenset[int], gone: frozenset[int]
) -> None:
    both = sorted(left & gone)
    insist(not both, f"asked for both secrets of {both}, which would show what they sent")
    everyone = left | gone == session.held.keys()
    insist(everyone, "asked about other clients than those that take part")
    few = f"{len(left)} clients contributed to '{purpose}', {session.threshold} are needed"
    insist(len(left) >= session.threshold, few)
    took_part = session.own not in left or purpose in session.masked
    insist(took_part, f"this client has not contributed to '{purpose}'", session.own)
    before = session.answered.get(purpose, left)
    insist(before == left, f"'{purpose}' was answered before, for other survivors")
