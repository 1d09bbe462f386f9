"""Certificates of the tests (tests/data/tls), and what a server makes of them."""

from __future__ import annotations

import ssl
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1] / "data" / "tls"


def tls_file(name: str) -> Path:
    """Return the path of a file of the tests' certificates; tests/data/tls/README.md tells what there is."""
    path = _FOLDER / name
    assert path.exists()
    return path


def server_tls(name: str = "server", *, asks_certificate: bool = False) -> ssl.SSLContext:
    """Return a server's side: with the certificate of this name, perhaps asking clients for one of the tests' own."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls_file(f"{name}-with-key.pem"))
    if asks_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(tls_file("ca.pem"))
    return context
