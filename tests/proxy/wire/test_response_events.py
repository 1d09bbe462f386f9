from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from responses import USAGE, event, response, stream

from proxy.wire.raw_json import Inexact
from proxy.wire.response_events import response_in, spread_response
from proxy.wire.sse import data_of

Events = list[tuple[str, dict[str, Any]]]


def response_of(*events: bytes) -> Any:  # noqa: ANN401  what the JSON says
    return json.loads(response_in(data for each in events if (data := data_of(each)) is not None))


def events_of(whole: dict[str, Any]) -> Events:
    """Return type and members of each event, whose number is its position."""
    found = [(name.decode(), json.loads(data)) for name, data in spread_response(json.dumps(whole).encode())]
    assert [members.pop("sequence_number") for _, members in found] == list(range(len(found)))
    assert [members.pop("type") for _, members in found] == [name for name, _ in found]
    return found


def item_events(item: dict[str, Any]) -> Events:
    """Return the events of a response's one item, less those of the response, of their place what is not 0."""
    begun, working, *found, end = events_of(response(output=[item]))
    assert (begun[0], working[0]) == ("response.created", "response.in_progress")
    assert end == ("response.completed", {"response": response(output=[item])})
    for _, members in found:
        assert members.pop("output_index") == 0
        assert members.pop("item_id", "i") == "i"
    return found


# ---------------------------------------------------------------- events → response
def test_the_response_is_the_one_that_the_stream_ends_in() -> None:
    assert response_of(*stream(["Hel", "lo"])) == response("Hello")
    cut = stream(["Hel"], end="incomplete", incomplete_details={"reason": "max_output_tokens"})
    assert response_of(*cut)["status"] == "incomplete"


def test_what_follows_the_end_is_not_looked_at() -> None:
    assert response_of(*stream(["a"]), b"data: [DONE]\n\n") == response("a")


DONE_ITEM = event(4, "response.output_item.done", output_index=0, item={})


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([], id="nothing"),
        pytest.param(stream(["a"])[:-1], id="no end"),
        pytest.param([b"data: [DONE]\n\n"], id="[DONE] alone"),
        pytest.param([*stream(["a"])[:-1], event(5, "response.failed", response=response())], id="it failed"),
        pytest.param([event(0, "error", message="x"), *stream(["a"])], id="an error"),
        pytest.param([event(0, "response.completed", response=None)], id="no response"),
        pytest.param([event(0, "response.completed")], id="no response member"),
        pytest.param([event(0, "response.completed", response=response(status="failed"))], id="another status"),
        pytest.param([DONE_ITEM, DONE_ITEM, *stream(["a"])], id="more items than the response has"),
        pytest.param([DONE_ITEM, event(5, "response.completed", response={"status": "completed"})], id="no output"),
        pytest.param([b'data: {"x":1}\n\n', *stream(["a"])], id="an event without a type"),
    ],
)
def test_a_stream_that_does_not_end_well_has_no_response(events: list[bytes]) -> None:
    with pytest.raises((Inexact, msgspec.DecodeError)):
        response_of(*events)


# ---------------------------------------------------------------- response → events
def test_a_response_begins_without_what_only_its_end_knows() -> None:
    whole = response("Hi", completed_at=2, temperature=0)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None, "completed_at": None}
    found = events_of(whole)
    assert found[:2] == [("response.created", {"response": begun}), ("response.in_progress", {"response": begun})]
    assert found[-1] == ("response.completed", {"response": whole})
    assert whole["usage"] == USAGE


def test_a_response_that_was_cut_ends_as_incomplete() -> None:
    whole = response("Hi", status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    found = events_of(whole)
    assert found[0][1]["response"]["incomplete_details"] is None
    assert found[-1] == ("response.incomplete", {"response": whole})


TEXT = "response.output_text"
CITED = {"type": "output_text", "text": "Hi", "annotations": [{"type": "file_path"}], "logprobs": [{"token": "Hi"}]}
MESSAGE = {"id": "i", "type": "message", "role": "assistant", "status": "completed"}
REASONING = {"id": "i", "type": "reasoning", "encrypted_content": "e"}
CALL = {"id": "i", "type": "function_call", "call_id": "c", "name": "f", "status": "completed"}


@pytest.mark.parametrize(
    ("item", "begun", "expected"),
    [
        pytest.param(
            {**MESSAGE, "content": [CITED]},
            {**MESSAGE, "status": "in_progress", "content": []},
            [
                (
                    "response.content_part.added",
                    {"content_index": 0, "part": {**CITED, "text": "", "annotations": [], "logprobs": []}},
                ),
                (f"{TEXT}.delta", {"content_index": 0, "delta": "Hi", "logprobs": [{"token": "Hi"}]}),
                (f"{TEXT}.done", {"content_index": 0, "text": "Hi", "logprobs": [{"token": "Hi"}]}),
                (
                    f"{TEXT}.annotation.added",
                    {"content_index": 0, "annotation_index": 0, "annotation": {"type": "file_path"}},
                ),
                ("response.content_part.done", {"content_index": 0, "part": CITED}),
            ],
            id="a text with annotations and logprobs",
        ),
        pytest.param(
            {**MESSAGE, "content": [{"type": "output_text", "text": "", "logprobs": None}]},
            {**MESSAGE, "status": "in_progress", "content": []},
            [
                (
                    "response.content_part.added",
                    {"content_index": 0, "part": {"type": "output_text", "text": "", "logprobs": None}},
                ),
                (f"{TEXT}.done", {"content_index": 0, "text": "", "logprobs": []}),
                (
                    "response.content_part.done",
                    {"content_index": 0, "part": {"type": "output_text", "text": "", "logprobs": None}},
                ),
            ],
            id="no text, no logprobs",
        ),
        pytest.param(
            {**MESSAGE, "content": [{"type": "refusal", "refusal": "No"}]},
            {**MESSAGE, "status": "in_progress", "content": []},
            [
                ("response.content_part.added", {"content_index": 0, "part": {"type": "refusal", "refusal": ""}}),
                ("response.refusal.delta", {"content_index": 0, "delta": "No"}),
                ("response.refusal.done", {"content_index": 0, "refusal": "No"}),
                ("response.content_part.done", {"content_index": 0, "part": {"type": "refusal", "refusal": "No"}}),
            ],
            id="a refusal",
        ),
        pytest.param(
            {**CALL, "arguments": "{}"},
            {**CALL, "status": "in_progress", "arguments": ""},
            [
                ("response.function_call_arguments.delta", {"delta": "{}"}),
                ("response.function_call_arguments.done", {"arguments": "{}"}),
            ],
            id="a function call",
        ),
        pytest.param(
            {"id": "i", "type": "custom_tool_call", "call_id": "c", "name": "t", "input": "x"},
            {"id": "i", "type": "custom_tool_call", "call_id": "c", "name": "t", "input": ""},
            [
                ("response.custom_tool_call_input.delta", {"delta": "x"}),
                ("response.custom_tool_call_input.done", {"input": "x"}),
            ],
            id="a call of a custom tool",
        ),
        pytest.param(
            {**REASONING, "summary": [{"type": "summary_text", "text": "Hm"}]},
            {**REASONING, "summary": []},
            [
                (
                    "response.reasoning_summary_part.added",
                    {"summary_index": 0, "part": {"type": "summary_text", "text": ""}},
                ),
                ("response.reasoning_summary_text.delta", {"summary_index": 0, "delta": "Hm"}),
                ("response.reasoning_summary_text.done", {"summary_index": 0, "text": "Hm"}),
                (
                    "response.reasoning_summary_part.done",
                    {"summary_index": 0, "part": {"type": "summary_text", "text": "Hm"}},
                ),
            ],
            id="a summary of reasoning",
        ),
        pytest.param(
            {**REASONING, "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
            {**REASONING, "summary": [], "content": []},
            [
                ("response.content_part.added", {"content_index": 0, "part": {"type": "reasoning_text", "text": ""}}),
                ("response.reasoning_text.delta", {"content_index": 0, "delta": "Hm"}),
                ("response.reasoning_text.done", {"content_index": 0, "text": "Hm"}),
                ("response.content_part.done", {"content_index": 0, "part": {"type": "reasoning_text", "text": "Hm"}}),
            ],
            id="reasoning itself",
        ),
        pytest.param(
            {**REASONING, "summary": [], "content": None},
            {**REASONING, "summary": [], "content": None},
            [],
            id="hidden",
        ),
    ],
)
def test_an_item_is_told_piece_by_piece(item: dict[str, Any], begun: dict[str, Any], expected: Events) -> None:
    added, *found, done = item_events(item)
    assert added == ("response.output_item.added", {"item": begun})
    assert found == expected
    assert done == ("response.output_item.done", {"item": item})


def test_items_and_their_parts_are_numbered() -> None:
    parts = [{"type": "output_text", "text": each, "annotations": []} for each in ("a", "b")]
    messages = [{**MESSAGE, "id": each, "content": parts} for each in ("x", "y")]
    deltas = [members for name, members in events_of(response(output=messages)) if name.endswith("text.delta")]
    assert [(each["item_id"], each["output_index"], each["content_index"], each["delta"]) for each in deltas] == [
        ("x", 0, 0, "a"),
        ("x", 0, 1, "b"),
        ("y", 1, 0, "a"),
        ("y", 1, 1, "b"),
    ]


@pytest.mark.parametrize(
    "whole",
    [
        pytest.param({}, id="no status"),
        pytest.param(response("a", status="in_progress"), id="not ended"),
        pytest.param(response("a", status="failed"), id="failed"),
        pytest.param(response("a", error={"code": "x"}), id="an error"),
        pytest.param(response(output=None), id="no output"),
        pytest.param(response(output=[{"id": "i", "type": "web_search_call"}]), id="a hosted tool"),
        pytest.param(response(output=[{"type": "message", "content": []}]), id="an item without an id"),
        pytest.param(response(output=[{"id": "i", "content": []}]), id="an item without a type"),
        pytest.param(response(output=[MESSAGE]), id="a message without content"),
        pytest.param(response(output=[{**MESSAGE, "content": [{"type": "output_audio"}]}]), id="audio"),
        pytest.param(response(output=[{**MESSAGE, "content": [{"type": "output_text"}]}]), id="a part without text"),
        pytest.param(response(output=[{**MESSAGE, "content": [{**CITED, "logprobs": 1}]}]), id="logprobs, no list"),
        pytest.param(response(output=[{**CALL, "arguments": {}}]), id="arguments that are an object"),
        pytest.param(response(output=[REASONING]), id="reasoning without a summary"),
    ],
)
def test_what_has_no_events_is_not_spread(whole: dict[str, Any]) -> None:
    with pytest.raises((Inexact, msgspec.DecodeError)):
        events_of(whole)
