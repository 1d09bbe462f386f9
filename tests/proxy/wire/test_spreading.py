from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from transcripts import (
    CONSTANT,
    FILTERED_PROMPTS,
    USAGE,
    call,
    called,
    chat,
    completion,
    delta,
    named,
    said,
    text,
    token,
    tokens,
)

from policies.requests.asked import Endpoint
from proxy.wire.raw_json import Inexact
from proxy.wire.spreading import spread

LONG = "x" * 2048
LOGPROBS = {"content": [token("a", -0.25)], "refusal": None}


def spread_out(whole: dict[str, Any], endpoint: Endpoint = Endpoint.CHAT) -> list[dict[str, Any]]:
    return [json.loads(chunk) for chunk in spread(endpoint, json.dumps(whole).encode())]


def parts_of(whole: dict[str, Any], endpoint: Endpoint = Endpoint.CHAT) -> list[dict[str, Any]]:
    return [part for chunk in spread_out(whole, endpoint) for part in chunk["choices"]]


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        pytest.param(
            [said(content="Hi", refusal=None)],
            [delta(role="assistant", content="", refusal=None), delta(content="Hi"), delta(0, "stop")],
            id="content",
        ),
        pytest.param([said(content="")], [delta(role="assistant", content=""), delta(0, "stop")], id="empty content"),
        pytest.param(
            [said(content=f"{LONG} yy zz")],
            [
                delta(role="assistant", content=""),
                delta(content=LONG),
                delta(content=" yy zz"),
                delta(0, "stop"),
            ],
            id="a long text in pieces",
        ),
        pytest.param(
            [said(content="b", refusal="c", reasoning="a")],
            [
                delta(role="assistant", reasoning="", content="", refusal=""),
                delta(reasoning="a"),
                delta(content="b"),
                delta(refusal="c"),
                delta(0, "stop"),
            ],
            id="reasoning, content, refusal",
        ),
        pytest.param(
            [said(0, "tool_calls", content=None, tool_calls=[called(0, "f", "{}"), called(1, "g", "")])],
            [
                delta(role="assistant", content=None),
                delta(tool_calls=[named(0, "f")]),
                delta(tool_calls=[call(0, "{}")]),
                delta(tool_calls=[named(1, "g")]),
                delta(0, "tool_calls"),
            ],
            id="tool calls",
        ),
        pytest.param(
            [said(0, "function_call", content=None, function_call={"name": "f", "arguments": "{}"})],
            [
                delta(role="assistant", content=None),
                delta(function_call={"name": "f", "arguments": ""}),
                delta(function_call={"arguments": "{}"}),
                delta(0, "function_call"),
            ],
            id="the function call of old",
        ),
        pytest.param(
            [said(content="a", annotations=[{"type": "url_citation"}])],
            [
                delta(role="assistant", content=""),
                delta(content="a"),
                delta(annotations=[{"type": "url_citation"}]),
                delta(0, "stop"),
            ],
            id="annotations",
        ),
        pytest.param(
            [said(content=None, tool_calls=[], annotations=[], audio=None)],
            [delta(role="assistant", content=None, tool_calls=[], annotations=[], audio=None), delta(0, "stop")],
            id="members that are empty",
        ),
        pytest.param(
            [{**said(content="a"), "logprobs": LOGPROBS, "content_filter_results": {}}],
            [
                {**delta(role="assistant", content=""), "logprobs": None},
                {**delta(content="a"), "logprobs": LOGPROBS},
                {**delta(0, "stop"), "logprobs": None, "content_filter_results": {}},
            ],
            id="logprobs go with the first text, what else a choice has with its end",
        ),
        pytest.param(
            [{**said(content=None), "logprobs": LOGPROBS}],
            [
                {**delta(role="assistant", content=None), "logprobs": LOGPROBS},
                {**delta(0, "stop"), "logprobs": None},
            ],
            id="logprobs of no text",
        ),
        pytest.param(
            [said(1, content="b"), said(0, content="a")],
            [
                delta(role="assistant", content=""),
                delta(content="a"),
                delta(0, "stop"),
                delta(1, role="assistant", content=""),
                delta(1, content="b"),
                delta(1, "stop"),
            ],
            id="choices in the order of their index",
        ),
    ],
)
def test_a_chat_choice_is_spread_over_deltas(choices: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert parts_of(chat(*choices)) == expected


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        pytest.param([text("Hi", 0, "stop")], [text("Hi"), text("", 0, "stop")], id="a text"),
        pytest.param([text("", 0, "stop")], [text(""), text("", 0, "stop")], id="no text"),
        pytest.param(
            [text("ab", 0, "stop", logprobs=tokens("a", "b", offset=0))],
            [text("ab", logprobs=tokens("a", "b", offset=0)), text("", 0, "stop", logprobs=None)],
            id="logprobs",
        ),
        pytest.param(
            [text("a", 0, "stop"), text("b", 1, "length")],
            [text("a"), text("", 0, "stop"), text("b", 1), text("", 1, "length")],
            id="two choices",
        ),
    ],
)
def test_a_completions_choice_is_spread_over_parts(
    choices: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> None:
    assert parts_of(completion(*choices), Endpoint.COMPLETIONS) == expected


def test_what_is_of_all_stands_in_every_chunk_and_what_was_measured_in_the_last() -> None:
    whole = completion(
        text("a", 0, "stop"), prompt_filter_results=FILTERED_PROMPTS, usage=USAGE, timings={"ms": 1}, provider="p"
    )
    first, said_one, last, usage = spread_out(whole, Endpoint.COMPLETIONS)
    every = {**CONSTANT, "object": "text_completion", "provider": "p"}
    azures = {"choices": [], "created": 0, "id": "", "model": "", "object": ""}
    assert first == {**azures, "prompt_filter_results": FILTERED_PROMPTS}
    assert said_one == {**every, "choices": [text("a")]}
    assert last == {**every, "choices": [text("", 0, "stop")], "timings": {"ms": 1}}
    assert usage == {**every, "choices": [], "usage": USAGE}


@pytest.mark.parametrize(
    "whole",
    [
        pytest.param(chat(), id="no choice"),
        pytest.param({**CONSTANT, "object": "chat.completion"}, id="no choices"),
        pytest.param(chat(said(content="a"), error={"message": "x"}), id="an error"),
        pytest.param(chat(said(content="a"), object="chat.completion.chunk"), id="a kind that it is not"),
        pytest.param(chat(said(content="a"), object=None), id="a kind that is null"),
        pytest.param(chat(said(content="a"), obfuscation="x"), id="what only streams have"),
        pytest.param(chat(said(content="a"), usage=7), id="usage that is a number"),
        pytest.param(chat(said(content="a"), said(content="b")), id="an index twice"),
        pytest.param(chat(said(1, content="a")), id="a choice is missing"),
        pytest.param(chat({**said(content="a"), "finish_reason": None}), id="no finish reason"),
        pytest.param(chat({**said(content="a"), "finish_reason": ""}), id="an empty finish reason"),
        pytest.param(chat({"index": 0, "finish_reason": "stop"}), id="no message"),
        pytest.param(chat({**said(content="a"), "delta": {}}), id="a delta in a whole answer"),
        pytest.param(chat(said(role=None, content="a")), id="no role"),
        pytest.param(chat(said()), id="no content"),
        pytest.param(chat(said(content=["a"])), id="content in parts"),
        pytest.param(chat(said(content="a", thinking="b")), id="a text that nobody knows"),
        pytest.param(chat(said(content="a", x="")), id="an empty text that nobody knows"),
        pytest.param(chat(said(content=None, audio={"data": "x"})), id="audio"),
        pytest.param(chat(said(content=None, annotations={})), id="annotations that are no list"),
        pytest.param(chat(said(content=None, tool_calls=[{"id": "x", "type": "custom"}])), id="a call of another type"),
        pytest.param(chat(said(content=None, tool_calls=[{**called(0, "f", ""), "index": 1}])), id="a call misplaced"),
        pytest.param(chat(said(content=None, function_call={"name": "f"})), id="a function without arguments"),
        pytest.param(chat(said(content=None, function_call={"arguments": ""})), id="a function without a name"),
    ],
)
def test_what_has_no_place_in_a_chunk_is_not_spread(whole: dict[str, Any]) -> None:
    with pytest.raises((Inexact, msgspec.DecodeError)):
        spread_out(whole)


@pytest.mark.parametrize("choice", [{"index": 0, "finish_reason": "stop"}, {**text("a", 0, "stop"), "message": {}}])
def test_a_completion_of_another_shape_is_not_spread(choice: dict[str, Any]) -> None:
    with pytest.raises(Inexact):
        spread_out(completion(choice), Endpoint.COMPLETIONS)
