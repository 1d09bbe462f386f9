from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from policies.errors import Forbidden, InvalidRequest, Unauthenticated
from policies.principals import Principal
from proxy.identify import identify

if TYPE_CHECKING:
    from collections.abc import Sequence

ALICE = Principal("org_acme", "proj_research", "alice", "key_alice")
BOB = Principal("org_acme", "proj_research", "bob", "key_bob")
PRINCIPALS = {sha256(b"sk-alice").hexdigest(): ALICE, sha256(b"sk-bob").hexdigest(): BOB}

Fields = list[tuple[str, str]]


class HeadersOnly:
    method, path, query = "POST", "/v1/completions", ""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields

    def headers(self, name: str) -> Sequence[str]:
        return [value for each, value in self._fields if each.lower() == name.lower()]

    def header(self, name: str) -> str | None:
        return next(iter(self.headers(name)), None)

    async def read(self) -> bytes:
        raise AssertionError("who asks is known before the body is read")


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param([("Authorization", "Bearer sk-alice")], id="bearer"),
        pytest.param([("authorization", "bearer   sk-alice ")], id="bearer in any case, with spaces"),
        pytest.param([("api-key", "sk-alice")], id="Azure's header"),
        pytest.param([("Authorization", "Bearer sk-alice"), ("api-key", "sk-alice")], id="the same key twice is one"),
        pytest.param([("Authorization", "Bearer sk-alice"), ("X-Api-Key", "sk-bob")], id="other headers are no keys"),
        pytest.param([("api-key", "sk-alice"), ("OpenAI-Project", "proj_research")], id="its own project"),
        pytest.param([("api-key", "sk-alice"), ("OpenAI-Organization", "org_else")], id="any organization"),
    ],
)
def test_a_known_key_is_its_principal(fields: Fields) -> None:
    assert identify(HeadersOnly(fields), PRINCIPALS) is ALICE


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param([], id="nothing"),
        pytest.param([("Authorization", "")], id="an empty header"),
        pytest.param([("Authorization", "Bearer ")], id="bearer of nothing"),
        pytest.param([("Authorization", "Bearer")], id="the scheme alone"),
        pytest.param([("api-key", "")], id="an empty api-key"),
        pytest.param([("Authorization", "Bearer sk-carol")], id="an unknown key"),
        pytest.param([("Authorization", "Bearer SK-ALICE")], id="a key in another case"),
        pytest.param([("Authorization", "Basic c2stYWxpY2U=")], id="another scheme"),
        pytest.param([("Authorization", "sk-alice")], id="a key without a scheme"),
        pytest.param([("api-key", "sk-al\udce9ce")], id="a byte that is no text"),
        pytest.param([("api-key", sha256(b"sk-alice").hexdigest())], id="the hash is not the key"),
    ],
)
def test_anything_else_is_not_known(fields: Fields) -> None:
    with pytest.raises(Unauthenticated) as refused:
        identify(HeadersOnly(fields), PRINCIPALS)
    assert refused.value.status_hint == 401


def test_two_different_keys_are_no_key() -> None:
    fields = [("Authorization", "Bearer sk-alice"), ("api-key", "sk-bob")]
    with pytest.raises(InvalidRequest, match="two different API keys"):
        identify(HeadersOnly(fields), PRINCIPALS)


def test_an_empty_key_beside_a_good_one_is_a_conflict_not_a_way_in() -> None:
    with pytest.raises(InvalidRequest, match="two different API keys"):
        identify(HeadersOnly([("Authorization", "Bearer sk-alice"), ("api-key", "")]), PRINCIPALS)


def test_a_key_of_another_project_is_forbidden() -> None:
    with pytest.raises(Forbidden, match="proj_sales") as refused:
        identify(HeadersOnly([("api-key", "sk-alice"), ("OpenAI-Project", "proj_sales")]), PRINCIPALS)
    assert refused.value.status_hint == 403


def test_a_key_without_its_scheme_is_not_repeated_in_the_message() -> None:
    with pytest.raises(Unauthenticated) as refused:
        identify(HeadersOnly([("Authorization", "sk-alice")]), PRINCIPALS)
    assert "sk-alice" not in refused.value.message


def test_an_unknown_key_is_not_repeated_in_the_message() -> None:
    key = "sk-0123456789abcdefghijklmnop"
    with pytest.raises(Unauthenticated) as refused:
        identify(HeadersOnly([("api-key", key)]), PRINCIPALS)
    assert "mnop" in refused.value.message
    assert key[:-4] not in refused.value.message
