from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import DONE, body_reply, ev, head, json_reply, sse_reply, tchunk, usage, vec
from sending import fake_upstream, series, up
from stores import eventually
from whole import Whole, configuration, whole_gateway

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from fake_upstream import FakeUpstream, Ops
    from sending import MemoryWriter
    from stores import StoreServer

__all__ = ["fake_upstream", "up"]

LIMIT = 100_000
ORGANIZATION = "org_default"
USAGE = usage(20, prompt=7)
ASKED = {"model": "m", "prompt": "x", "temperature": 0, "max_tokens": 20, "n": 2}


def choice(text: str, index: int = 0, **more: object) -> dict[str, Any]:
    return {"text": text, "index": index, "logprobs": None, "finish_reason": "stop", **more}


def answered(*choices: dict[str, Any], **more: object) -> dict[str, Any]:
    return {
        "id": "x",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": choices,
        "usage": USAGE,
        **more,
    }


KNOWN = answered(choice("a"), choice("b", 1))


def streamed(*texts: str, end: str = "ok") -> Ops:
    """Return a stream of two choices."""
    events = [ev(tchunk(text, index)) for index, text in enumerate(texts)]
    events += [ev(tchunk("", index, "stop")) for index in range(len(texts))]
    used = ev({**tchunk(""), "choices": [], "usage": USAGE})
    return sse_reply([*events, used, DONE] if end == "ok" else events, gap=0, end=end)


@asynccontextmanager
async def gateway(
    up: FakeUpstream, valkey: StoreServer, folder: Path, *, share: float = 1, **more: object
) -> AsyncIterator[Whole]:
    """Open a gateway that checks this share of its hits, under a limit of tokens and one of requests."""
    limits = [{"of": of, "limit": LIMIT, "per": "day", "by": ["key"]} for of in ("tokens", "requests")]
    policies = {"default": {"cache": {"drift_check": share}, "limits": limits}}
    models = {"m": {"deployments": [{"upstream": "only"}], "price": {"input": 1, "output": 2}, "max_output_tokens": 20}}
    made = configuration(up.url, folder, policies=policies, models=models, **more)
    async with whole_gateway(made, valkey.url) as whole:
        yield whole


async def ask(whole: Whole, *, control: str | None = None, path: str = "completions", **more: object) -> MemoryWriter:
    fields = {} if control is None else {"Cache_Control": control}
    asked = {**ASKED, **more} if path == "completions" else {"model": "m", **more}
    answer, _ = await whole.ask("POST", f"/v1/{path}", asked, **fields)
    assert answer.status == 200
    return answer


def checks(whole: Whole) -> dict[str, float]:
    """Return how many checks ended how."""
    found = series(whole.metrics, "cache_divergence_total")
    return {result: count for (model, result), count in found.items() if model == "m"}


def records(valkey: StoreServer) -> list[dict[str, Any]]:
    """Return the usage records, in order."""
    with valkey.client() as client:
        entries = [entry for key in client.scan_iter(match="*:outbox") for _, entry in client.xrange(key)]
    return [json.loads(value) for entry in entries for value in entry.values()]


WHOLE: dict[str, tuple[Ops, str]] = {
    "the same": (json_reply(KNOWN), "same"),
    "the same with another id, at another time": (json_reply({**KNOWN, "id": "y", "created": 2}), "same"),
    "the same with another usage and fingerprint": (
        json_reply({**KNOWN, "usage": usage(30), "system_fingerprint": "fp"}),
        "same",
    ),
    "the same with other probabilities": (
        json_reply(answered(choice("a", logprobs={"tokens": ["a"]}), choice("b", 1))),
        "same",
    ),
    "the same in another order": (json_reply(answered(choice("b", 1), choice("a"))), "same"),
    "the same with a null more": (json_reply(answered(choice("a", stop_reason=None), choice("b", 1))), "same"),
    "another text": (json_reply(answered(choice("a"), choice("c", 1))), "different"),
    "the texts changed about": (json_reply(answered(choice("b"), choice("a", 1))), "different"),
    "another end": (json_reply(answered(choice("a"), choice("b", 1, finish_reason="length"))), "different"),
    "one choice only": (json_reply(answered(choice("a"))), "failed"),
    "what was filtered": (json_reply(answered(choice("a"), choice("", 1, finish_reason="content_filter"))), "failed"),
    "an error": (json_reply({"error": {"message": "no"}}, 500, [("x-should-retry", "false")]), "failed"),
    "an error object": (json_reply({"error": {"message": "no"}}), "failed"),
    "a page": (body_reply(b"<html>", ctype="text/html"), "failed"),
    "a part": (
        [("send", head(200, [("Content-Type", "application/json"), ("Content-Length", 9)]) + b"{"), ("rst",)],
        "failed",
    ),
}


@pytest.mark.parametrize(("reply", "result"), WHOLE.values(), ids=list(WHOLE))
async def test_a_hit_is_fetched_again_and_compared(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path, reply: Ops, result: str
) -> None:
    up.script(json_reply(KNOWN), reply)
    async with gateway(up, valkey, tmp_path) as whole:
        fetched = await ask(whole)
        hit = await ask(whole)
        await eventually(lambda: checks(whole) == {result: 1})
        again = await ask(whole, control="no-cache")
    assert hit.header("cache-status").startswith("tidegate;hit")
    assert hit.body == fetched.body
    assert up.log[1].json() == up.log[0].json()
    tokens, requests = ("x-ratelimit-remaining-tokens", "x-ratelimit-remaining-requests")
    assert hit.header(tokens) == fetched.header(tokens) == str(LIMIT - 20)
    assert (hit.header(requests), again.header(requests)) == (str(LIMIT - 2), str(LIMIT - 3))
    assert again.header(tokens) == str(LIMIT - 40), "a check took from a limit"


STREAMS: dict[str, tuple[Ops, str]] = {
    "the same": (streamed("a", "b"), "same"),
    "another text": (streamed("a", "c"), "different"),
    "cut": (streamed("a", "b", end="rst"), "failed"),
}


@pytest.mark.parametrize(("reply", "result"), STREAMS.values(), ids=list(STREAMS))
@pytest.mark.parametrize("is_stored_whole", [True, False], ids=["stored whole", "stored as a stream"])
async def test_a_stream_is_fetched_again_as_one(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path, reply: Ops, result: str, *, is_stored_whole: bool
) -> None:
    up.script(json_reply(KNOWN) if is_stored_whole else streamed("a", "b"), reply)
    async with gateway(up, valkey, tmp_path) as whole:
        await ask(whole, stream=not is_stored_whole)
        hit = await ask(whole, stream=True)
        await eventually(lambda: checks(whole) == {result: 1})
    assert hit.header("cache-status").startswith("tidegate;hit")
    assert up.log[1].json()["stream"] is True


async def test_a_check_leaves_a_record_of_its_own(up: FakeUpstream, valkey: StoreServer, tmp_path: Path) -> None:
    up.script(json_reply(KNOWN), json_reply({**KNOWN, "usage": usage(30, prompt=10)}))
    async with gateway(up, valkey, tmp_path) as whole:
        answers = [await ask(whole) for _ in range(2)]
        await eventually(lambda: checks(whole) == {"same": 1})
    [check] = [record for record in records(valkey) if record["origin"] == "drift_check"]
    clients = [record for record in records(valkey) if record["origin"] == "client"]
    assert [record["request_id"] for record in clients] == [answer.header("x-request-id") for answer in answers]
    assert check["request_id"] not in {record["request_id"] for record in clients}
    assert (check["input_tokens"], check["output_tokens"], check["cost_microdollars"]) == (10, 20, 50)
    assert (check["status"], check["outcome"], check["upstream"], check["attempts"]) == (200, "completed", "only", 1)
    assert (check["cache"], check["saved_microdollars"], check["duration_seconds"] > 0) == ("bypass", 0, True)
    assert (check["organization"], check["project"], check["owner"], check["key"]) == (ORGANIZATION, "", "", "")


async def test_a_check_takes_from_limits_of_the_organization_and_is_dropped_without_room(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    limit = {"of": "requests", "limit": 4, "per": "day", "by": ["organization"], "on_exceed": "wait"}
    policies = {"default": {"cache": {"drift_check": 1}}, "all": {"limits": [limit]}}
    up.script(json_reply(KNOWN), json_reply(KNOWN))
    organization = {"id": ORGANIZATION, "policy": "all"}
    made = configuration(up.url, tmp_path, policies=policies, organization=organization)
    async with whole_gateway(made, valkey.url) as whole:
        await ask(whole)
        hit = await ask(whole)
        await eventually(lambda: checks(whole) == {"same": 1})
        last = await ask(whole)
        await eventually(lambda: "drift_check" not in {task.get_name() for task in asyncio.all_tasks()})
    remaining = "x-ratelimit-remaining-requests"
    assert (hit.header(remaining), last.header(remaining)) == ("2", "0")
    assert checks(whole) == {"same": 1}
    assert len(up.log) == 2


async def test_an_answer_that_must_not_be_stored_is_checked_like_others(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    up.script(json_reply(KNOWN), json_reply(KNOWN))
    async with gateway(up, valkey, tmp_path) as whole:
        await ask(whole)
        await ask(whole, control="no-store")
        await eventually(lambda: checks(whole) == {"same": 1})


async def test_what_is_checked_is_not_put_in_the_place_of_what_is_kept(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    up.script(json_reply(KNOWN), *[json_reply(answered(choice("other"), choice("b", 1)))] * 2)
    async with gateway(up, valkey, tmp_path) as whole:
        first = await ask(whole)
        for number in (1, 2):
            hit = await ask(whole)
            await eventually(lambda expected=number: checks(whole) == {"different": expected})
            assert hit.body == first.body


async def test_an_array_is_checked_whole(up: FakeUpstream, valkey: StoreServer, tmp_path: Path) -> None:
    async with gateway(up, valkey, tmp_path, max_entry_bytes=1024) as whole:
        texts = [f"text {number}" for number in range(50)]
        await ask(whole, path="embeddings", input=texts)
        hit = await ask(whole, path="embeddings", input=texts[::-1])
        await eventually(lambda: checks(whole) == {"same": 1})
    assert [each["embedding"] for each in json.loads(hit.body)["data"]] == [vec(text) for text in texts[::-1]]
    assert up.log[1].json()["input"] == texts[::-1]


async def test_nothing_is_checked_but_hits_of_a_policy_that_says_so(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    async with gateway(up, valkey, tmp_path, share=0) as whole:
        for _ in range(3):
            await ask(whole)
    async with gateway(up, valkey, tmp_path) as whole:
        await ask(whole, prompt="new")
        await ask(whole, temperature=1)
    assert len(up.log) == 3
    assert {record["origin"] for record in records(valkey)} == {"client"}


async def test_a_process_that_ends_drops_its_checks(up: FakeUpstream, valkey: StoreServer, tmp_path: Path) -> None:
    up.script(json_reply(KNOWN), [("hold", 20)])
    async with gateway(up, valkey, tmp_path) as whole:
        await ask(whole)
        await ask(whole)
        await eventually(lambda: len(up.log) == 2)
    assert checks(whole) == {}, "what was dropped says nothing of the upstream"
    async with asyncio.timeout(5):
        await asyncio.to_thread(up.wait, lambda: up.log[1].aborted_at)
