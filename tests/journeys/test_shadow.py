"""A new model server is tried out with live traffic: no client notices, and the organization pays (SPEC §8)."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import DONE, FakeUpstream, ev, json_reply, sse_reply, tchunk, usage
from gateway import Gateway, Settings, bearer, eventually, settings
from harness import Resp, call, joined, parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fake_upstream import Ops, Req

    StartGateway = Callable[[Settings], Gateway]

LIMIT = 1000
ALICE = {"limits": [{"of": "requests", "limit": LIMIT, "per": "day", "by": ["key"]}], "cache": {"mode": "off"}}
AT_ONCE = 64
"""How many requests for shadow deployments one worker has under way at most."""


@pytest.fixture(scope="module")
def second_upstream() -> FakeUpstream:
    return FakeUpstream().start()


@pytest.fixture
def canary(second_upstream: FakeUpstream) -> Iterator[FakeUpstream]:
    """Return the server that is tried out."""
    second_upstream.reset()
    yield second_upstream
    second_upstream.reset()


def say(req: Req, text: str) -> Ops:
    """Answer in the form that was asked for."""
    if not req.json().get("stream"):
        choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": "stop"}
        return json_reply({"id": "x", "object": "text_completion", "choices": [choice], "usage": usage(20)})
    used = ev({**tchunk(""), "choices": [], "usage": usage(20)})
    return sse_reply([*(ev(tchunk(each)) for each in text), ev(tchunk("", 0, "stop")), used, DONE], gap=0)


def made(upstream: FakeUpstream, canary: FakeUpstream, **more: Any) -> Settings:  # noqa: ANN401  any setting
    upstreams = {
        name: {"kind": "openai", "base_url": f"{server.url}/v1"}
        for name, server in (("only", upstream), ("canary", canary))
    }
    model = {"shadow": {"upstream": "canary"}, "price": {"input": 1, "output": 2}}
    models = {"m": model, **more.pop("models", {})}
    return settings("", users={"alice": ALICE}, models=models, upstreams=upstreams, **more)


def ask(gateway: Gateway, prompt: str, **more: object) -> Resp:
    body = {"model": "m", "prompt": prompt, "max_tokens": 40, "temperature": 0, **more}
    return call(gateway.base_url, "POST", "/v1/completions", bearer("alice"), json.dumps(body).encode())


def results(gateway: Gateway) -> dict[str, int]:
    """Return how many requests for the shadow ended how."""
    page = call(gateway.admin_url, "GET", "/metrics").body.decode()
    found = re.findall(r'^tidegate_shadow_requests_total\{model="m",result="(\w+)"\} (\S+)$', page, re.MULTILINE)
    return {result: int(float(count)) for result, count in found}


def test_a_server_is_tried_out_with_live_traffic(
    start_gateway: StartGateway, upstream: FakeUpstream, canary: FakeUpstream
) -> None:
    prompts = [f"{'odd' if number % 10 == 0 else 'even'} question {number}" for number in range(40)]
    upstream.default = lambda req: say(req, f"answer to {req.json()['prompt']}")
    canary.default = lambda req: say(req, f"answer to {req.json()['prompt'].replace('odd', 'other')}")
    gateway = start_gateway(made(upstream, canary, workers=2))
    answers = parallel(
        [
            lambda prompt=prompt, number=number: ask(gateway, prompt, stream=number % 2 == 0)
            for number, prompt in enumerate(prompts)
        ]
    )
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        text = joined(answer.body)[0] if number % 2 == 0 else answer.json()["choices"][0]["text"]
        assert text == f"answer to {prompt}"
    assert eventually(lambda: results(gateway) == {"same": 36, "different": 4}), results(gateway)
    assert ask(gateway, "the last one").header("x-ratelimit-remaining-requests") == str(LIMIT - 41)

    found = gateway.wait_for_records(82)
    clients, shadows = ([each for each in found if each["origin"] == origin] for origin in ("client", "shadow"))
    assert (len(clients), len(shadows)) == (41, 41)
    assert {(each["project"], each["key"], each["upstream"]) for each in shadows} == {("", "", "canary")}
    assert sum(each["cost_microdollars"] for each in shadows) == 41 * (7 * 1 + 13 * 2)
    told = [json.loads(line) for line in gateway.log.splitlines() if "answered differently" in line]
    assert [(each["place"], each["position"]) for each in told] == [("choices/0/text", len("answer to o"))] * 4
    assert {each["request_id"] for each in told} <= {each["request_id"] for each in clients}
    assert {each["shadow_request_id"] for each in told} <= {each["request_id"] for each in shadows}
    assert "question" not in gateway.log


def test_a_server_that_hangs_keeps_nobody_waiting_nor_the_gateway_from_stopping(
    start_gateway: StartGateway, upstream: FakeUpstream, canary: FakeUpstream
) -> None:
    canary.default = [("hold", 600)]
    gateway = start_gateway(made(upstream, canary))
    answers = parallel([lambda number=number: ask(gateway, str(number)) for number in range(AT_ONCE + 10)])
    assert {each.status for each in answers} == {200}
    assert eventually(lambda: results(gateway) == {"dropped": 10}), results(gateway)
    assert canary.wait(lambda: len(canary.log) == AT_ONCE)
    assert gateway.terminate() == 0
    assert canary.wait(lambda: all(each.aborted_at for each in canary.log))
    shadows = [each for each in gateway.records() if each["origin"] == "shadow"]
    assert [each["outcome"] for each in shadows] == ["client_left"] * AT_ONCE
    assert {each["attempts_of_unknown_cost"] for each in shadows} == {1}


def test_what_bears_a_clients_own_credential_is_sent_nowhere_else(
    start_gateway: StartGateway, upstream: FakeUpstream, canary: FakeUpstream
) -> None:
    passing = {"auth": "passthrough", "shadow": {"upstream": "canary"}}
    gateway = start_gateway(made(upstream, canary, models={"own": passing}))
    assert ask(gateway, "private", model="own").status == 200
    assert ask(gateway, "public").status == 200
    assert canary.wait(lambda: canary.log)
    assert [each.json()["prompt"] for each in canary.log] == ["public"]
