"""Which header fields pass the gateway, both ways: what one hop tells the next is nobody else's (RFC 9110 §7.6.1)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import UPSTREAM_KEY, App, head, json_reply
from gateway import PROJECT, Gateway, bearer, key_of, settings
from harness import call

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fake_upstream import FakeUpstream

PATH = "/v1/completions"
BODY = json.dumps({"model": "m", "prompt": "x", "temperature": 1}).encode()
STREAM = json.dumps({"model": "m", "prompt": "x", "temperature": 1, "stream": True}).encode()
OF_ONE_HOP = (
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-authentication-info"),
    *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings"),
)
OWN_FIELDS = {
    *("host", "accept", "accept-encoding", "content-type", "content-length", "user-agent"),
    *("authorization", "x-client-request-id"),
}
"""What every request to an upstream carries."""


@pytest.fixture(scope="module")
def gateway(_upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    upstream = {"kind": "openai", "base_url": f"{_upstream.url}/v1", "api_key": UPSTREAM_KEY}
    told = {**upstream, "identity_headers": ["project", "user"]}
    made = settings(
        "http://127.0.0.1:1/v1",
        users={"alice": {}, "bob": {}},
        upstreams={"only": upstream, "told": told},
        models={
            "m": {},
            "told": {"deployments": [{"upstream": "told", "name": "m"}]},
            "passing": {"deployments": [{"upstream": "only", "name": "m"}], "auth": "passthrough"},
        },
        pseudonym_key="a secret of the tests".replace(" ", "-"),
    )
    with Gateway(tmp_path_factory.mktemp("gateway"), made) as running:
        yield running


@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "a stream"])
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param([("Connection", "close")], id="Connection: close"),
        pytest.param([("Connection", "keep-alive"), ("Keep-Alive", "timeout=5, max=9")], id="Keep-Alive"),
        pytest.param([("Proxy-Authorization", "Basic c2VjcmV0"), ("Proxy-Connection", "keep-alive")], id="to a proxy"),
        pytest.param([("Proxy-Authenticate", "Basic"), ("Proxy-Authentication-Info", "x")], id="from a proxy"),
        pytest.param([("TE", "trailers, deflate"), ("Connection", "TE")], id="TE"),
        pytest.param([("Trailer", "X-Checksum")], id="Trailer"),
        pytest.param(
            [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABk")], id="h2c"
        ),
        pytest.param([("Connection", "Upgrade"), ("Upgrade", "websocket")], id="websocket"),
        pytest.param([("Connection", "X-Hop"), ("X-Hop", "secret")], id="one of a client's own"),
        pytest.param([("Connection", "close, openai-beta"), ("OpenAI-Beta", "secret")], id="one that passes otherwise"),
        pytest.param([("Connection", "close"), ("Connection", "TraceParent"), ("traceparent", "s")], id="in two lines"),
    ],
)
def test_what_a_client_tells_its_hop_stays(
    gateway: Gateway, upstream: FakeUpstream, fields: list[tuple[str, str]], body: bytes
) -> None:
    answer = call(gateway.base_url, "POST", PATH, [*bearer("alice"), *fields], body)
    assert answer.status == 200
    assert answer.complete
    (request,) = upstream.log
    assert {name.lower() for name, _ in request.headers} <= OWN_FIELDS
    assert "secret" not in " ".join(value for name, value in request.headers if name.lower() != "authorization")


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param([("x-tidegate-project", "theirs"), ("x-tidegate-user", "theirs")], id="the gateway's own"),
        pytest.param([("Cookie", "session=secret")], id="cookies"),
        pytest.param([("OpenAI-Organization", "org"), ("OpenAI-Project", PROJECT)], id="organization and project"),
        pytest.param([("api-key", key_of("alice"))], id="the key under its other name"),
        pytest.param([("X-Forwarded-For", "10.0.0.1"), ("Forwarded", "for=10.0.0.1")], id="where the client is"),
        pytest.param([("X-Client-Request-Id", "theirs")], id="a request id"),
    ],
)
def test_what_is_the_clients_own_stays(gateway: Gateway, upstream: FakeUpstream, fields: list[tuple[str, str]]) -> None:
    assert call(gateway.base_url, "POST", PATH, [*bearer("alice"), *fields], BODY).status == 200
    (request,) = upstream.log
    assert {name.lower() for name, _ in request.headers} <= OWN_FIELDS
    assert request.header("Authorization") == f"Bearer {UPSTREAM_KEY}"
    assert request.header("X-Client-Request-Id") != "theirs"


@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "a stream"])
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param([("Connection", "close")], id="Connection: close"),
        pytest.param([("Keep-Alive", "timeout=5")], id="Keep-Alive"),
        pytest.param([("Proxy-Authenticate", "Basic"), ("Proxy-Authorization", "x")], id="of proxies"),
        pytest.param([("Proxy-Connection", "close"), ("Proxy-Authentication-Info", "x")], id="more of proxies"),
        pytest.param([("TE", "trailers"), ("Trailer", "X-Checksum")], id="TE and Trailer"),
        pytest.param([("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABk")], id="Upgrade"),
        pytest.param([("Connection", "x-ms-region"), ("x-ms-region", "hop")], id="one that passes otherwise"),
        pytest.param([("Connection", "X-RateLimit-Limit-Requests"), ("x-ratelimit-limit-requests", "9")], id="a limit"),
        pytest.param([("Set-Cookie", "who=alice; Path=/"), ("Set-Cookie2", "who=alice")], id="cookies"),
        pytest.param([("WWW-Authenticate", "Bearer"), ("Location", "http://secret/")], id="of other statuses"),
        pytest.param([("Alt-Svc", 'h3=":443"'), ("Strict-Transport-Security", "max-age=9")], id="of another host"),
        pytest.param([("X-Accel-Redirect", "/internal"), ("X-Sendfile", "/etc/passwd")], id="that steer a proxy"),
        pytest.param([("Access-Control-Allow-Origin", "*"), ("Clear-Site-Data", "*")], id="that steer a browser"),
        pytest.param([("Age", "9"), ("Cache-Control", "public"), ("Vary", "*"), ("ETag", "x")], id="that steer caches"),
    ],
)
def test_what_an_upstream_tells_its_hop_stays(
    gateway: Gateway, upstream: FakeUpstream, fields: list[tuple[str, str]], body: bytes
) -> None:
    plain = call(gateway.base_url, "POST", PATH, bearer("alice"), body)
    app = App()

    def with_fields(request: Any) -> list[tuple[Any, ...]]:  # noqa: ANN401  the double's own
        (kind, sent), *rest = app(request)
        start = b"HTTP/1.1 200 X\r\n"
        assert sent.startswith(start)
        return [(kind, head(200, fields)[:-2] + sent[len(start) :]), *rest]

    upstream.default = with_fields
    for _ in range(2):  # so that a cookie that was kept would be sent
        answer = call(gateway.base_url, "POST", PATH, bearer("alice"), body)
        assert answer.status == 200
        assert answer.complete
        assert [name for name, _ in answer.headers] == [name for name, _ in plain.headers]
        assert {answer.header(name) for name in ("cache-control", "connection")} == {
            plain.header(name) for name in ("cache-control", "connection")
        }
    assert not any(request.header("Cookie") for request in upstream.log)


# ---------------------------------------------------------------- who asks
def test_an_upstream_is_told_who_asks(gateway: Gateway, upstream: FakeUpstream) -> None:
    def told(key: str, **more: str) -> tuple[str | None, str | None]:
        body = json.dumps({"model": "told", "prompt": "x", "temperature": 1, **more}).encode()
        fields = [*bearer(key), ("x-tidegate-project", "forged"), ("x-tidegate-user", "forged")]
        assert call(gateway.base_url, "POST", PATH, fields, body).status == 200
        request = upstream.log[-1]
        assert len([name for name, _ in request.headers if name.lower().startswith("x-tidegate-")]) == 2
        return request.header("x-tidegate-project"), request.header("x-tidegate-user")

    of_alice, again, of_bob, of_customer = told("alice"), told("alice"), told("bob"), told("alice", user="customer")
    assert of_alice == again
    assert {project for project, _ in (of_alice, of_bob, of_customer)} == {PROJECT}
    users = [user for _, user in (of_alice, of_bob, of_customer)]
    assert len(set(users)) == 3
    assert not any(name in str(user) for user in users for name in ("alice", "bob", "customer", "forged"))


# ---------------------------------------------------------------- a client's own credential
@pytest.mark.parametrize(
    ("path", "credential"),
    [
        pytest.param(PATH, ("Authorization", f"Bearer {key_of('alice')}"), id="Bearer"),
        pytest.param(
            "/openai/deployments/passing/completions?api-version=1", ("api-key", key_of("alice")), id="api-key"
        ),
    ],
)
def test_a_clients_own_credential_passes_where_that_is_configured(
    gateway: Gateway, upstream: FakeUpstream, path: str, credential: tuple[str, str]
) -> None:
    body = json.dumps({"model": "passing", "prompt": "x", "temperature": 1}).encode()
    others = [("OpenAI-Organization", "org"), ("OpenAI-Project", PROJECT), ("Cookie", "a=b"), ("x-tidegate-user", "x")]
    fields = [credential, *others, ("Content-Type", "application/json")]
    assert call(gateway.base_url, "POST", path, fields, body).status == 200
    (request,) = upstream.log
    sent = [(name, value) for name, value in request.headers if name.lower() not in OWN_FIELDS - {"authorization"}]
    assert sorted(sent) == sorted([credential, *others[:2]])


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(("model", "passes"), [("passing", True), ("m", False)], ids=["the client's", "the gateway's"])
def test_whose_credential_was_refused_is_told_so(
    gateway: Gateway, upstream: FakeUpstream, model: str, status: int, *, passes: bool
) -> None:
    refusal = {"error": {"message": "this key", "type": "x", "param": None, "code": "invalid_api_key"}}
    upstream.default = lambda _: json_reply(refusal, status)
    body = json.dumps({"model": model, "prompt": "x", "temperature": 1}).encode()
    answer = call(gateway.base_url, "POST", PATH, bearer("alice"), body)
    assert answer.status == (status if passes else 502)
    assert (answer.json() == refusal) is passes
    assert (b"this key" in answer.body) is passes
