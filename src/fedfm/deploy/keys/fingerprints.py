"""Fingerprints of public keys, as `ssh-keygen -l` prints them."""

import base64
import binascii
import hashlib

from fedfm.core.errors import UserError

TYPE = b"ecdsa-sha2-nistp"
"""How the type of key begins that Flower's node authentication takes."""


def fingerprint(public_key: bytes) -> str:
    """Return the fingerprint of a public key in OpenSSH's format; refuse anything else."""
    words = public_key.split()
    try:
        if len(words) < 2 or not words[0].startswith(TYPE):
            raise ValueError("wrong type")
        blob = base64.b64decode(words[1], validate=True)
    except (ValueError, binascii.Error) as problem:
        raise UserError(
            "it is not a public key of type ECDSA in OpenSSH's format; make one with "
            "ssh-keygen -t ecdsa -b 384"
        ) from problem
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
