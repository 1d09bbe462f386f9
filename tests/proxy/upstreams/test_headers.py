from __future__ import annotations

import pytest
from fake_upstream import UPSTREAM_KEY
from sending import PlainRequest, make_upstream

from proxy.upstreams.headers import request_headers, response_headers, upstream_headers, upstream_request_id


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
        ("OpenAI-Beta", True),
        ("traceparent", True),
        ("tracestate", True),
    ],
)
def test_client_fields_pass_by_allow_list(name: str, *, passes: bool) -> None:
    assert request_headers(PlainRequest({name: "v"})) == ([(name, "v")] if passes else [])


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
