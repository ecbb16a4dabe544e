"""A certificate of an authority that is made for the test."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

import trustme


class Certificate(NamedTuple):
    """
    Attributes:
        chain, key: PEM files.
        trusting: What a client checks it with.
    """

    chain: Path
    key: Path
    trusting: ssl.SSLContext


def issued_for(host: str, folder: Path) -> Certificate:
    """A certificate for a host, in files of that folder."""
    authority = trustme.CA()
    issued = authority.issue_cert(host)
    chain, key = folder / "chain.pem", folder / "key.pem"
    issued.private_key_pem.write_to_path(str(key))
    chain.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    return Certificate(chain, key, trusting)
