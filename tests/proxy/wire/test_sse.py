from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.sse import EventSplitter, data_of, ends_event

STREAMS = {
    "LF": b'data: {"a":1}\n\ndata: [DONE]\n\n',
    "CRLF": b"data: one\r\n\r\ndata: two\r\n\r\n",
    "CR alone": b"data: one\r\rdata: two\r\r",
    "line ends mixed within one event": b"event: x\rdata: one\r\n\ndata: two\n\r\n",
    "comments and keep-alives": b": PROCESSING\n\n:\n\n: ping\ndata: one\n\n",
    "several data lines": b"data: one\ndata: two\n\ndata: three\n\n",
    "no space after the colon": b"data:one\n\ndata:two\n\n",
    "byte order mark": b"\xef\xbb\xbfdata: one\n\ndata: two\n\n",
    "characters of several bytes": "data: café 漢字 😀\n\ndata: ü\n\n".encode(),
    "blank lines too many": b"\n\ndata: one\n\n\n\n\ndata: two\n\n",
    "blank CRLF lines too many": b"\r\n\r\ndata: one\r\n\r\n\r\ndata: two\r\n\r\n",
    "an unfinished event at the end": b"data: one\n\ndata: tw",
}


def datas(pieces: list[bytes]) -> list[bytes]:
    return [data for piece in pieces if (data := data_of(piece)) is not None]


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS.keys())
def test_every_cut_yields_the_same_bytes_and_the_same_events(stream: bytes) -> None:
    whole = EventSplitter()
    expected = datas(whole.feed(stream))
    assert expected, "the row has no event"
    for cut in range(len(stream) + 1):
        splitter = EventSplitter()
        pieces = splitter.feed(stream[:cut]) + splitter.feed(stream[cut:])
        assert b"".join(pieces) + splitter.rest() == stream
        assert datas(pieces) == expected, cut


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS.keys())
def test_byte_by_byte_yields_the_same_events(stream: bytes) -> None:
    splitter = EventSplitter()
    pieces = [piece for byte in stream for piece in splitter.feed(bytes([byte]))]
    assert b"".join(pieces) + splitter.rest() == stream
    assert datas(pieces) == datas(EventSplitter().feed(stream))


@given(st.lists(st.sampled_from([b"a", b"data: x", b"\n", b"\r", b"\r\n", b":", "é".encode()])), st.integers(1, 7))
def test_no_byte_is_lost_or_moved(parts: list[bytes], size: int) -> None:
    stream = b"".join(parts)
    splitter = EventSplitter()
    pieces = [piece for start in range(0, len(stream), size) for piece in splitter.feed(stream[start : start + size])]
    assert b"".join(pieces) + splitter.rest() == stream
    assert splitter.rest() == b""


@pytest.mark.parametrize(
    ("fed", "expected"),
    [
        pytest.param(b"data: a\n\n", [b"data: a\n\n"], id="LF LF ends it"),
        pytest.param(b"data: a\r\r", [b"data: a\r\r"], id="CR CR ends it without waiting for a LF"),
        pytest.param(b"data: a\r\n\r", [], id="after CRLF a CR waits for its LF"),
        pytest.param(b"data: a\n", [], id="one line end does not end it"),
        pytest.param(b"data: a\r\n", [], id="one CRLF is not two line ends"),
        pytest.param(b": ping\n\n", [b": ping\n\n"], id="a comment is handed out like an event"),
        pytest.param(b"", [], id="nothing yields nothing"),
    ],
)
def test_an_event_is_handed_out_as_soon_as_it_is_complete(fed: bytes, expected: list[bytes]) -> None:
    assert EventSplitter().feed(fed) == expected


def test_a_line_feed_after_an_emitted_cr_is_no_part_of_the_next_event() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: a\r\r") == [b"data: a\r\r"]
    assert splitter.feed(b"\ndata: b\r\r") == [b"\n", b"data: b\r\r"]
    assert splitter.feed(b"\n") == [b"\n"]
    assert splitter.feed(b"\n") == [b"\n"]


@pytest.mark.parametrize(
    ("fed", "expected"),
    [
        pytest.param(b"data: a\r\n\r", b"data: a\r\n\r", id="half of the last CRLF is missing"),
        pytest.param(b"data: a\r\n", b"", id="all of it is missing"),
        pytest.param(b"data: a\r", b"", id="a line"),
        pytest.param(b"data: a\r\r", b"", id="handed out already"),
        pytest.param(b"", b"", id="nothing"),
    ],
)
def test_an_event_that_waits_for_half_a_line_end_is_whole_where_nothing_more_comes(fed: bytes, expected: bytes) -> None:
    splitter = EventSplitter()
    splitter.feed(fed)
    assert splitter.last_whole() == expected
    assert splitter.rest() == fed.removeprefix(expected).replace(b"data: a\r\r", b"")


def test_an_event_above_the_bound_flows_as_it_comes_once_it_is() -> None:
    splitter = EventSplitter(max_event_bytes=16)
    assert splitter.feed(b"data: " + b"x" * 10) == []
    assert splitter.feed(b"yyyyy") == [b"data: " + b"x" * 10 + b"yy"]
    assert splitter.feed(b"zzzzz") == [b"yyyzz"]
    assert splitter.is_inside
    assert splitter.feed(b"\n") == []
    assert splitter.feed(b"\ndata: a\n\n") == [b"zzz\n\n", b"data: a\n\n"]
    assert not splitter.is_inside


def test_an_event_above_the_bound_flows_unaligned_and_nothing_is_kept() -> None:
    splitter = EventSplitter(max_event_bytes=16)
    stream = b"data: " + b"x" * 100 + b"\n\ndata: y\n\n"
    pieces: list[bytes] = []
    was_inside = False
    for byte in stream:
        pieces += splitter.feed(bytes([byte]))
        was_inside = was_inside or splitter.is_inside
    assert was_inside
    assert not splitter.is_inside
    assert b"".join(pieces) == stream
    assert pieces[-1] == b"data: y\n\n"
    assert max(map(len, pieces)) <= 17


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        pytest.param(b"data: x\n\n", b"x", id="the usual form"),
        pytest.param(b"data:x\r\n\r\n", b"x", id="no space, CRLF"),
        pytest.param(b"data:  x\n\n", b" x", id="only one space is taken off"),
        pytest.param(b"event: e\ndata: x\nid: 1\ndata: y\n\n", b"x\ny", id="data lines are joined"),
        pytest.param(b"data\n\n", b"", id="a data field without colon is empty"),
        pytest.param(b": comment\n\n", None, id="a comment has none"),
        pytest.param(b"database: x\n\n", None, id="another field's name that begins alike"),
        pytest.param(b"\xef\xbb\xbfdata: x\n\n", b"x", id="a byte order mark before it"),
    ],
)
def test_data_of(event: bytes, expected: bytes | None) -> None:
    assert data_of(event) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"data: x\n\n", True, id="LF"),
        pytest.param(b"data: x\r\n\r\n", True, id="CRLF"),
        pytest.param(b"data: x\r\r", True, id="CR"),
        pytest.param(b"data: x\r\n\r", True, id="CRLF, but for a half that means nothing any more"),
        pytest.param(b"\n\r\n", True, id="of both kinds"),
        pytest.param(b"data: x\n", False, id="a line"),
        pytest.param(b"data: x\r\n", False, id="a line that ends in CRLF"),
        pytest.param(b"data: x\n\ndata", False, id="within the next event"),
        pytest.param(b"", False, id="nothing"),
    ],
)
def test_ends_event(data: bytes, *, expected: bool) -> None:
    assert ends_event(data) is expected
