"""Limits hold whatever the concurrency, the number of workers and the number of gateways."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import App
from gateway import Gateway, Settings, bearer, key_of, settings
from harness import Resp, call, parallel, sse_json, uniq

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fake_upstream import FakeUpstream
    from stores import StoreServer

    from proxy.demo.model_process import ModelProcess

    StartGateway = Callable[[Settings], Gateway]

FIVE_A_MINUTE = {"limits": [{"of": "requests", "limit": 5, "per": "minute", "by": ["user"]}]}
HUNDRED_TOKENS = {"limits": [{"of": "tokens", "limit": 100, "per": "hour", "by": ["user"]}]}
ONE_AT_A_TIME = {"limits": [{"of": "concurrency", "limit": 1, "by": ["key"]}]}


def _ask(gateway: Gateway, user: str = "alice", **changes: object) -> Resp:
    body = {"model": "m", "prompt": uniq(), "temperature": 1, "max_tokens": 8, **changes}
    return call(gateway.base_url, "POST", "/v1/completions", bearer(user), json.dumps(body).encode(), timeout=60)


def _ask_at_once(gateways: Sequence[Gateway], count: int, **changes: object) -> list[Resp]:
    return parallel([partial(_ask, gateways[i % len(gateways)], **changes) for i in range(count)])


# ---------------------------------------------------------------- requests
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_five_of_twenty_at_once_pass_with_two_workers(
    start_gateway: StartGateway, upstream: FakeUpstream, *, stream: bool
) -> None:
    gateway = start_gateway(settings(f"{upstream.url}/v1", users={"alice": FIVE_A_MINUTE}, workers=2))
    upstream.default = App(latency=0.3)
    answers = _ask_at_once([gateway], 20, stream=stream)
    assert sorted(answer.status for answer in answers) == [200] * 5 + [429] * 15
    assert len(upstream.served) == 5
    assert len(gateway.worker_pids) == 2


def test_five_of_twenty_at_once_pass_with_two_gateways_that_share_one_redis(
    start_gateway: StartGateway, upstream: FakeUpstream, redis_server: StoreServer
) -> None:
    made = settings(f"{upstream.url}/v1", users={"alice": FIVE_A_MINUTE}, state=redis_server.url)
    gateways = [start_gateway(made), start_gateway(made)]
    upstream.default = App(latency=0.3)
    answers = _ask_at_once(gateways, 20)
    assert sorted(answer.status for answer in answers) == [200] * 5 + [429] * 15
    assert len(upstream.served) == 5


def test_a_refusal_says_what_an_sdk_needs(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    gateway = start_gateway(settings(f"{upstream.url}/v1", users={"alice": FIVE_A_MINUTE, "bob": FIVE_A_MINUTE}))
    passed = [_ask(gateway) for _ in range(5)]
    assert [int(answer.header("x-ratelimit-remaining-requests")) for answer in passed] == [4, 3, 2, 1, 0]
    refused = _ask(gateway)
    error = refused.json()["error"]
    assert (refused.status, error["code"]) == (429, "rate_limit_exceeded")
    assert 1 <= int(refused.header("retry-after")) <= 12
    assert "5" in error["message"]
    assert refused.header("ratelimit")
    assert refused.header("ratelimit-policy")
    assert _ask(gateway, "bob").status == 200, "another user's count was taken from"


def test_concurrency_is_given_back(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    gateway = start_gateway(settings(f"{upstream.url}/v1", users={"alice": ONE_AT_A_TIME}, workers=2))
    upstream.default = App(latency=0.5)
    answers = _ask_at_once([gateway], 8)
    assert sorted(answer.status for answer in answers) == [200] + [429] * 7
    upstream.default = App()
    assert [_ask(gateway).status for _ in range(3)] == [200] * 3


# ---------------------------------------------------------------- tokens
@pytest.mark.parametrize(
    ("count_at_once", "rounds", "used"), [(10, 2, 50), (4, 4, 20), (1, 12, 9)], ids=["big", "middling", "one by one"]
)
def test_a_hundred_tokens_are_never_passed(
    start_gateway: StartGateway, upstream: FakeUpstream, count_at_once: int, rounds: int, used: int
) -> None:
    gateway = start_gateway(settings(f"{upstream.url}/v1", users={"alice": HUNDRED_TOKENS}, workers=2))
    upstream.default = App(total_tokens=used, latency=0.1)
    for round_number in range(rounds):
        answers = _ask_at_once([gateway], count_at_once, prompt="hi", max_tokens=50, stream=bool(round_number % 2))
        assert {answer.status for answer in answers} <= {200, 429}
    assert 1 <= len(upstream.served) <= 100 // used
    records = gateway.wait_for_records(count_at_once * rounds)
    assert sum(_tokens(record) for record in records) == used * len(upstream.served)


def test_a_hundred_tokens_of_the_real_model_are_never_passed(start_gateway: StartGateway, model: ModelProcess) -> None:
    models = {"m": {"context_window": 2048}}
    gateway = start_gateway(settings(model.base_url, users={"alice": HUNDRED_TOKENS}, models=models, workers=2))
    generated = 0
    for round_number in range(4):
        answers = _ask_at_once([gateway], 4, prompt="Count:", max_tokens=12, n=1 + round_number % 2, stream=True)
        assert {answer.status for answer in answers} <= {200, 429}
        generated += sum(_events_with_text(answer) for answer in answers if answer.status == 200)
    records = gateway.wait_for_records(16)
    assert len(records) == 16
    assert 0 < generated <= sum(_tokens(record) for record in records) <= 100


def test_a_stream_that_the_client_left_is_charged(start_gateway: StartGateway, model: ModelProcess) -> None:
    models = {"m": {"context_window": 2048}}
    gateway = start_gateway(settings(model.base_url, users={"alice": {}}, models=models))
    with_openai_headers = bearer("alice")
    body = json.dumps({"model": "m", "prompt": "Once upon a time", "max_tokens": 500, "stream": True}).encode()
    left = call(
        gateway.base_url,
        "POST",
        "/v1/completions",
        with_openai_headers,
        body,
        stop=lambda answer: answer.body.count(b"\n\n") > 5,
    )
    assert not left.complete
    (record,) = gateway.wait_for_records(1)
    assert record["outcome"] == "client_left"
    assert 5 <= record["output_tokens"] < 500


def _tokens(record: dict[str, Any]) -> int:
    total: int = record["input_tokens"] + record["output_tokens"]
    return total


def _events_with_text(answer: Resp) -> int:
    return sum(bool(choice.get("text")) for event in sse_json(answer.body) for choice in event["choices"])


# ---------------------------------------------------------------- hits
def test_who_has_no_tokens_left_is_still_served_from_the_cache(
    start_gateway: StartGateway, upstream: FakeUpstream
) -> None:
    users = {"alice": HUNDRED_TOKENS, "bob": HUNDRED_TOKENS}
    gateway = start_gateway(settings(f"{upstream.url}/v1", users=users))
    upstream.default = App(total_tokens=60)
    question = {"temperature": 0, "max_tokens": 50, "prompt": "known"}
    assert _ask(gateway, "bob", **question).status == 200
    assert _ask(gateway, "alice", max_tokens=50).status == 200
    assert _ask(gateway, "alice", max_tokens=50).status == 429
    assert _ask(gateway, "alice", **question).status == 200
    refused = _ask(gateway, "alice", **{**question, "prompt": "unknown"})
    assert refused.status == 429
    assert len(upstream.served) == 2


def test_the_key_in_either_header_is_the_same_user(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    gateway = start_gateway(settings(f"{upstream.url}/v1", users={"alice": FIVE_A_MINUTE}))
    body = b'{"prompt": "x", "temperature": 1}'
    path = "/openai/deployments/m/completions?api-version=2024-06-01"
    azure = [("api-key", key_of("alice")), ("Content-Type", "application/json")]
    statuses = [call(gateway.base_url, "POST", path, azure, body).status for _ in range(3)]
    statuses += [_ask(gateway).status for _ in range(3)]
    assert statuses == [200] * 5 + [429]
