"""Upstreams behind a forward proxy that the environment names: the way there, who needs none, and what goes wrong."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import FakeUpstream
from forward_proxy import ForwardProxy
from gateway import CommandFailed, Gateway, bearer, settings
from harness import Resp, call
from tls_files import server_tls, tls_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATH = "/v1/completions"
SECRET = "proxy-password"  # noqa: S105  the double's
CREDENTIALS = "Basic dXNlcjpwcm94eS1wYXNzd29yZA=="
TLS = {"ca_file": str(tls_file("ca.pem"))}
NO_PROXIES = {name: "" for name in os.environ if name.lower().endswith("_proxy")}
"""What the machine itself has in its environment is none of the tests' business."""
REFUSAL = b"HTTP/1.1 %d No\r\nContent-Length: 6\r\nProxy-Authenticate: Basic realm=secret\r\n\r\nsecret"


@pytest.fixture(scope="module")
def secure() -> FakeUpstream:
    return FakeUpstream(tls=server_tls("elsewhere")).start()


@pytest.fixture(scope="module")
def proxies(_upstream: FakeUpstream, secure: FakeUpstream) -> dict[str, ForwardProxy]:
    return {"http": ForwardProxy(_upstream.port).start(), "https": ForwardProxy(secure.port, tls=server_tls()).start()}


@pytest.fixture(scope="module")
def gateway(
    _upstream: FakeUpstream, proxies: dict[str, ForwardProxy], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    upstreams = {
        "plain": {"base_url": "http://elsewhere.test:8000/v1"},
        "tunnel": {"base_url": "https://elsewhere.test/v1", "tls": TLS},
        "near": {"base_url": f"{_upstream.url}/v1"},
        "exempt": {"base_url": f"http://127.0.0.1.exempt.test:{_upstream.port}/v1"},
        "without": {"base_url": "http://elsewhere.test:8000/v1", "proxy": "none"},
    }
    made = settings(
        "",
        users={"alice": {}},
        upstreams={
            name: {"kind": "openai", "api_key": "key-of-the-upstream", **each} for name, each in upstreams.items()
        },
        models={name: {"deployments": [{"upstream": name, "name": "m"}]} for name in upstreams},
    )
    environment = {
        **NO_PROXIES,
        **{f"{scheme}_proxy": proxy.url.replace("//", f"//user:{SECRET}@") for scheme, proxy in proxies.items()},
        "no_proxy": "other.test, .exempt.test",
        "SSL_CERT_FILE": TLS["ca_file"],  # the proxy's own TLS is the system's to judge
    }
    with Gateway(tmp_path_factory.mktemp("gateway"), made, environment) as running:
        yield running


@pytest.fixture(autouse=True)
def _forget(proxies: dict[str, ForwardProxy], secure: FakeUpstream) -> None:
    secure.reset()
    for proxy in proxies.values():
        proxy.forget()


def ask(gateway: Gateway, model: str, **more: Any) -> Resp:  # noqa: ANN401  any member
    body = json.dumps({"model": model, "prompt": "x", "temperature": 1, **more}).encode()
    return call(gateway.base_url, "POST", PATH, [*bearer("alice"), ("Proxy-Authorization", "Basic forged")], body)


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "a stream"])
@pytest.mark.parametrize(
    ("model", "scheme", "line"),
    [
        ("plain", "http", f"POST http://elsewhere.test:8000{PATH} HTTP/1.1"),
        ("tunnel", "https", "CONNECT elsewhere.test:443 HTTP/1.1"),
    ],
)
def test_the_way_leads_through_the_proxy(
    gateway: Gateway,
    upstream: FakeUpstream,
    secure: FakeUpstream,
    proxies: dict[str, ForwardProxy],
    model: str,
    scheme: str,
    line: str,
    *,
    is_stream: bool,
) -> None:
    answer = ask(gateway, model, stream=is_stream)
    assert (answer.status, answer.complete) == (200, True)
    reached = upstream if scheme == "http" else secure
    (request,) = reached.log
    assert request.path == PATH
    assert request.header("Authorization") == "Bearer key-of-the-upstream"
    assert request.header("Proxy-Authorization") is None
    for noted, fields in zip(
        proxies[scheme].lines, proxies[scheme].fields, strict=True
    ):  # none where a tunnel was kept
        assert noted == line
        assert fields["proxy-authorization"] == CREDENTIALS
        assert ("authorization" in fields) is (scheme == "http")


@pytest.mark.parametrize(
    ("model", "status"),
    [
        pytest.param("near", 200, id="loopback"),
        pytest.param("exempt", 503, id="a name that NO_PROXY exempts, and nobody resolves"),
        pytest.param("without", 503, id="an upstream with proxy: none, which nobody resolves"),
    ],
)
def test_who_is_reached_without_it(gateway: Gateway, proxies: dict[str, ForwardProxy], model: str, status: int) -> None:
    assert ask(gateway, model).status == status
    assert [proxy.lines for proxy in proxies.values()] == [[], []]


@pytest.mark.parametrize(
    ("model", "scheme", "status", "told"),
    [
        pytest.param("plain", "http", 407, "it refused with 407; its credentials belong in", id="it asks who is there"),
        pytest.param("tunnel", "https", 407, "it refused with 407; its credentials belong in", id="before a tunnel"),
        pytest.param("tunnel", "https", 403, "it refused with 403", id="it forbids"),
        pytest.param("tunnel", "https", 502, "it refused with 502", id="it finds nobody"),
    ],
)
def test_a_proxy_that_refuses_is_the_operators_business(
    tmp_path: Path,
    proxies: dict[str, ForwardProxy],
    gateway: Gateway,
    model: str,
    scheme: str,
    status: int,
    told: str,
) -> None:
    proxies[scheme].refusal = REFUSAL % status
    with Gateway(tmp_path, gateway.settings, {**NO_PROXIES, **_proxy_of(scheme, proxies), **_trust()}) as fresh:
        answer = ask(fresh, model)
        assert answer.status == 503
        assert answer.json()["error"]["code"] == "no_upstream_left"
        assert not any(word in answer.body for word in (b"proxy", b"Proxy", b"407", b"secret"))
        assert answer.header("proxy-authenticate") is None
        assert f"through proxy {proxies[scheme].url}: {told}" in fresh.log
        assert SECRET not in fresh.log
        assert "realm" not in fresh.log


def _proxy_of(scheme: str, proxies: dict[str, ForwardProxy]) -> dict[str, str]:
    return {f"{scheme.upper()}_PROXY": proxies[scheme].url.replace("//", f"//user:{SECRET}@")}


def _trust() -> dict[str, str]:
    return {"SSL_CERT_FILE": TLS["ca_file"]}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        pytest.param(f"http://user:{SECRET}@first:port", "is no address of a proxy: write http://host:port", id="port"),
        pytest.param(f"socks5://user:{SECRET}@first:1080", "names a SOCKS proxy", id="SOCKS"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_found_at_the_start(tmp_path: Path, value: str, told: str) -> None:
    made = settings("http://elsewhere.test/v1", users={})
    with (
        pytest.raises(CommandFailed) as raised,
        Gateway(tmp_path, made, {**NO_PROXIES, "HTTP_PROXY": value}),
    ):
        pass
    text = str(raised.value)
    assert text.startswith("exit status 2\n")
    assert "upstreams.only.proxy: the environment's HTTP_PROXY" in text
    assert told in text
    assert SECRET not in text
