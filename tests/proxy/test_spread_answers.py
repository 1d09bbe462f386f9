from __future__ import annotations

import json

import pytest
from sending import MemoryWriter

from policies.requests.asked import Endpoint
from proxy.spread_answers import SpreadAnswer

ANSWER = {
    "id": "x",
    "object": "text_completion",
    "created": 1,
    "model": "m",
    "choices": [{"text": "a", "index": 0, "logprobs": None, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}
HEADERS = [("Content-Type", "application/json"), ("Cache-Control", "no-store"), ("x-other", "1")]


async def spread(status: int, body: bytes, *, keeps_usage: bool = True) -> MemoryWriter:
    writer = MemoryWriter()
    await SpreadAnswer(writer, Endpoint.COMPLETIONS, keeps_usage=keeps_usage).respond(status, HEADERS, body)
    return writer


@pytest.mark.parametrize("keeps_usage", [True, False], ids=["with usage", "without usage"])
async def test_a_whole_answer_leaves_as_the_stream_it_would_have_been(*, keeps_usage: bool) -> None:
    answer = await spread(200, json.dumps(ANSWER).encode(), keeps_usage=keeps_usage)
    assert (answer.status, answer.header("content-type"), answer.header("x-other")) == (200, "text/event-stream", "1")
    assert answer.header("cache-control") == "no-cache, no-store"
    events = [event.removeprefix(b"data: ") for event in answer.body.split(b"\n\n") if event]
    assert events[-1] == b"[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == "a"
    assert [chunk["usage"] for chunk in chunks if chunk.get("usage")] == ([ANSWER["usage"]] if keeps_usage else [])


@pytest.mark.parametrize(
    ("status", "body"),
    [
        pytest.param(500, b'{"error": {"message": "no"}}', id="an error"),
        pytest.param(200, b'{"choices": 5}', id="what cannot be spread"),
    ],
)
async def test_anything_else_stays_whole(status: int, body: bytes) -> None:
    answer = await spread(status, body)
    assert (answer.status, answer.header("content-type"), answer.body) == (status, "application/json", body)
