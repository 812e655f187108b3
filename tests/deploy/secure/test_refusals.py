"""What must not be done is refused, and what does not fit names the client it came from."""

import numpy as np
import pytest

from fedfm.core.errors import UserError
from fedfm.deploy import secure
from fedfm.deploy.errors import SecureError
from fedfm.deploy.secure import PublicKeys, Session, Words, client
from tests.deploy.secure.rounds import PURPOSES, begin, words

EVERYONE = {0, 1, 2, 3}


@pytest.fixture
def round():
    started = begin(clients=4, threshold=3)
    started.contribute("train", {client: words(client, 4) for client in EVERYONE})
    return started


def published(clients=4):
    both = {client: secure.open_session(PURPOSES) for client in range(clients)}
    return {c: s for c, (s, _) in both.items()}, {c: k for c, (_, k) in both.items()}


def posted(threshold=3):
    """Sessions that have sent their encrypted shares, and the encrypted shares."""
    sessions, keys = published()
    encrypted_shares = {}
    for each in sessions:
        sessions[each], encrypted_shares[each] = secure.share_secrets(
            sessions[each], each, keys, threshold
        )
    return sessions, encrypted_shares


def inbox(encrypted_shares, receiver):
    return {peer: sent[receiver] for peer, sent in encrypted_shares.items() if peer != receiver}


def test_both_secrets_of_a_client_are_refused_in_one_request(round):
    with pytest.raises(SecureError, match=r"\[3\]"):
        secure.reveal_shares(round.sessions[0], "train", EVERYONE, {3})


def test_both_secrets_of_a_client_are_refused_over_two_requests(round):
    session, answer = secure.reveal_shares(round.sessions[0], "train", EVERYONE, ())
    with pytest.raises(SecureError, match=r"'train'.*answered"):
        secure.reveal_shares(session, "train", EVERYONE - {3}, {3})
    assert secure.reveal_shares(session, "train", EVERYONE, ())[1] == answer


def test_both_secrets_are_refused_after_a_restart_from_bytes(round):
    session, _ = secure.reveal_shares(round.sessions[0], "train", EVERYONE - {3}, {3})
    with pytest.raises(SecureError, match=r"'train'.*answered"):
        secure.reveal_shares(Session.from_bytes(session.to_bytes()), "train", EVERYONE, ())


def test_a_client_never_gives_its_own_key(round):
    _, answer = secure.reveal_shares(round.sessions[3], "train", EVERYONE - {3}, {3})
    assert answer.keys() == EVERYONE - {3}


def test_an_answer_has_only_what_was_asked_for(round):
    held = round.sessions[0].held
    _, answer = secure.reveal_shares(round.sessions[0], "train", EVERYONE - {3}, {3})
    assert answer[1] == held[1]["train"].seed
    assert answer[3] == held[3]["train"].key
    unsaid = {held[3]["train"].seed, held[1]["train"].key}
    unsaid |= {share for pairs in held.values() for share in dict(pairs["measure"]).values()}
    assert not unsaid & set(answer.values())


@pytest.mark.parametrize(
    ("purpose", "survivors", "dropped", "pattern"),
    [
        ("train", {0, 1}, {2, 3}, r"\b2\b.*'train'.*\b3\b"),
        ("train", {0, 1, 2}, set(), "other clients"),
        ("train", {0, 1, 2, 3}, {9}, "other clients"),
        ("measure", {0, 1, 2, 3}, set(), "client 0: .*'measure'"),
        ("sell", {0, 1, 2, 3}, set(), "'sell'.*measure, train"),
    ],
)
def test_requests_that_no_honest_server_makes(round, purpose, survivors, dropped, pattern):
    with pytest.raises(SecureError, match=pattern):
        secure.reveal_shares(round.sessions[0], purpose, survivors, dropped)


def test_nothing_is_masked_twice(round):
    with pytest.raises(SecureError, match="masked 'train'"):
        secure.mask(round.sessions[0], "train", words(0, 4))


def test_nothing_is_masked_when_the_sum_is_over():
    round = begin(clients=4, threshold=3)
    round.contribute("train", {client: words(client, 4) for client in (0, 1, 2)})
    round.reveal("train", {0, 1, 2}, EVERYONE)
    with pytest.raises(SecureError, match=r"'train'.*over"):
        secure.mask(round.sessions[3], "train", words(3, 4))


def test_nothing_is_masked_before_the_shares_came():
    sessions, _ = posted()
    with pytest.raises(SecureError, match="encrypted shares"):
        secure.mask(sessions[0], "train", words(0, 4))


def test_shares_are_made_once():
    sessions, keys = published()
    session, _ = secure.share_secrets(sessions[0], 0, keys, 3)
    with pytest.raises(SecureError, match="already"):
        secure.share_secrets(session, 0, keys, 4)


@pytest.mark.parametrize("threshold", [0, 1, 2, 5])
def test_unsafe_thresholds(threshold):
    sessions, keys = published(4)
    with pytest.raises(SecureError, match=rf"\b{threshold}\b.*\b4\b"):
        secure.share_secrets(sessions[0], 0, keys, threshold)


@pytest.mark.parametrize(("threshold", "minimum"), [(3, 4), (2, 3), (4, 5)])
def test_thresholds_below_the_minimum(threshold, minimum):
    """The server could unmask a sum of fewer clients than the config says."""
    sessions, keys = published(4 if threshold > 2 else 3)
    with pytest.raises(SecureError, match=rf"\b{threshold}\b.*at least {minimum}\b"):
        secure.share_secrets(sessions[0], 0, keys, threshold, minimum)


def test_a_client_alone_has_no_secure_sum():
    sessions, keys = published(1)
    with pytest.raises(SecureError, match=r"threshold\b.*\b1\b"):
        secure.share_secrets(sessions[0], 0, keys, 1)


def test_a_list_without_the_own_key():
    sessions, keys = published()
    with pytest.raises(SecureError, match=r"client 0: .*keys"):
        secure.share_secrets(sessions[0], 0, {**keys, 0: keys[1]}, 3)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"encryption": b"\x02" + b"\xff" * 32}, "point"),
        ({"encryption": b""}, "point"),
        ({"commitments": {"measure": b"", "train": b""}}, "commitment"),
        ({"masking": {}}, "measure, train"),
    ],
)
def test_keys_that_are_none(changes, reason):
    sessions, keys = published()
    keys[2] = keys[2].model_copy(update=changes)
    with pytest.raises(SecureError, match=f"client 2: .*{reason}") as caught:
        secure.share_secrets(sessions[0], 0, keys, 3)
    assert caught.value.client == 2


@pytest.mark.parametrize("data", [b"", b"{}", b"\x80\x04.", b"[1]", b'{"encryption": 3}'])
def test_bytes_that_are_no_keys_or_session(data):
    for kind in (PublicKeys, Session):
        with pytest.raises(SecureError, match=rf"\b{kind.__name__}\b"):
            kind.from_bytes(data)


def test_public_keys_go_through_bytes():
    _, keys = secure.open_session(PURPOSES)
    assert PublicKeys.from_bytes(keys.to_bytes()) == keys


def test_secrets_do_not_show_in_a_log(round):
    assert f"{round.sessions[0]} {round.sessions[0]!r}" == "Session(...) Session(...)"


def tampered(sealed):
    middle = len(sealed) // 2
    return sealed[:middle] + bytes([sealed[middle] ^ 1]) + sealed[middle + 1 :]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda encrypted_shares: tampered(encrypted_shares[1][0]), "read"),
        (lambda encrypted_shares: encrypted_shares[1][2], "read"),
        (lambda encrypted_shares: encrypted_shares[2][0], "read"),
        (lambda encrypted_shares: encrypted_shares[0][1], "another client"),
        (lambda encrypted_shares: b"", "read"),
    ],
    ids=["tampered", "for another", "of another", "sent back", "empty"],
)
def test_spoilt_and_swapped_shares(spoil, reason):
    sessions, encrypted_shares = posted()
    received = inbox(encrypted_shares, 0) | {1: spoil(encrypted_shares)}
    with pytest.raises(SecureError, match=f"client 1: .*encrypted shares.*{reason}") as caught:
        secure.accept_encrypted_shares(sessions[0], received)
    assert caught.value.client == 1


@pytest.mark.parametrize("share", [b"", bytes(36), b"\x02" + bytes(35), b"\x01" + bytes(36)])
def test_shares_with_what_is_no_share(share, monkeypatch):
    sessions, keys = published()
    session, _ = secure.share_secrets(sessions[0], 0, keys, 3)
    monkeypatch.setattr(client, "create_shares", lambda secret, threshold, count: [share] * count)
    encrypted_shares = {
        peer: secure.share_secrets(sessions[peer], peer, keys, 3)[1][0] for peer in (1, 2)
    }
    with pytest.raises(SecureError, match=r"client 1: .*incomplete"):
        secure.accept_encrypted_shares(session, encrypted_shares)


def test_a_server_that_tells_clients_different_things():
    sessions, keys = published()
    told = dict(keys)
    told[3] = secure.open_session(PURPOSES)[1]
    session, _ = secure.share_secrets(sessions[0], 0, keys, 3)
    _, encrypted_shares = secure.share_secrets(sessions[1], 1, told, 3)
    with pytest.raises(SecureError, match=r"client 1: .*keys"):
        secure.accept_encrypted_shares(session, {1: encrypted_shares[0], 2: encrypted_shares[0]})


def test_shares_of_strangers_and_too_early():
    sessions, encrypted_shares = posted()
    with pytest.raises(SecureError, match=r"\[9\]"):
        secure.accept_encrypted_shares(sessions[0], inbox(encrypted_shares, 0) | {9: b""})
    with pytest.raises(SecureError, match="not sent"):
        secure.accept_encrypted_shares(secure.open_session(PURPOSES)[0], inbox(encrypted_shares, 0))


def test_the_same_shares_twice_change_nothing_and_others_are_refused():
    sessions, encrypted_shares = posted()
    session = secure.accept_encrypted_shares(sessions[0], inbox(encrypted_shares, 0))
    assert secure.accept_encrypted_shares(session, inbox(encrypted_shares, 0)) == session
    with pytest.raises(SecureError, match="already"):
        secure.accept_encrypted_shares(
            session, {1: encrypted_shares[1][0], 2: encrypted_shares[2][0]}
        )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda answer: {**answer, 1: b""}, "not a share"),
        (lambda answer: {**answer, 1: bytes(36)}, "not a share"),
        (lambda answer: {**answer, 9: answer[1]}, "each client"),
        (lambda answer: {}, "each client"),
    ],
)
def test_answers_that_do_not_fit(round, change, reason):
    answers = round.reveal("train", EVERYONE, EVERYONE)
    answers[2] = change(answers[2])
    with pytest.raises(SecureError, match=f"client 2: .*{reason}") as caught:
        round.unmask("train", EVERYONE, answers)
    assert caught.value.client == 2


def test_an_answer_of_a_stranger(round):
    answers = round.reveal("train", EVERYONE, EVERYONE)
    with pytest.raises(SecureError, match=r"client 9: .*asked"):
        round.unmask("train", EVERYONE, {**answers, 9: answers[0]})


@pytest.mark.parametrize("owner", [1, 3])
def test_a_wrong_share_is_noticed(round, owner):
    survivors = EVERYONE - {3}
    answers = round.reveal("train", survivors, survivors)
    share = answers[0][owner]
    answers[0][owner] = share[:4] + bytes(32)
    with pytest.raises(SecureError, match=rf"client {owner}\b"):
        round.unmask("train", survivors, answers)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda sent: [sent.bulk, sent.fine[:-1]],
        lambda sent: [sent.bulk.astype(np.float32), sent.fine],
        lambda sent: [sent.bulk.reshape(1, -1), sent.fine],
        lambda sent: [sent.bulk],
        lambda sent: [],
    ],
)
def test_words_of_another_form_change_nothing(round, spoil):
    sent = round.seen["train"][0]
    total = Words.zeros(len(sent.bulk), len(sent.fine))
    with pytest.raises(SecureError, match="client 7: "):
        secure.add(total, spoil(sent), client=7)
    assert not total.bulk.any()


def test_errors_are_for_the_user():
    assert issubclass(SecureError, UserError)
