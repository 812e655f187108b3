"""A client's part in secure sums: what it says when its numbers do not fit."""

import logging

import pytest
import torch
from flwr.app import RecordDict

from fedfm.deploy.errors import Refusal
from fedfm.deploy.masking import Masker
from fedfm.deploy.packets import Packet


def prepared() -> list[tuple[Masker, Packet]]:
    """Two clients after the exchange of keys and encrypted shares, each with its next question."""
    clients = [Masker(RecordDict()) for _ in range(2)]
    for each in clients:
        each.expect(minimum=2)
    opening = Packet({"purposes": ["train"]})
    public = {str(k): each.create_keys(opening).facts["public"] for k, each in enumerate(clients)}
    encrypted_shares = [
        each.share_secrets(Packet({"client": k, "public": public, "threshold": 2})).facts["letters"]
        for k, each in enumerate(clients)
    ]
    return [
        (each, Packet({"letters": {str(1 - k): encrypted_shares[1 - k][str(k)]}, "range": 256.0}))
        for k, each in enumerate(clients)
    ]


def test_the_server_does_not_learn_which_number_is_too_large(caplog):
    caplog.set_level(logging.WARNING, "fedfm")
    client, question = prepared()[0]
    with pytest.raises(Refusal) as told:
        client.mask("train", question, {"loss": torch.tensor(7.25e30)})
    assert "does not fit into a secure sum" in str(told.value)
    assert "7.25" not in str(told.value)
    assert "7.25e+30" in caplog.text


def test_what_fits_is_hidden():
    client, question = prepared()[0]
    answer = client.mask("train", question, {"loss": torch.tensor(1.0)})
    assert [*answer.trees] == ["words"]
