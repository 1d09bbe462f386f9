from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.usage import Usage
from proxy.store.entries import StoredAnswer

WHOLE = StoredAnswer(
    is_stream=False,
    content_type="application/json",
    body=b'{"choices":[]}',
    created_milliseconds=1_700_000_000_000,
    usage=Usage(5, 7, 2, 1),
    fingerprint="fp_1",
    model="m-2026",
    ttl_seconds=60,
)
STREAM = StoredAnswer(
    is_stream=True,
    content_type="text/event-stream; charset=utf-8",
    body='data: {"text":"é"}\r\n\r\ndata: [DONE]\n\n'.encode(),
    created_milliseconds=0,
)


@pytest.mark.parametrize("stored", [pytest.param(WHOLE, id="a whole answer"), pytest.param(STREAM, id="a stream")])
def test_an_entry_comes_back_as_it_was(stored: StoredAnswer) -> None:
    assert StoredAnswer.unpack(stored.pack()) == stored


def test_an_entry_of_an_earlier_build_has_no_life_of_its_own() -> None:
    packed = STREAM.pack()
    head, fields = packed[: len(b"tidegate-entry-1\n")], msgspec.msgpack.decode(packed[len(b"tidegate-entry-1\n") :])
    assert StoredAnswer.unpack(head + msgspec.msgpack.encode(fields[:-1])) == STREAM


@given(st.binary(max_size=300))
def test_bodies_come_back_byte_for_byte(body: bytes) -> None:
    stored = StoredAnswer(is_stream=True, content_type="t", body=body, created_milliseconds=1)
    unpacked = StoredAnswer.unpack(stored.pack())
    assert unpacked is not None
    assert unpacked.body == body


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(None, id="nothing"),
        pytest.param(b"", id="no bytes"),
        pytest.param(b"garbage", id="garbage"),
        pytest.param(b'{"body":"x"}', id="JSON"),
        pytest.param(b"tidegate-entry-1\n", id="a head without an entry"),
        pytest.param(b"tidegate-entry-1\ngarbage", id="a head before garbage"),
        pytest.param(b"tidegate-entry-1\n\x93\xc2\xa1t\xc4\x00", id="too few fields"),
        pytest.param(WHOLE.pack().replace(b"entry-1", b"entry-0"), id="an older layout"),
        pytest.param(WHOLE.pack() + b"\x00", id="bytes after the end"),
        pytest.param(STREAM.pack().replace(b"text/event-stream", b"\xff" * 17), id="text that is no UTF-8"),
    ],
)
def test_what_is_no_entry_is_a_miss(packed: bytes | None) -> None:
    assert StoredAnswer.unpack(packed) is None


def test_an_entry_cut_anywhere_is_a_miss() -> None:
    packed = WHOLE.pack()
    assert all(StoredAnswer.unpack(packed[:end]) is None for end in range(len(packed)))
