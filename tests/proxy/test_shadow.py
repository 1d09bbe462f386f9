from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import DONE, FakeUpstream, body_reply, ev, head, json_reply, sse_reply, tchunk, usage
from meeting import Gate
from sending import fake_upstream, series, up
from stores import eventually
from structlog.testing import capture_logs
from whole import Whole, configuration, whole_gateway

from proxy import shadow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from fake_upstream import Ops
    from sending import MemoryWriter
    from stores import StoreServer

__all__ = ["fake_upstream", "up"]

LIMIT = 100_000
ORGANIZATION = "org_default"
USAGE = usage(20, prompt=7)
COLD = {"temperature": 0}
LIMITS = [{"of": of, "limit": LIMIT, "per": "day", "by": ["key"]} for of in ("tokens", "requests")]


@pytest.fixture(scope="session")
def second_upstream() -> FakeUpstream:
    return FakeUpstream().start()


@pytest.fixture
def canary(second_upstream: FakeUpstream) -> Iterator[FakeUpstream]:
    """Return the server of the shadow deployment."""
    second_upstream.reset()
    yield second_upstream
    second_upstream.reset()


def answered(text: str, **more: object) -> dict[str, Any]:
    choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": "stop", **more}
    return {"id": "x", "object": "text_completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}


def streamed(*texts: str, end: str = "ok", finish: str | None = "stop") -> Ops:
    events = [*(ev(tchunk(text)) for text in texts), ev(tchunk("", 0, finish))]
    used = ev({**tchunk(""), "choices": [], "usage": USAGE})
    return sse_reply([*events, used, DONE] if end == "ok" else events, gap=0, end=end)


def refused(status: int) -> Ops:
    return json_reply({"error": {"message": "no"}}, status, [("x-should-retry", "false")])


@asynccontextmanager
async def gateway(
    up: FakeUpstream,
    canary: FakeUpstream,
    valkey: StoreServer,
    folder: Path,
    *,
    shadow: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    cache: dict[str, Any] | None = None,
    **more: object,
) -> AsyncIterator[Whole]:
    """Open a gateway whose model has a shadow at another upstream."""
    shadow = {"upstream": "canary", "name": "next", **(shadow or {})}
    upstreams = {
        name: {"kind": "openai", "base_url": f"{server.url}/v1"} for name, server in (("only", up), ("canary", canary))
    }
    served = {
        "deployments": [{"upstream": "only"}],
        "price": {"input": 1, "output": 2},
        "max_output_tokens": 20,
        "shadow": shadow,
        **(model or {}),
    }
    settings = {
        "policies": {"default": {"limits": LIMITS, "cache": {"mode": "off", **(cache or {})}}},
        "models": {"m": served},
        "upstreams": upstreams,
        **more,
    }
    async with whole_gateway(configuration(up.url, folder, **settings), valkey.url) as whole:
        yield whole


async def ask(whole: Whole, status: int = 200, path: str = "completions", **more: object) -> MemoryWriter:
    asked = {"model": "m", "prompt": "x", "max_tokens": 20} if path == "completions" else {"model": "m"}
    answer, _ = await whole.ask("POST", f"/v1/{path}", {**asked, **more})
    assert answer.status == status
    return answer


def results(whole: Whole) -> dict[str, float]:
    """Return how many requests for the shadow ended how."""
    return {result: n for (model, result), n in series(whole.metrics, "shadow_requests_total").items() if model == "m"}


def records(valkey: StoreServer) -> list[dict[str, Any]]:
    with valkey.client() as client:
        entries = [entry for key in client.scan_iter(match="*:outbox") for _, entry in client.xrange(key)]
    return [json.loads(value) for entry in entries for value in entry.values()]


WHOLE: dict[str, tuple[Ops, Ops, dict[str, Any], str]] = {
    "the same": (json_reply(answered("a")), json_reply(answered("a")), COLD, "same"),
    "another text": (json_reply(answered("a")), json_reply(answered("b")), COLD, "different"),
    "the same stream in other pieces": (streamed("a", "bc"), streamed("ab", "c"), {**COLD, "stream": True}, "same"),
    "another stream": (streamed("a", "bc"), streamed("a"), {**COLD, "stream": True}, "different"),
    "a stream that asked for usage": (
        streamed("a"),
        streamed("a"),
        {**COLD, "stream": True, "stream_options": {"include_usage": True}},
        "same",
    ),
    "what is drawn anew each time": (json_reply(answered("a")), json_reply(answered("b")), {}, "sent"),
    "one that is not finished": (
        json_reply(answered("a")),
        json_reply(answered("a", finish_reason=None)),
        COLD,
        "sent",
    ),
    "the client's is not finished": (
        json_reply(answered("a", finish_reason=None)),
        json_reply(answered("a")),
        COLD,
        "sent",
    ),
    "the client's stream is not finished": (
        streamed("a", finish=None),
        streamed("a"),
        {**COLD, "stream": True},
        "sent",
    ),
    "an error": (json_reply(answered("a")), refused(500), COLD, "failed"),
    "a refusal": (json_reply(answered("a")), refused(404), COLD, "failed"),
    "a bad credential": (json_reply(answered("a")), refused(401), COLD, "failed"),
    "an error object": (json_reply(answered("a")), json_reply({"error": {"message": "no"}}), COLD, "failed"),
    "a page": (json_reply(answered("a")), body_reply(b"<html>", ctype="text/html"), COLD, "failed"),
    "a stream that is cut": (streamed("a"), streamed("a", end="rst"), {**COLD, "stream": True}, "failed"),
    "a part": (
        json_reply(answered("a")),
        [("send", head(200, [("Content-Type", "application/json"), ("Content-Length", 9)]) + b"{"), ("rst",)],
        COLD,
        "failed",
    ),
}


@pytest.mark.parametrize(("ours", "theirs", "fields", "result"), WHOLE.values(), ids=list(WHOLE))
async def test_what_was_answered_is_also_sent_to_the_shadow(
    up: FakeUpstream,
    canary: FakeUpstream,
    valkey: StoreServer,
    tmp_path: Path,
    ours: Ops,
    theirs: Ops,
    fields: dict[str, Any],
    result: str,
) -> None:
    up.script(ours, ours)
    canary.script(theirs, theirs)
    async with gateway(up, canary, valkey, tmp_path, shadow={"share": 1}) as whole:
        await ask(whole, **fields)
        await eventually(lambda: results(whole) == {result: 1})
        again = await ask(whole, **fields)
        await eventually(lambda: results(whole) == {result: 2})
    assert canary.log[0].json() == {**up.log[0].json(), "model": "next"}
    assert len(up.log) == len(canary.log) == 2, "one attempt each"
    assert again.header("x-ratelimit-remaining-requests") == str(LIMIT - 2), "the shadow took from the client's limit"


async def test_a_shadow_leaves_a_record_of_its_own_at_the_models_price(
    up: FakeUpstream, canary: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    up.script(json_reply(answered("a")))
    canary.script(json_reply({**answered("a"), "usage": usage(30, prompt=10)}))
    async with gateway(up, canary, valkey, tmp_path) as whole:
        answer = await ask(whole)
        await eventually(lambda: results(whole) == {"sent": 1})
    assert series(whole.metrics, "spent_usd_total") == {("m", "proj"): 33e-6, ("m", ""): 50e-6}
    client, theirs = records(valkey)
    assert (client["origin"], client["request_id"]) == ("client", answer.header("x-request-id"))
    assert (client["input_tokens"], client["output_tokens"], client["cost_microdollars"]) == (7, 13, 33)
    assert theirs["origin"] == "shadow"
    assert theirs["request_id"] != client["request_id"]
    assert (theirs["input_tokens"], theirs["output_tokens"], theirs["cost_microdollars"]) == (10, 20, 50)
    assert (theirs["upstream"], theirs["deployment"], theirs["model"]) == ("canary", "next", "m")
    assert (theirs["status"], theirs["outcome"], theirs["attempts"]) == (200, "completed", 1)
    assert (theirs["organization"], theirs["project"], theirs["owner"], theirs["key"]) == (ORGANIZATION, "", "", "")
    assert (theirs["cache"], theirs["cache_reason"]) == ("bypass", "shadow")


async def test_no_client_waits_for_it(
    up: FakeUpstream, canary: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    gate = Gate()
    canary.script([gate.op, *json_reply(answered("a"))])
    up.script(json_reply(answered("a")))
    async with gateway(up, canary, valkey, tmp_path) as whole:
        answer = await ask(whole, **COLD)
        assert answer.is_finished
        assert results(whole) == {}
        gate.open()
        await eventually(lambda: results(whole) == {"same": 1})


NOT_SENT: dict[str, tuple[Ops, int, dict[str, Any]]] = {
    "a refusal": (refused(400), 400, {}),
    "an error": (refused(500), 500, {}),
    "an error object": (json_reply({"error": {"message": "no"}}), 200, {}),
    "an answer of no use": (body_reply(b"<html>", ctype="text/html"), 502, {}),
    "a stream that is cut": (streamed("a", end="rst"), 200, {"stream": True}),
}


@pytest.mark.parametrize(("reply", "status", "fields"), NOT_SENT.values(), ids=list(NOT_SENT))
async def test_what_no_upstream_has_answered_is_sent_to_no_shadow(
    up: FakeUpstream,
    canary: FakeUpstream,
    valkey: StoreServer,
    tmp_path: Path,
    reply: Ops,
    status: int,
    fields: dict[str, Any],
) -> None:
    up.script(reply)
    async with gateway(up, canary, valkey, tmp_path) as whole:
        await ask(whole, status, **fields)
    assert (results(whole), len(canary.log)) == ({}, 0)


async def test_a_request_whose_client_has_left_is_sent_to_no_shadow(
    up: FakeUpstream, canary: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    up.script([("hold", 20)])
    async with gateway(up, canary, valkey, tmp_path) as whole:
        task = asyncio.create_task(ask(whole))
        await eventually(lambda: len(up.log) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (results(whole), len(canary.log)) == ({}, 0)


async def test_hits_have_no_shadow(up: FakeUpstream, canary: FakeUpstream, valkey: StoreServer, tmp_path: Path) -> None:
    async with gateway(up, canary, valkey, tmp_path, cache={"mode": "deterministic"}) as whole:
        await ask(whole, **COLD)
        hit = await ask(whole, **COLD)
        await eventually(lambda: sum(results(whole).values()) == 1)
    assert hit.header("cache-status").startswith("tidegate;hit")
    assert len(canary.log) == 1


async def test_of_requests_that_share_a_fetch_one_has_a_shadow_though_its_client_leaves(
    up: FakeUpstream, canary: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    gate = Gate()
    up.script([gate.op, *json_reply(answered("a"))])
    canary.script(json_reply(answered("a")))
    async with gateway(up, canary, valkey, tmp_path, cache={"mode": "deterministic"}) as whole:
        first = asyncio.create_task(ask(whole, **COLD))
        await eventually(lambda: len(up.log) == 1)
        others = [asyncio.create_task(ask(whole, **COLD)) for _ in range(3)]
        await eventually(lambda: len(whole.gateway.snapshot.admissions.live) == 4)
        first.cancel()
        gate.open()
        await asyncio.gather(*others)
        await asyncio.wait([first])
        await eventually(lambda: results(whole) == {"same": 1})
    assert (len(up.log), len(canary.log)) == (1, 1)


async def test_what_must_not_be_stored_is_compared_and_not_stored(
    up: FakeUpstream, canary: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    up.script(json_reply(answered("a")))
    canary.script(json_reply(answered("a")))
    async with gateway(up, canary, valkey, tmp_path, cache={"mode": "deterministic"}) as whole:
        asked = {"model": "m", "prompt": "x", "max_tokens": 20, **COLD}
        await whole.ask("POST", "/v1/completions", asked, Cache_Control="no-store")
        await eventually(lambda: results(whole) == {"same": 1})
        assert len(whole.gateway.snapshot.admissions.cache.memory) == 0
    with valkey.client() as client:
        assert not list(client.scan_iter(match="*:cache:*"))


async def test_what_nobody_wants_compared_is_only_sent(
    up: FakeUpstream, canary: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    up.script(json_reply(answered("a")))
    canary.script(json_reply(answered("b")))
    cache = {"mode": "deterministic"}
    async with gateway(up, canary, valkey, tmp_path, shadow={"compare": False}, cache=cache) as whole:
        await ask(whole, **COLD)
        await eventually(lambda: results(whole) == {"sent": 1})


async def test_of_an_array_what_was_fetched_has_a_shadow(
    up: FakeUpstream, canary: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    async with gateway(up, canary, valkey, tmp_path, cache={"mode": "deterministic"}) as whole:
        await ask(whole, path="embeddings", input=["a", "b"])
        await eventually(lambda: results(whole) == {"same": 1})
        whole_answer = await ask(whole, path="embeddings", input=["c", "b", "a"])
        await eventually(lambda: results(whole) == {"same": 2})
    assert [req.json()["input"] for req in canary.log] == [["a", "b"], ["c"]]
    assert len(json.loads(whole_answer.body)["data"]) == 3


async def test_an_answer_too_long_to_be_kept_is_not_compared(
    up: FakeUpstream, canary: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    up.script(streamed("a" * 2000))
    canary.script(streamed("b"))
    async with gateway(up, canary, valkey, tmp_path, max_entry_bytes=1024) as whole:
        answer = await ask(whole, stream=True, **COLD)
        await eventually(lambda: results(whole) == {"sent": 1})
    assert b"a" * 2000 in answer.body


async def test_it_takes_from_limits_of_the_organization_and_is_dropped_without_room(
    up: FakeUpstream, canary: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    limit = {"of": "requests", "limit": 3, "per": "day", "by": ["organization"], "on_exceed": "wait"}
    policies = {"default": {"cache": {"mode": "off"}}, "all": {"limits": [limit]}}
    organization = {"id": ORGANIZATION, "policy": "all"}
    async with gateway(up, canary, valkey, tmp_path, policies=policies, organization=organization) as whole:
        first = await ask(whole)
        await eventually(lambda: results(whole) == {"sent": 1})
        last = await ask(whole)
        await eventually(lambda: results(whole) == {"sent": 1, "dropped": 1})
    remaining = "x-ratelimit-remaining-requests"
    assert (first.header(remaining), last.header(remaining)) == ("2", "0")
    assert len(canary.log) == 1
    assert [each["origin"] for each in records(valkey)] == ["client", "shadow", "client"]


async def test_it_stands_in_no_line_before_a_busy_upstream(
    up: FakeUpstream, canary: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    canary.script([("hold", 20)])
    busy = {"kind": "openai", "base_url": f"{canary.url}/v1", "concurrency": 1, "queue": {"length": 5}}
    upstreams = {"only": {"kind": "openai", "base_url": f"{up.url}/v1"}, "canary": busy}
    async with gateway(up, canary, valkey, tmp_path, upstreams=upstreams) as whole:
        await ask(whole)
        await eventually(lambda: len(canary.log) == 1)
        await ask(whole)
        await eventually(lambda: results(whole) == {"dropped": 1})
    assert len(canary.log) == 1


async def test_what_is_too_much_at_once_is_dropped(
    up: FakeUpstream, canary: FakeUpstream, valkey: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow, "_MOST_AT_ONCE", 1)
    canary.script([("hold", 20)])
    async with gateway(up, canary, valkey, tmp_path) as whole:
        await ask(whole)
        await eventually(lambda: len(canary.log) == 1)
        await ask(whole)
        assert results(whole) == {"dropped": 1}
    assert len(canary.log) == 1


async def test_a_process_that_ends_drops_what_is_under_way(
    up: FakeUpstream, canary: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    canary.script([("hold", 20)])
    async with gateway(up, canary, valkey, tmp_path) as whole:
        await ask(whole)
        await eventually(lambda: len(canary.log) == 1)
    assert results(whole) == {"dropped": 1}
    async with asyncio.timeout(5):
        await asyncio.to_thread(canary.wait, lambda: canary.log[0].aborted_at)
    [theirs] = [each for each in records(valkey) if each["origin"] == "shadow"]
    assert theirs["outcome"] == "client_left"


async def test_a_shadow_that_fails_is_no_failure_of_the_models_own_deployments(
    up: FakeUpstream, canary: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    canary.script(*[refused(500)] * 6)
    async with gateway(up, canary, valkey, tmp_path, model={"breaker": {"failures": 2, "fail_fast": True}}) as whole:
        for number in range(1, 7):
            await ask(whole)
            await eventually(lambda expected=number: results(whole) == {"failed": expected})
        states = series(whole.metrics, "upstream_breaker_state")
    opened = {(upstream, name) for (_, upstream, name, state), value in states.items() if value and state == "open"}
    assert opened <= {("canary", "next")}
    assert len(up.log) == 6


async def test_the_log_tells_where_answers_part_and_nothing_of_what_they_say(
    up: FakeUpstream, canary: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    up.script(json_reply(answered("private one")))
    canary.script(json_reply(answered("private two")))
    async with gateway(up, canary, valkey, tmp_path) as whole:
        with capture_logs() as logged:
            answer = await ask(whole, **COLD)
            await eventually(lambda: results(whole) == {"different": 1})
    [line] = [each for each in logged if "shadow" in each["event"]]
    assert "private" not in json.dumps(logged)
    assert line["request_id"] == answer.header("x-request-id")
    assert line["shadow_request_id"] == canary.log[0].header("x-client-request-id")
    assert (line["model"], line["place"], line["position"]) == ("m", "choices/0/text", len("private "))
    assert (line["upstream"], line["shadow_upstream"], line["shadow_deployment"]) == ("only", "canary", "next")
