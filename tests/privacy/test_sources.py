"""Noise is Gaussian, independent wherever it should be, and secret where it must be."""

import math
import sys

import pytest
import scipy
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedfm.core.errors import UserError
from fedfm.privacy import add_noise, keyed_normals, secret_normals
from fedfm.privacy.gaussian_mechanism import BLOCK
from fedfm.privacy.noise import box_muller
from tests.privacy.test_gaussian_mechanism import NEVER, vectors


def noise_of(normals, size=40_000):
    return vectors(add_noise({"w": torch.zeros(len(normals), size)}, 1.0, normals))


def test_noise_is_independent_between_clients_rounds_purposes_and_coordinates():
    draws = torch.cat(
        [
            noise_of([secret_normals] * 2),
            noise_of([secret_normals]),
            noise_of(keyed_normals(0, 0, [0, 1], "update")),
            noise_of(keyed_normals(0, 1, [0], "update")),
            noise_of(keyed_normals(0, 0, [0], "report")),
            noise_of(keyed_normals(1, 0, [0], "update")),
        ]
    )
    limit = scipy.stats.norm.isf(NEVER) / math.sqrt(draws.shape[1])
    between = torch.corrcoef(draws) - torch.eye(len(draws))
    assert float(between.abs().max()) < limit
    for lag in (1, 2, 20_000):
        along = (draws[:, lag:] * draws[:, :-lag]).mean(1) * math.sqrt(1 - lag / draws.shape[1])
        assert float(along.abs().max()) < limit


def test_secret_noise_is_gaussian_and_never_the_same():
    draws = secret_normals(200_001)
    assert draws.shape == (200_001,)
    assert scipy.stats.kstest(draws.numpy(), "norm").pvalue > NEVER
    assert float(draws.abs().max()) > 3.5
    assert len(secret_normals(1)) == 1
    assert not torch.equal(secret_normals(8), secret_normals(8))


def test_every_block_of_secret_noise_has_a_key_of_the_operating_system(monkeypatch):
    asked = []

    def remembering(size):
        asked.append(size)
        return bytes(size)

    monkeypatch.setattr("os.urandom", remembering)
    drawn = secret_normals(6)
    assert asked == [32, 16]
    cipher = Cipher(algorithms.AES(bytes(32)), modes.CTR(bytes(16)))
    assert torch.equal(drawn, box_muller(cipher.encryptor().update(bytes(48))))
    add_noise({"w": torch.zeros(1, 2 * BLOCK + 1)}, 1.0, [secret_normals])
    assert asked == [32, 16] * 4


def test_box_muller_follows_its_formula_and_meets_no_infinity():
    half, quarter, none, all_ = 2**63, 2**62, 0, 2**64 - 1
    randomness = b"".join(n.to_bytes(8, "little") for n in (half, all_, quarter, none))
    drawn = box_muller(randomness)
    near, far = math.sqrt(2 * math.log(2)), math.sqrt(2 * 53 * math.log(2))
    torch.testing.assert_close(drawn, torch.tensor([0, far, near, 0], dtype=torch.float64))
    assert box_muller(bytes(16)).tolist() == [0, 0]


def test_secret_noise_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(UserError, match=r"pip install '\.\[privacy\]'"):
        secret_normals(2)
