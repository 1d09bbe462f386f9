from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from fake_upstream import DONE

from policies.usage import Usage
from proxy.exchange import Observed
from proxy.wire.choice_texts import ChoiceTexts
from proxy.wire.chunks import CHUNKS
from proxy.wire.streams import StreamObserver, is_readable, without_obfuscation

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def event(obj: object, *, ensure_ascii: bool = True, separators: tuple[str, str] | None = None) -> bytes:
    return b"data: " + json.dumps(obj, ensure_ascii=ensure_ascii, separators=separators).encode() + b"\n\n"


def text(piece: str, *, index: int = 0, finish: str | None = None, **more: object) -> dict[str, object]:
    choice = {"index": index, "text": piece, "logprobs": None, "finish_reason": finish}
    return {"id": "c", "model": "m", "choices": [choice], **more}


def delta(*, index: int = 0, finish: str | None = None, **fields: object) -> dict[str, object]:
    return {"id": "c", "model": "m", "choices": [{"index": index, "delta": fields, "finish_reason": finish}]}


USAGE_EVENT = event({"id": "c", "model": "m", "choices": [], "usage": USAGE})


def observe(*events: bytes, drops_usage: bool = False) -> tuple[Observed, StreamObserver, bytes]:
    observed = Observed()
    observer = StreamObserver(observed, CHUNKS, drops_usage=drops_usage)
    return observed, observer, b"".join(observer.observe([each]) for each in events)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([event(text("ab")), event(text("c"))], (2, 3), id="text of completions"),
        pytest.param([event(delta(content="é漢"))], (1, 5), id="escaped characters count as their UTF-8"),
        pytest.param([event(delta(content="é漢"), ensure_ascii=False)], (1, 5), id="characters as they are"),
        pytest.param([event(delta(role="assistant", content=""))], (0, 0), id="an empty delta is nothing"),
        pytest.param([event(text("a")) + event(text("b", index=1))], (2, 2), id="two events in one read"),
        pytest.param([event(text('say "text": "no"\\'))], (1, 17), id="a member's name inside the text"),
        pytest.param(
            [event(delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a"'}}]))], (1, 4), id="tool calls"
        ),
        pytest.param([event(delta(reasoning_content="hm", content="x"))], (2, 3), id="reasoning"),
        pytest.param([b'data: {"choices":[{"text":"\\ud800"}]}\n\n'], (1, 6), id="a lone surrogate"),
        pytest.param([b": ping\n\n"], (0, 0), id="comments are nothing"),
        pytest.param(
            [b": ping\n\n" + b'data: {"choices": [{"text":\ndata: "ab"}]}\n\n'],
            (1, 2),
            id="JSON over several data lines",
        ),
    ],
)
def test_what_was_generated_is_counted(events: list[bytes], expected: tuple[int, int]) -> None:
    observed, _, passed = observe(*events)
    assert (observed.content_events, observed.content_bytes) == expected
    assert passed == b"".join(events)


@pytest.mark.parametrize(
    ("names", "events"),
    [
        pytest.param(("reasoning", "reasoning_content"), 1, id="reasoning under its old name too"),
        pytest.param(("content", "reasoning"), 1, id="whatever the names"),
        pytest.param(("content",), 2, id="but each event by itself"),
    ],
)
@pytest.mark.parametrize("kept", [0, 1, 2], ids=["counted", "kept", "kept by choice"])
def test_what_an_event_says_twice_is_counted_once(names: tuple[str, ...], events: int, kept: int) -> None:
    observed = Observed(texts=ChoiceTexts(kept) if kept else None)
    observer = StreamObserver(observed, CHUNKS, drops_usage=False)
    observer.observe([event(delta(**dict.fromkeys(names, "hm")))] * events)
    assert (observed.content_events, observed.content_bytes) == (events, 2 * events)


@pytest.mark.parametrize("kept", [0, 1, 2], ids=["counted", "kept", "kept by choice"])
def test_what_is_said_twice_is_counted_once_whatever_comes_with_it(kept: int) -> None:
    observed = Observed(texts=ChoiceTexts(kept) if kept else None)
    observer = StreamObserver(observed, CHUNKS, drops_usage=False)
    twice = event(delta(reasoning="hm", reasoning_content="hm"))
    observer.observe([twice, event(delta(content="hm")), event(delta(role="assistant")), b": ping\n\n"])
    assert (observed.content_events, observed.content_bytes) == (2, 4)


PIECES = (text("Hel", index=1), text('say "é"', index=0), text("lo", index=1), text("", index=2), text("!", index=7))


@pytest.mark.parametrize(
    ("events", "candidates", "texts", "left_out"),
    [
        pytest.param(PIECES, 3, ("Hello", 'say "é"'), 1, id="by choice; one that cannot be is left out"),
        pytest.param(PIECES, 1, ('Helsay "é"lo!',), 0, id="of one choice whatever its number"),
        pytest.param(
            [{"choices": [{"index": 1, "text": "a"}, {"text": "b"}]}], 2, ("a", "b"), 0, id="several in one event"
        ),
        pytest.param([{"choices": [{"index": "one", "text": "a"}]}], 2, (), 1, id="a number that is none"),
        pytest.param(['"text": "a"'], 2, (), 0, id="in a string is nothing"),
        pytest.param(
            [delta(tool_calls=[{"index": 1, "function": {"arguments": "{"}}], content="x")], 2, ("{x",), 0, id="calls"
        ),
    ],
)
@pytest.mark.parametrize("reads", [1, 2], ids=["apart", "in one read"])
def test_texts_are_kept_by_choice(
    events: Sequence[object], candidates: int, texts: tuple[str, ...], left_out: int, reads: int
) -> None:
    observed = Observed(texts=ChoiceTexts(candidates))
    observer = StreamObserver(observed, CHUNKS, drops_usage=False)
    written = [event(each) for each in events]
    for each in [written] if reads == 1 else [[one] for one in written]:
        observer.observe(each)
    assert observed.texts is not None
    assert (sorted(observed.texts.joined()), observed.texts.left_out_bytes) == (sorted(texts), left_out)


def test_an_event_that_comes_in_parts_is_counted_and_of_no_choice() -> None:
    observed = Observed(texts=ChoiceTexts(2))
    observer = StreamObserver(observed, CHUNKS, drops_usage=False)
    observer.observe([b'data: {"choices": [{"index": 0, "text": "abc"}'])
    assert observed.texts is not None
    assert (observed.content_bytes, observed.texts.joined(), observed.texts.left_out_bytes) == (3, (), 3)


@pytest.mark.parametrize("candidates", [0, 1, 2], ids=["counted", "kept", "kept by choice"])
def test_a_part_of_an_event_counts_as_text_and_says_nothing(candidates: int) -> None:
    observed = Observed(texts=ChoiceTexts(candidates) if candidates else None)
    observer = StreamObserver(observed, CHUNKS, drops_usage=True)
    part = USAGE_EVENT + event({"error": "no"}) + DONE
    assert observer.observe_part(part) == part
    assert (observed.content_bytes, observed.usage) == (len(part), None)
    assert not observer.has_failed
    assert not observer.is_done
    if observed.texts is not None:
        assert observed.texts.left_out_bytes == len(part)


def test_a_part_behind_the_end_is_held() -> None:
    _, observer, _ = observe(event(text("", finish="stop")), DONE)
    assert observer.observe_part(b": long") == b""
    assert observer.held == DONE + b": long"


def test_facts_over_several_data_lines_are_read() -> None:
    parts = [
        b'data: {"model": "m", "choices": [{"index": 0, "finish_reason":\r\ndata: "stop"}]}\r\n\r\n',
        b'data: {"choices": [], "usage":\ndata: {"prompt_tokens": 7,\ndata: "completion_tokens": 3}}\n\n',
        b'data: {"error":\rdata: "no"}\r\r',
    ]
    observed, observer, passed = observe(*parts, drops_usage=True)
    assert observed.finish_reasons == {0: "stop"}
    assert observed.usage == Usage(7, 3)
    assert observer.has_failed
    assert passed == parts[0] + parts[2]


def test_facts_are_read_from_the_events_that_tell_them() -> None:
    observed, observer, passed = observe(
        event({"id": "", "model": "", "choices": [], "prompt_filter_results": []}),
        event(text("a", system_fingerprint="fp_1")),
        event(text("b", index=1)),
        event(text("", finish="stop")),
        event(text("", index=1, finish="length")),
        USAGE_EVENT,
        DONE,
        drops_usage=True,
    )
    assert observed.model == "m"
    assert observed.fingerprint == "fp_1"
    assert observed.finish_reasons == {0: "stop", 1: "length"}
    assert observed.usage == Usage(7, 3)
    assert observer.held == DONE
    assert DONE not in passed
    assert observer.has_finished(2)
    assert not observer.has_finished(3)


@pytest.mark.parametrize(
    ("events", "finished"),
    [
        pytest.param([event(text("", finish="stop")), DONE], True, id="finish reason and [DONE]"),
        pytest.param([event(text("", finish="stop")), b"data:[DONE]\r\n\r\n"], True, id="another spelling of [DONE]"),
        pytest.param([event(text("", finish="stop")), b": x\ndata: [DONE]\n\n"], True, id="a comment before [DONE]"),
        pytest.param([event(text("", finish="stop"), separators=(",", ":")), DONE], True, id="compact JSON"),
        pytest.param([event(text("a")), DONE], False, id="[DONE] without a finish reason"),
        pytest.param([event(text("", finish="stop"))], False, id="a finish reason without [DONE]"),
        pytest.param([event(text("[DONE]", finish="stop"))], False, id="[DONE] only in the text"),
        pytest.param([event({"error": {"message": "x"}}), event(text("", finish="stop")), DONE], False, id="an error"),
        pytest.param([event({"error": "x"}), event(text("", finish="stop")), DONE], False, id="an error as text"),
        pytest.param(
            [event(text("", finish="stop")), b"event: error\n" + event({"message": "x"}), DONE],
            False,
            id="an event that is called an error",
        ),
    ],
)
def test_a_stream_has_finished_when_every_choice_and_done_say_so(events: list[bytes], *, finished: bool) -> None:
    _, observer, _ = observe(event(text("a")), *events)
    assert observer.has_finished(1) is finished


def test_all_from_done_on_is_held() -> None:
    observed = Observed()
    observer = StreamObserver(observed, CHUNKS, drops_usage=True)
    assert observer.observe([event(text("a")), DONE, b": bye\n\n"]) == event(text("a"))
    assert observer.observe([b": late\n\n"]) == b""
    assert observer.held == DONE + b": bye\n\n: late\n\n"


@pytest.mark.parametrize("end", [b"data:[DONE]\n\n", b"data:  [DONE] \r\n\r\n", b"data: [DONE]"])
def test_the_end_is_known_however_it_is_written(end: bytes) -> None:
    _, observer, _ = observe(event(text("", finish="stop")), end)
    assert observer.has_finished(1)
    assert observer.held == end


def test_usage_after_done_is_noted_and_taken_out_like_any_other() -> None:
    observed, observer, _ = observe(event(text("", finish="stop")), DONE, USAGE_EVENT, DONE, drops_usage=True)
    assert observer.held == DONE + DONE
    assert observed.usage == Usage(7, 3)
    _, observer, _ = observe(event(text("", finish="stop")), DONE, USAGE_EVENT)
    assert observer.held == DONE + USAGE_EVENT


def test_an_error_after_done_is_held_and_known() -> None:
    _, observer, _ = observe(event(text("", finish="stop")), DONE, event({"error": {"message": "x"}}))
    assert observer.held == DONE + event({"error": {"message": "x"}})
    assert not observer.has_finished(1)


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        pytest.param(b"", True, id="nothing odd"),
        pytest.param(b": ping\n\nevent: x\nid: 1\n\n\n", True, id="comments, names and empty lines"),
        pytest.param(b'data: {"choices":\ndata: []}\r\n\r\n', True, id="data over two lines"),
        pytest.param('data: {"é": "漢"}\n\n'.encode(), True, id="text beyond ASCII"),
        pytest.param(b"data: hello\n\n", False, id="text"),
        pytest.param(b"data: 1\n\n", False, id="JSON that is no object"),
        pytest.param(b'data: {"a": tru}\n\n', False, id="a word that is no JSON"),
        pytest.param(b'data: {"a": 1} x\n\n', False, id="something behind the object"),
        pytest.param(b'data: {"choices": [{"text": "\xff"}]}\n\n', False, id="no UTF-8"),
        pytest.param(b'data: {"a": "' + b"\\x" + b'"}\n\n', False, id="an escape that is none"),
        pytest.param(b'data: {"a": ' + b"[" * 100_000 + b"\n\n", False, id="too deep"),
        pytest.param(b"data\n\n", False, id="data that is empty"),
    ],
)
@pytest.mark.parametrize(
    "end", [DONE, DONE[:-1], b"data:[DONE]\r\r", b"data:  [DONE] \n\n"], ids=["whole", "cut", "CR", "with spaces"]
)
def test_a_stream_is_readable_when_all_its_events_are(odd: bytes, end: bytes, *, expected: bool) -> None:
    assert is_readable(event(text("a")) + odd + event(text("", finish="stop")) + end) is expected


def test_garbage_passes_and_tells_nothing() -> None:
    garbage = [
        b"data: {broken\n\n",
        b"data: 1\n\n",
        b'data: {"choices": 3, "usage": {"x": 1}, "model": 4}\n\n',
        b"data\n\n",
    ]
    observed, _, passed = observe(*garbage)
    assert passed == b"".join(garbage)
    assert observed == Observed()


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        pytest.param(b'data: {"a":1,"obfuscation":"x9"}\n\n', b'data: {"a":1}\n\n', id="as the last member"),
        pytest.param(b'data: {"obfuscation": "x9", "a":1}\n\n', b'data: {"a":1}\n\n', id="as the first member"),
        pytest.param(b'data: {"t":"\\"obfuscation\\": \\"x\\""}\n\n', None, id="in the text it stays"),
        pytest.param(b'data: {"a":1}\n\n', None, id="without it nothing changes"),
    ],
)
def test_obfuscation_is_not_stored(stream: bytes, expected: bytes | None) -> None:
    assert without_obfuscation(stream) == (stream if expected is None else expected)
