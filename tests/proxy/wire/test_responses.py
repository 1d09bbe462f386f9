from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from fake_upstream import DONE
from responses import delta, event, response, stream

from policies.usage import Usage
from proxy.errors import UpstreamBroken, error_object
from proxy.exchange import Observed
from proxy.wire.responses import RESPONSES, generated_texts, note_finish
from proxy.wire.streams import StreamObserver

FILTERED = {"reason": "content_filter"}
CUT = {"reason": "max_output_tokens"}
BROKEN = error_object(UpstreamBroken("It broke."))


def observe(*events: bytes) -> tuple[Observed, StreamObserver, bytes]:
    observed = Observed()
    observer = StreamObserver(observed, RESPONSES, drops_usage=False)
    return observed, observer, b"".join(observer.observe([each]) for each in events)


def test_a_streams_facts_stand_in_its_last_event_which_is_held() -> None:
    events = stream(["Hel", "lo"])
    observed, observer, passed = observe(*events)
    assert passed == b"".join(events[:-1])
    assert observer.held == events[-1]
    assert observer.has_finished(1)
    assert (observed.model, observed.usage) == ("m", Usage(11, 7, 4, 2))
    assert observed.finish_reasons == {0: "completed"}


def test_the_whole_text_that_ends_an_item_is_not_counted_again() -> None:
    observed, _, _ = observe(*stream(["é", "漢字", ""]))
    assert (observed.content_events, observed.content_bytes) == (2, 2 + 6)


@pytest.mark.parametrize(
    ("kind", "members", "expected"),
    [
        pytest.param("response.output_text.delta", {"delta": 'a "b"'}, (1, 5), id="text"),
        pytest.param("response.refusal.delta", {"delta": "no"}, (1, 2), id="a refusal"),
        pytest.param("response.function_call_arguments.delta", {"delta": '{"a'}, (1, 3), id="arguments of a function"),
        pytest.param("response.reasoning_summary_text.delta", {"delta": "hm"}, (1, 2), id="a summary of reasoning"),
        pytest.param("response.reasoning_text.delta", {"delta": "hm"}, (1, 2), id="reasoning"),
        pytest.param("response.custom_tool_call_input.delta", {"delta": "x"}, (1, 1), id="input of a tool"),
        pytest.param("response.code_interpreter_call_code.delta", {"delta": "x=1"}, (1, 3), id="code"),
        pytest.param("response.output_text.done", {"text": "all of it"}, (0, 0), id="the text once more"),
        pytest.param("response.function_call_arguments.done", {"arguments": "{}"}, (0, 0), id="arguments once more"),
        pytest.param("response.content_part.done", {"part": {"text": "all"}}, (0, 0), id="the part once more"),
        pytest.param(
            "response.shell_call_output_content.delta", {"delta": {"stdout": "x"}}, (0, 0), id="what a tool put out"
        ),
    ],
)
def test_pieces_are_counted_and_repetitions_are_not(
    kind: str, members: dict[str, Any], expected: tuple[int, int]
) -> None:
    observed, _, _ = observe(event(0, kind, **members))
    assert (observed.content_events, observed.content_bytes) == expected


@pytest.mark.parametrize(
    ("last", "finished", "failed", "held"),
    [
        pytest.param(event(3, "response.completed", response=response("x")), True, False, True, id="completed"),
        pytest.param(
            event(3, "response.incomplete", response=response("x", status="incomplete", incomplete_details=CUT)),
            True,
            False,
            True,
            id="cut by its ceiling",
        ),
        pytest.param(
            event(3, "response.incomplete", response=response("x", status="incomplete", incomplete_details=FILTERED)),
            True,
            False,
            True,
            id="filtered",
        ),
        pytest.param(
            event(3, "response.incomplete", response=response("x", status="incomplete")),
            False,
            False,
            True,
            id="incomplete for no reason",
        ),
        pytest.param(
            event(3, "response.failed", response=response(status="failed", error={"code": "server_error"})),
            False,
            True,
            True,
            id="failed",
        ),
        pytest.param(event(3, "error", code="x", message="no", param=None), False, True, True, id="an error event"),
        pytest.param(b'data: {"error": {"message": "no"}}\n\n', False, True, True, id="an error as chats have it"),
        pytest.param(DONE, False, False, True, id="[DONE] alone"),
        pytest.param(delta(3, '"type": "response.completed"'), False, False, False, id="an end in the text"),
        pytest.param(delta(3, "[DONE]"), False, False, False, id="[DONE] in the text"),
        pytest.param(
            event(3, "response.output_item.done", item={"moderation": {"type": "error"}}),
            False,
            False,
            False,
            id="an error within an item",
        ),
        pytest.param(b": ping\n\n", False, False, False, id="a comment"),
        pytest.param(b'data: {"type":["x"],"a":{"type":"error"},"response":7}\n\n', False, False, False, id="garbage"),
    ],
)
def test_how_a_stream_ends(last: bytes, *, finished: bool, failed: bool, held: bool) -> None:
    begun = stream(["x"])[:2]
    _, observer, passed = observe(*begun, last)
    assert (observer.has_finished(1), observer.has_failed, observer.is_done) == (finished, failed, held)
    assert (passed, observer.held) == ((b"".join(begun), last) if held else (b"".join([*begun, last]), b""))


def test_a_done_after_the_end_is_held_with_it() -> None:
    events = stream(["x"])
    _, observer, _ = observe(*events, DONE)
    assert observer.held == events[-1] + DONE
    assert observer.has_finished(1)


def test_a_server_that_numbers_nothing_and_names_its_model_last_is_understood() -> None:
    created = b'event: response.created\ndata: {"type":"response.created","response":{"status":"in_progress"}}\n\n'
    pieces = [b'data: {"type":"response.output_text.delta","delta":"%d"}\n\n' % number for number in range(9)]
    end = b'data: {"type":"response.completed","response":%s}\n\n' % json.dumps(response("012345678")).encode()
    observed, observer, passed = observe(created, *pieces, end)
    assert passed == b"".join([created, *pieces])
    assert (observer.held, observed.model, observed.content_events) == (end, "m", 9)


@pytest.mark.parametrize(
    ("events", "number"),
    [
        pytest.param([], 0, id="before the first event"),
        pytest.param(stream(["a", "b"])[:3], 3, id="after the third"),
        pytest.param([*stream(["a", "b"])[:3], b": ping\n\n"], 3, id="after a comment"),
        pytest.param([b"".join(stream(["a", "b"])[:2])], 2, id="after two in one piece"),
        pytest.param([b'data: {"type":"response.output_text.delta","delta":"x"}\n\n'], 0, id="where none is numbered"),
    ],
)
def test_the_error_event_is_the_apis_own_and_numbered_as_the_next(events: list[bytes], number: int) -> None:
    _, observer, _ = observe(*events)
    written = observer.error_event(BROKEN)
    assert written.startswith(b"event: error\ndata: {")
    assert written.endswith(b"}\n\n")
    assert json.loads(written[len(b"event: error\ndata: ") :]) == {
        "type": "error",
        "code": "upstream_broken",
        "message": "It broke.",
        "param": None,
        "sequence_number": number,
        "error": {"message": "It broke.", "type": "server_error", "param": None, "code": "upstream_broken"},
    }


@pytest.mark.parametrize(
    ("status", "details", "expected"),
    [
        pytest.param("completed", None, {0: "completed"}, id="completed"),
        pytest.param("incomplete", CUT, {0: "max_output_tokens"}, id="cut by its ceiling"),
        pytest.param("incomplete", FILTERED, {0: "content_filter"}, id="filtered"),
        pytest.param("incomplete", {"reason": "steered"}, {}, id="another reason"),
        pytest.param("incomplete", None, {}, id="no reason"),
        pytest.param("in_progress", None, {}, id="in progress"),
        pytest.param("queued", None, {}, id="queued"),
        pytest.param("cancelled", None, {}, id="cancelled"),
        pytest.param("failed", None, {}, id="failed"),
        pytest.param(None, None, {}, id="no status"),
        pytest.param(["completed"], "x", {}, id="garbage"),
    ],
)
def test_what_finishes_a_response(status: object, details: object, expected: dict[int, str]) -> None:
    observed = Observed()
    note_finish(observed, status, details)
    assert observed.finish_reasons == expected


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        pytest.param({"type": "message", "content": [{"text": "abc"}, {"refusal": "é"}]}, 5, id="a message"),
        pytest.param({"type": "function_call", "name": "f", "arguments": '{"a":1}'}, 7, id="a call"),
        pytest.param({"type": "custom_tool_call", "input": "xy"}, 2, id="a call of a tool"),
        pytest.param({"type": "reasoning", "summary": [{"text": "hm"}], "encrypted_content": "zz"}, 2, id="reasoning"),
        pytest.param({"type": "image_generation_call", "result": "A" * 99}, 0, id="an image"),
        pytest.param({"type": "message", "content": "text"}, 0, id="parts of another type"),
        pytest.param(7, 0, id="no object"),
    ],
)
def test_what_an_item_holds_of_generated_text(item: object, expected: int) -> None:
    assert len(b"".join(generated_texts([msgspec.Raw(json.dumps(item).encode())]))) == expected
