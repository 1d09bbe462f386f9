"""Keys of clients and operators: how they are made, and by which hash the configuration knows them.

Knows neither who holds a key nor what it opens.
"""

from __future__ import annotations

from hashlib import sha256
from secrets import token_urlsafe

KEY_PREFIX = "tg-"
ADMIN_KEY_PREFIX = "tg-admin-"
_RANDOM_BYTES = 32


def new_key() -> str:
    """Return a new key for the data plane."""
    return KEY_PREFIX + token_urlsafe(_RANDOM_BYTES)


def new_admin_key() -> str:
    """Return a new key for the control plane."""
    return ADMIN_KEY_PREFIX + token_urlsafe(_RANDOM_BYTES)


def digest(key: str) -> str:
    """Return a key's SHA-256 in hexadecimal; a header's bytes above ASCII count as they came."""
    return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
