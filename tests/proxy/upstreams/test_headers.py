from __future__ import annotations

import pytest
from fake_upstream import UPSTREAM_KEY
from msgspec.structs import replace
from sending import ALICE, PlainRequest, make_decision, make_upstream

from policies.principals import Principal
from policies.pseudonyms import pseudonym
from proxy.upstreams.headers import (
    identity_fields,
    keyless_headers,
    passed_credentials,
    request_headers,
    response_headers,
    upstream_headers,
    upstream_request_id,
)

PSEUDONYM_KEY = b"a key of the tests"


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("Authorization", False),
        ("api-key", False),
        ("x-api-key", False),
        ("Cookie", False),
        ("Proxy-Authorization", False),
        ("X-Forwarded-Authorization", False),
        ("OpenAI-Organization", False),
        ("OpenAI-Project", False),
        ("Connection", False),
        ("Expect", False),
        ("X-Client-Request-Id", False),
        ("Idempotency-Key", False),
        ("User-Agent", False),
        ("x-tidegate-project", False),
        ("x-tidegate-user", False),
        ("OpenAI-Beta", True),
        ("traceparent", True),
        ("tracestate", True),
    ],
)
def test_client_fields_pass_by_allow_list(name: str, *, passes: bool) -> None:
    assert request_headers(PlainRequest({name: "v"})) == ([(name, "v")] if passes else [])


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("Authorization", True),
        ("api-key", True),
        ("OpenAI-Organization", True),
        ("OpenAI-Project", True),
        ("x-api-key", False),
        ("Cookie", False),
        ("Proxy-Authorization", False),
        ("x-tidegate-project", False),
        ("x-tidegate-user", False),
        ("X-Client-Request-Id", False),
    ],
)
def test_what_passes_as_a_clients_own_credential(name: str, *, passes: bool) -> None:
    assert passed_credentials(PlainRequest({name: "v"})) == ([(name, "v")] if passes else [])


@pytest.mark.parametrize(
    "connection",
    [
        pytest.param("OpenAI-Beta", id="alone"),
        pytest.param("keep-alive, openai-beta", id="among others, in another case"),
        pytest.param(",openai-beta ,", id="badly written"),
    ],
)
def test_what_a_sender_means_for_the_next_hop_stays(connection: str) -> None:
    sent = {"Connection": connection, "OpenAI-Beta": "v", "traceparent": "w"}
    assert request_headers(PlainRequest(sent)) == [("traceparent", "w")]
    assert passed_credentials(PlainRequest({"Connection": "api-key", "api-key": "v"})) == []
    received = [("x-ms-region", "a"), ("Connection", "x-other"), ("openai-version", "b"), ("connection", "X-MS-Region")]
    assert response_headers(received) == [("openai-version", "b")]


def test_a_field_that_cannot_be_written_stays() -> None:
    assert request_headers(PlainRequest({"OpenAI-Beta": "\udcff"})) == []
    assert response_headers([("x-ms-region", "caf\u00e9")]) == []


@pytest.mark.parametrize(
    ("kind", "settings", "credential"),
    [
        pytest.param("openai", {}, ("Authorization", f"Bearer {UPSTREAM_KEY}"), id="Bearer for openai"),
        pytest.param("azure", {}, ("api-key", UPSTREAM_KEY), id="api-key for azure"),
        pytest.param("openai", {"api_key": None}, None, id="none where none is configured"),
    ],
)
def test_an_upstream_gets_its_own_credential(
    kind: str, settings: dict[str, object], credential: tuple[str, str] | None
) -> None:
    headers = upstream_headers(make_upstream("http://127.0.0.1:1/v1", kind=kind, **settings))
    assert headers[:3] == [
        ("Content-Type", "application/json"),
        ("Accept-Encoding", "identity"),
        ("User-Agent", "tidegate"),
    ]
    assert headers[3:] == ([credential] if credential else [])
    assert keyless_headers() == headers[:3]


@pytest.mark.parametrize(
    ("told", "end_user", "names"),
    [
        pytest.param([], "bob", [], id="nobody is told"),
        pytest.param(["project"], "bob", ["x-tidegate-project"], id="the project"),
        pytest.param(["user"], "bob", ["x-tidegate-user"], id="the user, with an end user"),
        pytest.param(["user"], None, ["x-tidegate-user"], id="the user alone"),
        pytest.param(["user", "project"], None, ["x-tidegate-project", "x-tidegate-user"], id="both"),
    ],
)
def test_an_upstream_is_told_who_asks(told: list[str], end_user: str | None, names: list[str]) -> None:
    upstream = make_upstream("http://127.0.0.1:1/v1", identity_headers=told)
    decision = make_decision({"prompt": "x", "user": end_user})
    values = {
        "x-tidegate-project": "proj_research",
        "x-tidegate-user": pseudonym(PSEUDONYM_KEY, ALICE, end_user),
    }
    assert identity_fields(upstream, decision, PSEUDONYM_KEY) == [(name, values[name]) for name in names]


def test_the_gateways_own_requests_are_nobodys() -> None:
    upstream = make_upstream("http://127.0.0.1:1/v1", identity_headers=["project", "user"])
    decision = replace(make_decision({"prompt": "x", "user": "bob"}), principal=Principal("org_acme", "", "", ""))
    assert identity_fields(upstream, decision, PSEUDONYM_KEY) == []


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("Retry-After", "Retry-After"),
        ("RETRY-AFTER-MS", "retry-after-ms"),
        ("x-should-retry", "x-should-retry"),
        ("openai-processing-ms", "openai-processing-ms"),
        ("x-request-id", "x-upstream-request-id"),
        ("X-RateLimit-Remaining-Tokens", "x-upstream-ratelimit-remaining-tokens"),
        ("Set-Cookie", None),
        ("Content-Encoding", None),
        ("Content-Length", None),
        ("Transfer-Encoding", None),
        ("Content-Type", None),
        ("Date", None),
        ("Server", None),
        ("openai-organization", None),
        ("Cache-Status", None),
        ("WWW-Authenticate", None),
    ],
)
def test_upstream_fields_pass_by_allow_list(name: str, sent: str | None) -> None:
    assert response_headers([(name, "v")]) == ([] if sent is None else [(sent, "v")])


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param([("X-Request-Id", "a"), ("apim-request-id", "b")], "a", id="the usual one"),
        pytest.param([("apim-request-id", "b")], "b", id="Azure's own"),
        pytest.param([("x-other", "c")], None, id="none"),
    ],
)
def test_the_upstreams_id(headers: list[tuple[str, str]], expected: str | None) -> None:
    assert upstream_request_id(headers) == expected
