from __future__ import annotations

import json

import pytest
from fake_upstream import DONE

from proxy.exchange import Observed
from proxy.wire.chunks import CHUNKS, is_added_usage_event, without_usage_event
from proxy.wire.streams import StreamObserver

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def event(obj: object, *, separators: tuple[str, str] | None = None) -> bytes:
    return b"data: " + json.dumps(obj, separators=separators).encode() + b"\n\n"


def text(piece: str, *, finish: str | None = None, **more: object) -> dict[str, object]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "text": piece, "finish_reason": finish}], **more}


USAGE_EVENT = event({"id": "c", "model": "m", "choices": [], "usage": USAGE})


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        pytest.param(USAGE_EVENT, True, id="empty choices and a usage object"),
        pytest.param(event({"choices": [], "usage": USAGE}, separators=(",", ":")), True, id="without spaces"),
        pytest.param(event({"choices": [], "usage": None}), False, id="empty choices and usage null"),
        pytest.param(event({"choices": [], "prompt_filter_results": []}), False, id="Azure's first event"),
        pytest.param(event({"choices": [], "usage": USAGE, "error": {"code": 1}}), False, id="an error beside it"),
        pytest.param(
            b'data: {"choices": [], "usage":\ndata: {"total_tokens": 3}}\r\n\r\n', True, id="over several data lines"
        ),
        pytest.param(USAGE_EVENT[:-2], True, id="without line ends"),
        pytest.param(event(text("", finish="stop", usage=USAGE)), False, id="usage on the finish chunk"),
        pytest.param(event({"usage": USAGE}), False, id="usage and no choices member"),
        pytest.param(event(text('"usage": {')), False, id="usage in the text"),
        pytest.param(b': "usage": {}\n\n', False, id="usage in a comment"),
        pytest.param(DONE, False, id="the end"),
    ],
)
def test_only_a_usage_event_is_ever_taken_out(candidate: bytes, expected: bool) -> None:  # noqa: FBT001
    assert is_added_usage_event(candidate) is expected
    for drops in (True, False):
        observer = StreamObserver(Observed(), CHUNKS, drops_usage=drops)
        passed = b"".join(observer.observe([each]) for each in (event(text("a")), candidate))
        kept = b"" if expected and drops else candidate
        assert passed + observer.held == event(text("a")) + kept


def test_a_stored_stream_loses_only_its_usage_event() -> None:
    rest = [event(text("a")), event(text("", finish="stop", usage=None))]
    assert without_usage_event(b"".join([*rest, USAGE_EVENT, DONE])) == b"".join([*rest, DONE])
    assert without_usage_event(b"".join([*rest, DONE])) == b"".join([*rest, DONE])
    assert without_usage_event(b"".join([*rest, USAGE_EVENT, DONE[:-1]])) == b"".join([*rest, DONE[:-1]])
    assert without_usage_event(b"".join([*rest, DONE, USAGE_EVENT[:-2]])) == b"".join([*rest, DONE])


def test_an_error_event_is_one_event() -> None:
    observer = StreamObserver(Observed(), CHUNKS, drops_usage=False)
    assert observer.error_event(b'{"error":{}}') == b'data: {"error":{}}\n\n'
