from __future__ import annotations

import json
from typing import Any

import pytest
from fake_upstream import DONE, ev, tchunk, usage

from policies.requests.asked import Endpoint
from policies.usage import Usage
from proxy.divergence import Difference, compare, find_difference
from proxy.store.entries import StoredAnswer

TEXTS, CHAT, VECTORS, RESPONSES = Endpoint.COMPLETIONS, Endpoint.CHAT, Endpoint.EMBEDDINGS, Endpoint.RESPONSES


def stored(body: bytes, *, is_stream: bool = False) -> StoredAnswer:
    content_type = "text/event-stream" if is_stream else "application/json"
    return StoredAnswer(
        is_stream=is_stream, content_type=content_type, body=body, created_milliseconds=0, usage=Usage(7, 13)
    )


def whole(**fields: Any) -> StoredAnswer:  # noqa: ANN401  JSON values
    return stored(json.dumps({"id": "x", "object": "o", "model": "m", "usage": usage(20), **fields}).encode())


def texts(*texts: str, **more: object) -> StoredAnswer:
    """Return a completion of so many choices."""
    choices = [{"index": index, "text": text, "finish_reason": "stop", **more} for index, text in enumerate(texts)]
    return whole(choices=choices)


def chat(**message: object) -> StoredAnswer:
    return whole(choices=[{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}])


def calling(arguments: str, call_id: str = "call_1") -> StoredAnswer:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return chat(content=None, tool_calls=[call])


def vectors(*vectors: list[float]) -> StoredAnswer:
    return whole(data=[{"object": "embedding", "index": i, "embedding": each} for i, each in enumerate(vectors)])


def response(text: str, *, call_id: str) -> StoredAnswer:
    call = {"type": "function_call", "id": "fc", "call_id": call_id, "name": "f", "arguments": "{}"}
    said = {"type": "message", "id": "msg", "content": [{"type": "output_text", "text": text}]}
    return whole(output=[call, said])


def stream(*pieces: str) -> StoredAnswer:
    last = {**tchunk("", 0, "stop"), "usage": usage(20)}
    return stored(b"".join([*(ev(tchunk(piece)) for piece in pieces), ev(last), DONE]), is_stream=True)


SAME = {
    "probabilities": (TEXTS, texts("a"), texts("a", logprobs={"tokens": ["a"]})),
    "a null more": (TEXTS, texts("a"), texts("a", stop_reason=None)),
    "a stream and a whole answer": (TEXTS, stream("a", "b"), texts("ab")),
    "a stream in other pieces": (TEXTS, stream("a", "bc"), stream("ab", "c")),
    "a tool call of another id": (CHAT, calling("{}"), calling("{}", "call_2")),
    "a response's tool call of another id": (RESPONSES, response("a", call_id="1"), response("a", call_id="2")),
    "the other order": (
        TEXTS,
        whole(choices=[{"index": 0, "text": "a"}, {"index": 1, "text": "b"}]),
        whole(choices=[{"index": 1, "text": "b"}, {"index": 0, "text": "a"}]),
    ),
}


@pytest.mark.parametrize(("endpoint", "one", "other"), SAME.values(), ids=list(SAME))
def test_what_says_the_same_does_not_differ(endpoint: Endpoint, one: StoredAnswer, other: StoredAnswer) -> None:
    assert find_difference(one, other, endpoint) is None


DIFFERENT = {
    "a text that goes on otherwise": (TEXTS, texts("secret one"), texts("secret two"), ("choices/0/text", 7)),
    "a text that ends early": (TEXTS, texts("abc"), texts("ab"), ("choices/0/text", 2)),
    "another text in the second choice": (TEXTS, texts("a", "b"), texts("a", "c"), ("choices/1/text", 0)),
    "a choice less": (TEXTS, texts("a", "b"), texts("a"), ("choices", 1)),
    "another end": (TEXTS, texts("a"), texts("a", finish_reason="length"), ("choices/0/finish_reason", 0)),
    "a stream": (TEXTS, stream("ab", "c"), texts("abd"), ("choices/0/text", 2)),
    "no text": (CHAT, chat(content="a"), chat(refusal="no"), ("choices/0/message/content", None)),
    "arguments of a tool": (
        CHAT,
        calling('{"a": 1}'),
        calling('{"a": 2}'),
        ("choices/0/message/tool_calls/0/function/arguments", 6),
    ),
    "a number in a vector": (VECTORS, vectors([1, 2.5]), vectors([1, 3]), ("data/0/embedding/1", None)),
    "what is none of the API's names": (
        CHAT,
        chat(content={"a secret thing": 1}),
        chat(content={"a secret thing": 2}),
        ("choices/0/message/content/?", None),
    ),
    "a stream that cannot be taken apart": (
        TEXTS,
        stored(b"data: {}\n\n", is_stream=True),
        stored(b"data: []\n\n", is_stream=True),
        ("", 6),
    ),
}


@pytest.mark.parametrize(("endpoint", "one", "other", "expected"), DIFFERENT.values(), ids=list(DIFFERENT))
def test_it_is_told_where_answers_part_and_nothing_of_what_they_say(
    endpoint: Endpoint, one: StoredAnswer, other: StoredAnswer, expected: tuple[str, int | None]
) -> None:
    assert find_difference(one, other, endpoint) == Difference(*expected)


async def test_long_answers_are_compared_as_short_ones() -> None:
    long = "word " * 50_000
    assert await compare(texts(long), stream(long), TEXTS) is None
    assert await compare(texts(long), texts(long[:-1]), TEXTS) == Difference("choices/0/text", len(long) - 1)
    assert await compare(texts("a"), texts("b"), TEXTS) == Difference("choices/0/text", 0)
