"""One of two servers stalls now and then: whoever asks the same of both is not kept waiting (SPEC §8)."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import DONE, FakeUpstream, ev, json_reply, sse_reply, tchunk, usage
from gateway import Gateway, Settings, bearer, eventually, settings
from harness import Raw, Resp, call, joined, parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fake_upstream import Ops, Req

    StartGateway = Callable[[Settings], Gateway]

ALICE = {
    "limits": [
        {"of": "concurrency", "limit": 50, "by": ["key"]},
        {"of": "usd", "limit": 1, "per": "month", "by": ["organization"]},
    ],
    "cache": {"mode": "off"},
}
FIRST = 1_000_000_000
"""A weight by which a deployment is the first to be tried, as good as always."""
STALL: Ops = [("hold", 600)]


@pytest.fixture(scope="module")
def second_upstream() -> FakeUpstream:
    return FakeUpstream().start()


@pytest.fixture
def spare(second_upstream: FakeUpstream) -> Iterator[FakeUpstream]:
    """Return the second server."""
    second_upstream.reset()
    yield second_upstream
    second_upstream.reset()


def say(req: Req) -> Ops:
    """Answer in the form that was asked for."""
    text = f"answer to {req.json()['prompt']}"
    if not req.json().get("stream"):
        choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": "stop"}
        return json_reply({"id": "x", "object": "text_completion", "choices": [choice], "usage": usage(20)})
    used = ev({**tchunk(""), "choices": [], "usage": usage(20)})
    return sse_reply([ev(tchunk(text)), ev(tchunk("", 0, "stop")), used, DONE], gap=0)


def made(upstream: FakeUpstream, spare: FakeUpstream, **more: Any) -> Settings:  # noqa: ANN401  any setting
    upstreams = {
        name: {"kind": "openai", "base_url": f"{server.url}/v1"}
        for name, server in (("first", upstream), ("spare", spare))
    }
    model = {
        "deployments": [{"upstream": "first", "weight": FIRST}, {"upstream": "spare"}],
        "hedge_after": "100ms",
        "price": {"input": 1, "output": 2},
    }
    return settings("", users={"alice": ALICE}, models={"m": model}, upstreams=upstreams, **more)


def asked(prompt: str, **more: object) -> bytes:
    return json.dumps({"model": "m", "prompt": prompt, "max_tokens": 40, "temperature": 0, **more}).encode()


def results(gateway: Gateway) -> dict[str, int]:
    """Return how many hedges ended how."""
    page = call(gateway.admin_url, "GET", "/metrics").body.decode()
    found = re.findall(r'^tidegate_hedges_total\{model="m",result="(\w+)"\} (\S+)$', page, re.MULTILINE)
    return {result: int(float(count)) for result, count in found}


def test_nobody_waits_for_a_server_that_stalls(
    start_gateway: StartGateway, upstream: FakeUpstream, spare: FakeUpstream
) -> None:
    many, every = 60, 5
    number = itertools.count()
    upstream.default = lambda req: STALL if next(number) % every == 0 else say(req)
    spare.default = say
    gateway = start_gateway(made(upstream, spare, workers=2))

    def ask(at: int) -> Resp:
        body = asked(f"question {at}", stream=at % 2 == 0)
        return call(gateway.base_url, "POST", "/v1/completions", bearer("alice"), body)

    answers = [
        answer
        for start in range(0, many, 20)
        for answer in parallel([lambda at=at: ask(at) for at in range(start, start + 20)])
    ]
    for at, answer in enumerate(answers):
        text = joined(answer.body)[0] if at % 2 == 0 else answer.json()["choices"][0]["text"]
        assert text == f"answer to question {at}"
    stalled = many // every
    assert eventually(lambda: results(gateway).get("won") == stalled), results(gateway)
    assert upstream.wait(lambda: sum(each.aborted_at is not None for each in upstream.log) >= stalled)

    hedges = sum(results(gateway).values())
    found = gateway.wait_for_records(many + hedges)
    clients, lost = ([each for each in found if each["origin"] == origin] for origin in ("client", "hedge"))
    assert len(clients) == many
    assert {(each["outcome"], each["attempts"], each["cost_microdollars"]) for each in clients} == {
        ("completed", 1, 7 * 1 + 13 * 2)
    }
    given_up = [each for each in lost if each["upstream"] == "first"]
    assert len(given_up) == stalled
    assert {(each["outcome"], each["attempts_of_unknown_cost"], each["key"]) for each in given_up} == {
        ("client_left", 1, "")
    }


@pytest.mark.parametrize("stream", [False, True], ids=["a whole answer", "a stream"])
def test_both_attempts_end_within_a_second_when_the_client_leaves(
    start_gateway: StartGateway, upstream: FakeUpstream, spare: FakeUpstream, *, stream: bool
) -> None:
    upstream.default = spare.default = STALL
    gateway = start_gateway(made(upstream, spare))
    client = Raw(gateway.base_url)
    client.request("POST", "/v1/completions", bearer("alice"), asked("x", stream=stream))
    assert spare.wait(lambda: spare.log)
    left = time.monotonic()
    client.close()
    for server in (upstream, spare):
        assert server.wait(lambda server=server: server.log[0].aborted_at)
        assert server.log[0].aborted_at is not None
        assert server.log[0].aborted_at - left < 1
    found = gateway.wait_for_records(2)
    assert sorted((each["origin"], each["upstream"], each["outcome"]) for each in found) == [
        ("client", "first", "client_left"),
        ("hedge", "spare", "client_left"),
    ]
    assert eventually(lambda: results(gateway) == {"lost": 1})


def test_the_end_of_a_drain_ends_both_and_the_client_is_told(
    start_gateway: StartGateway, upstream: FakeUpstream, spare: FakeUpstream
) -> None:
    upstream.default = spare.default = STALL
    gateway = start_gateway(made(upstream, spare, drain_timeout="1s"))
    client = Raw(gateway.base_url, timeout=30)
    client.request("POST", "/v1/completions", bearer("alice"), asked("x"))
    answers: list[Resp] = []
    reading = threading.Thread(target=lambda: answers.append(client.response()))
    reading.start()
    assert spare.wait(lambda: spare.log)
    assert gateway.terminate() == 0
    reading.join(10)
    client.close()
    assert (answers[0].status, answers[0].json()["error"]["code"]) == (503, "draining")
    assert all(server.wait(lambda server=server: server.log[0].aborted_at) for server in (upstream, spare))
    found = sorted((each["origin"], each["outcome"], each["error_code"]) for each in gateway.records())
    assert found == [("client", "failed", "draining"), ("hedge", "client_left", None)]
