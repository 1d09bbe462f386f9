"""Keys as they are made and known."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from proxy.credentials import digest, new_admin_key, new_key

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("make", "form"),
    [
        pytest.param(new_key, r"tg-(?!admin-)[\w-]{43}", id="a client's"),
        pytest.param(new_admin_key, r"tg-admin-[\w-]{43}", id="an operator's"),
    ],
)
def test_a_new_key_is_long_and_tells_what_it_is_for(make: Callable[[], str], form: str) -> None:
    assert re.fullmatch(form, make())
    assert make() != make()


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        pytest.param("tg-x", b"tg-x", id="plain"),
        pytest.param("é", "é".encode(), id="typed with an accent"),
        pytest.param("caf\udce9", b"caf\xe9", id="of odd bytes, as a header carries them"),
    ],
)
def test_a_key_is_known_by_the_hash_of_its_bytes(key: str, raw: bytes) -> None:
    assert digest(key) == sha256(raw).hexdigest()
