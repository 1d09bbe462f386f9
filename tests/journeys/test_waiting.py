"""Requests wait in line for room instead of being refused: `on_exceed: wait`."""

from __future__ import annotations

import json
import socket
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import openai
import pytest
from fake_upstream import App
from gateway import Gateway, Settings, bearer, eventually, key_of, settings
from harness import Resp, call, parallel, uniq

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_upstream import FakeUpstream, Ops, Req
    from stores import StoreServer

    StartGateway = Callable[[Settings], Gateway]

FOUR_AT_ONCE = {"of": "concurrency", "limit": 4, "by": ["user"], "on_exceed": "wait"}
ONE_AT_ONCE = {**FOUR_AT_ONCE, "limit": 1}


class Crowd:
    """Answers as `App` does, and counts how many requests are there at once: until the end of each answer is sent."""

    def __init__(self, latency: float) -> None:
        self._app = App(latency=latency)
        self._here = 0
        self.most = 0

    def __call__(self, request: Req) -> Ops:
        self._count(1)
        answer = self._app(request)
        ending = next((place for place, op in enumerate(answer) if "[DONE]" in str(op)), len(answer) - 1)
        return [*answer[:ending], ("do", partial(self._count, -1)), *answer[ending:]]

    def _count(self, more: int) -> None:
        self._here += more
        self.most = max(self.most, self._here)


def _ask(gateway: Gateway, **changes: object) -> Resp:
    body = {"model": "m", "prompt": uniq(), "temperature": 1, "max_tokens": 8, **changes}
    return call(gateway.base_url, "POST", "/v1/completions", bearer("alice"), json.dumps(body).encode(), timeout=60)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_forty_at_once_pass_four_at_a_time_through_two_gateways(
    start_gateway: StartGateway, upstream: FakeUpstream, redis_server: StoreServer, *, stream: bool
) -> None:
    users = {"alice": {"limits": [FOUR_AT_ONCE]}}
    made = settings(f"{upstream.url}/v1", users=users, state=redis_server.url)
    gateways = [start_gateway(made), start_gateway(made)]
    crowd = upstream.default = Crowd(latency=0.05)
    answers = parallel([partial(_ask, gateways[number % 2], stream=stream) for number in range(40)])
    assert [answer.status for answer in answers] == [200] * 40
    assert 1 < crowd.most <= 4
    eventually(lambda: sum(len(gateway.records()) for gateway in gateways) == 40)
    records = [record for gateway in gateways for record in gateway.records()]
    assert sum(record["waited_seconds"] > 0 for record in records) >= 36
    assert {record["outcome"] for record in records} == {"completed"}


def test_whoever_leaves_the_line_is_not_waited_for(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    gateway = start_gateway(settings(f"{upstream.url}/v1", users={"alice": {"limits": [ONE_AT_ONCE]}}))
    upstream.default = App(latency=1.5)
    first = _send(gateway)
    eventually(lambda: len(upstream.served) == 1)
    left = _send(gateway)
    eventually(lambda: _metric(gateway, "limit_waiting") == 1)
    left.close()
    eventually(lambda: _metric(gateway, "limit_waiting") == 0)
    upstream.default = App()
    assert _ask(gateway).status == 200
    assert first.recv(16).startswith(b"HTTP/1.1 200")
    first.close()
    assert len(upstream.served) == 2, "the one who left reached the upstream"
    outcomes = sorted(record["outcome"] for record in gateway.wait_for_records(3))
    assert outcomes == ["client_left", "completed", "completed"]


def test_whose_time_is_over_is_refused(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    limit = {**ONE_AT_ONCE, "max_wait": "200ms"}
    gateway = start_gateway(settings(f"{upstream.url}/v1", users={"alice": {"limits": [limit]}}))
    upstream.default = App(latency=1.0)
    first = _send(gateway)
    eventually(lambda: len(upstream.served) == 1)
    refused = _ask(gateway, stream=True)
    assert (refused.status, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(refused.header("retry-after")) >= 1
    assert first.recv(16).startswith(b"HTTP/1.1 200")
    first.close()


def test_the_official_client_notices_nothing(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    limit = {"of": "requests", "limit": 1, "per": "200ms", "by": ["user"], "on_exceed": "wait"}
    gateway = start_gateway(settings(f"{upstream.url}/v1", users={"alice": {"limits": [limit]}}))
    client = openai.OpenAI(base_url=f"{gateway.base_url}/v1", api_key=key_of("alice"), max_retries=0)
    with client:
        texts = [client.completions.create(model="m", prompt=uniq(), max_tokens=4).choices[0].text for _ in range(4)]
    assert all(texts)


def test_a_stream_that_waited_is_whole(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    limit = {"of": "tokens", "limit": 100, "per": "1s", "by": ["user"], "on_exceed": "wait"}
    gateway = start_gateway(settings(f"{upstream.url}/v1", users={"alice": {"limits": [limit]}}))
    answers = parallel([partial(_ask, gateway, prompt="hi", max_tokens=60, stream=True) for _ in range(4)])
    assert [answer.status for answer in answers] == [200] * 4
    assert all(answer.body.endswith(b"data: [DONE]\n\n") for answer in answers)


def _send(gateway: Gateway) -> socket.socket:
    """Send a request and wait for nothing."""
    address = urlsplit(gateway.base_url)
    body = json.dumps({"model": "m", "prompt": uniq(), "temperature": 1, "max_tokens": 8}).encode()
    head = "".join(f"{name}: {value}\r\n" for name, value in bearer("alice"))
    connection = socket.create_connection((address.hostname, address.port), timeout=30)
    connection.sendall(
        f"POST /v1/completions HTTP/1.1\r\nHost: t\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    )
    return connection


def _metric(gateway: Gateway, name: str) -> float:
    page = call(gateway.admin_url, "GET", "/metrics", []).body.decode()
    rows = (line.rsplit(" ", 1) for line in page.splitlines() if line.startswith(f"tidegate_{name}{{"))
    return sum(float(value) for _, value in rows)
