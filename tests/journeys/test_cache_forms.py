"""Whoever asks for a stream and whoever asks for the whole share one answer, and the official client reads it alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pytest
from fake_upstream import body_reply, sse_reply
from gateway import Gateway, bearer, key_of, settings
from harness import Resp, call, uniq
from transcripts import SCRIPTED, Transcript

from policies.requests.asked import Endpoint
from proxy.wire.chunks import without_usage_event

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fake_upstream import FakeUpstream

PATHS = {Endpoint.COMPLETIONS: "/v1/completions", Endpoint.CHAT: "/v1/chat/completions"}
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
TRANSCRIPTS = pytest.mark.parametrize("transcript", SCRIPTED.values(), ids=SCRIPTED)


@pytest.fixture(scope="module", params=[64 * 1024 * 1024, 0], ids=["from memory", "from the store"])
def gateway(
    request: pytest.FixtureRequest, _upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    made = settings(f"{_upstream.url}/v1", users={"alice": {}}, cache_memory_bytes=request.param)
    with Gateway(tmp_path_factory.mktemp("gateway"), made) as running:
        yield running


@pytest.fixture
def asked(transcript: Transcript) -> dict[str, Any]:
    """Return a request that nobody has sent before, for as many choices as the transcript has."""
    common = {"model": "m", "temperature": 0, "n": len(transcript.whole["choices"])}
    if transcript.endpoint is Endpoint.CHAT:
        return {**common, "messages": [{"role": "user", "content": uniq()}]}
    return {**common, "prompt": uniq()}


def ask(gateway: Gateway, transcript: Transcript, asked: dict[str, Any]) -> Resp:
    answer = call(gateway.base_url, "POST", PATHS[transcript.endpoint], bearer("alice"), json.dumps(asked).encode())
    assert answer.status == 200
    assert answer.complete
    return answer


def from_cache(gateway: Gateway, transcript: Transcript, asked: dict[str, Any]) -> Resp:
    answer = ask(gateway, transcript, asked)
    assert answer.header("cache-status").startswith("tidegate;hit")
    return answer


def sdk(gateway: Gateway, transcript: Transcript) -> Any:  # noqa: ANN401  one of two resources
    client = openai.OpenAI(base_url=f"{gateway.base_url}/v1", api_key=key_of("alice"), max_retries=0)
    return client.chat.completions if transcript.endpoint is Endpoint.CHAT else client.completions


@TRANSCRIPTS
def test_a_stream_that_was_stored_serves_both(
    gateway: Gateway, upstream: FakeUpstream, transcript: Transcript, asked: dict[str, Any]
) -> None:
    upstream.script(sse_reply([transcript.stream], gap=0))
    assert ask(gateway, transcript, {**asked, "stream": True}).body == without_usage_event(transcript.stream)
    whole = sdk(gateway, transcript).create(**asked)
    assert whole.to_dict(mode="json") == transcript.whole
    assert from_cache(gateway, transcript, asked).json() == transcript.whole
    assert from_cache(gateway, transcript, {**asked, **WITH_USAGE}).body == transcript.stream
    assert len(upstream.log) == 1


@TRANSCRIPTS
def test_a_whole_answer_that_was_stored_serves_both(
    gateway: Gateway, upstream: FakeUpstream, transcript: Transcript, asked: dict[str, Any]
) -> None:
    spelled = json.dumps(transcript.whole, indent=1).encode()
    upstream.script(body_reply(spelled))
    assert ask(gateway, transcript, asked).body == spelled
    events = [event.to_dict(mode="json") for event in sdk(gateway, transcript).create(**asked, **WITH_USAGE)]
    assert said(events) == {choice["index"]: gist(choice) for choice in transcript.whole["choices"]}
    assert [event["usage"] for event in events if event.get("usage")][-1] == transcript.whole["usage"]
    stream = from_cache(gateway, transcript, {**asked, "stream": True})
    assert stream.body.endswith(b"data: [DONE]\n\n")
    assert b'"prompt_tokens"' not in stream.body
    assert from_cache(gateway, transcript, asked).body == spelled
    assert len(upstream.log) == 1


def gist(choice: dict[str, Any]) -> dict[str, Any]:
    """Return what was generated of one whole choice."""
    message = choice.get("message", choice)
    calls = message.get("tool_calls") or []
    function = message.get("function_call") or {"name": "", "arguments": ""}
    return {
        "finish_reason": choice["finish_reason"],
        "texts": tuple(message.get(name) or "" for name in ("text", "content", "refusal", "reasoning")),
        "calls": {each.get("index", index): each["function"] for index, each in enumerate(calls)},
        "function": function,
        "tokens": tokens(choice),
    }


def tokens(choice: dict[str, Any]) -> list[Any]:
    """Return the tokens whose probabilities a choice, or a part of one, tells."""
    told = choice.get("logprobs") or {}
    if "tokens" in told:
        return list(zip(told["tokens"], told["token_logprobs"], told["text_offset"], strict=True))
    return [*(told.get("content") or []), *(told.get("refusal") or [])]


def said(events: Iterable[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Put what was generated together, choice by choice, as a client would."""
    choices: dict[int, dict[str, Any]] = {}
    for part in (part for event in events for part in event["choices"]):
        delta = part.get("delta", part)
        empty = {"finish_reason": None, "texts": ("",) * 4, "calls": {}, "tokens": []}
        so_far = choices.setdefault(part["index"], {**empty, "function": {"name": "", "arguments": ""}})
        piece = gist({**part, "message": delta})
        so_far["finish_reason"] = piece["finish_reason"] or so_far["finish_reason"]
        so_far["texts"] = tuple(map("".join, zip(so_far["texts"], piece["texts"], strict=True)))
        so_far["tokens"] = so_far["tokens"] + piece["tokens"]
        for index, function in piece["calls"].items():
            so_far["calls"][index] = joined(so_far["calls"].get(index, {}), function)
        so_far["function"] = joined(so_far["function"], piece["function"])
    return choices


def joined(before: dict[str, str], piece: dict[str, str]) -> dict[str, str]:
    """Return a function's call with one more piece."""
    return {
        "name": (before.get("name") or "") + (piece.get("name") or ""),
        "arguments": (before.get("arguments") or "") + (piece.get("arguments") or ""),
    }
