"""A pseudonym is the same for the same customer, another for another one, and says nobody's name."""

from __future__ import annotations

import re
from dataclasses import replace
from hmac import digest

import pytest

from policies.principals import Principal
from policies.pseudonyms import pseudonym

KEY = b"a secret"
ALICE = Principal("org", "proj", "alice", "key_1")


def test_it_is_the_hash_that_its_documentation_says() -> None:
    name = digest(KEY, b'["org","proj",false,"alice","customer 17"]', "sha256").hex()[:40]
    check = digest(KEY, b"pseudonym " + name.encode(), "sha256").hex()[:16]
    assert pseudonym(KEY, ALICE, "customer 17") == f"tg-{name}{check}"


def test_it_outlives_a_key() -> None:
    assert pseudonym(KEY, replace(ALICE, key="key_2"), "c") == pseudonym(KEY, ALICE, "c")


@pytest.mark.parametrize(
    ("principal", "end_user", "key"),
    [
        pytest.param(ALICE, "d", KEY, id="another end user"),
        pytest.param(ALICE, None, KEY, id="no end user"),
        pytest.param(ALICE, "", KEY, id="an empty one"),
        pytest.param(replace(ALICE, owner="bob"), "c", KEY, id="another owner"),
        pytest.param(replace(ALICE, is_service_account=True), "c", KEY, id="a service account of the same id"),
        pytest.param(replace(ALICE, project="other"), "c", KEY, id="another project"),
        pytest.param(replace(ALICE, organization="other"), "c", KEY, id="another organization"),
        pytest.param(ALICE, "c", b"another secret", id="another secret"),
    ],
)
def test_others_have_another(principal: Principal, end_user: str | None, key: bytes) -> None:
    assert pseudonym(key, principal, end_user) != pseudonym(KEY, ALICE, "c")


def test_its_own_are_left_as_they_are() -> None:
    made = pseudonym(KEY, ALICE, "c")
    assert pseudonym(KEY, replace(ALICE, owner="bob"), made) == made


@pytest.mark.parametrize("end_user", ["tg-" + "0" * 56, "tg-", "Zoë 😀", "x" * 10_000])
def test_everything_else_gets_one(end_user: str) -> None:
    made = pseudonym(KEY, ALICE, end_user)
    assert made != end_user
    assert re.fullmatch(r"tg-[0-9a-f]{56}", made)
