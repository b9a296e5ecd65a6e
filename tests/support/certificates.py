"""Throw-away certificates for tests that speak TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trustme

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Certificates:
    server_context: ssl.SSLContext
    authority_file: Path  # what a client trusts, e.g. `ssl_ca_certs` in a DSN


def make_certificates(folder: Path) -> Certificates:
    """Make an authority and a server certificate for 127.0.0.1 and localhost."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    authority_file = folder / "authority.pem"
    authority.cert_pem.write_to_path(str(authority_file))
    return Certificates(context, authority_file)
