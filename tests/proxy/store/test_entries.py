from __future__ import annotations

import random
from zlib import crc32

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.usage import Provider, Usage
from proxy.store.entries import StoredAnswer

HEAD = b"tidegate-entry-3\n"
ZSTD_HEAD = b"tidegate-entry-3-zstd\n"
KEY = "0af3"
KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE

WHOLE = StoredAnswer(
    is_stream=False,
    content_type="application/json",
    body=b'{"choices":[]}',
    created_milliseconds=1_700_000_000_000,
    usage=Usage(5, 7, 2, 1),
    fingerprint="fp_1",
    model="m-2026",
    ttl_seconds=60,
    generation=3,
    deployment="llama/m",
    asked_model="m",
    provider=Provider("research", "alice", is_service_account=False, key="key_alice"),
    request_id="req_1",
)
STREAM = StoredAnswer(
    is_stream=True,
    content_type="text/event-stream; charset=utf-8",
    body='data: {"text":"é"}\r\n\r\ndata: [DONE]\n\n'.encode(),
    created_milliseconds=0,
)
LARGE = replace(WHOLE, body=b'{"choices":[%s]}' % b",".join(b'{"index":%d,"text":"a"}' % i for i in range(400)))
NOISE = random.Random(5).randbytes(8 * KIBIBYTE)  # noqa: S311  nobody guesses it


def summed(head: bytes, encoded: bytes) -> bytes:
    """Write what follows a head with the checksum that it has under the key."""
    return head + crc32(encoded, crc32(KEY.encode())).to_bytes(4, "big") + encoded


def with_frame(frame: bytes) -> bytes:
    """Write an entry by hand, with these bytes for a compressed body."""
    return summed(ZSTD_HEAD, msgspec.msgpack.encode(replace(LARGE, body=frame)))


def frame(body: bytes, *, tells_size: bool = True) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=tells_size).compress(body)


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(WHOLE, id="a whole answer"),
        pytest.param(STREAM, id="a stream"),
        pytest.param(LARGE, id="a large one"),
        pytest.param(replace(WHOLE, body=NOISE), id="a large one that does not compress"),
        pytest.param(replace(WHOLE, body=b"a" * (4 * MEBIBYTE)), id="the largest that is compressed"),
        pytest.param(replace(WHOLE, body=b"a" * (4 * MEBIBYTE + 1)), id="one that is too large to be"),
        pytest.param(replace(WHOLE, body=b""), id="an empty one"),
    ],
)
def test_an_entry_comes_back_as_it_was(stored: StoredAnswer) -> None:
    assert StoredAnswer.unpack(stored.pack(KEY), KEY) == stored


@given(st.binary(max_size=300), st.integers(1, 100))
def test_bodies_come_back_byte_for_byte(part: bytes, times: int) -> None:
    stored = StoredAnswer(is_stream=True, content_type="t", body=part * times, created_milliseconds=1)
    unpacked = StoredAnswer.unpack(stored.pack(KEY), KEY)
    assert unpacked is not None
    assert unpacked.body == part * times


@pytest.mark.parametrize(
    ("body", "head"),
    [
        pytest.param(b"a" * (4 * KIBIBYTE - 1), HEAD, id="a small one stays as it is"),
        pytest.param(b"a" * (4 * KIBIBYTE), ZSTD_HEAD, id="one of 4 KiB is compressed"),
        pytest.param(NOISE, HEAD, id="one that does not become smaller stays as it is"),
        pytest.param(NOISE + b"a" * 1100, HEAD, id="and one that becomes smaller by less than an eighth"),
        pytest.param(NOISE + b"a" * 1300, ZSTD_HEAD, id="by an eighth is worth it"),
        pytest.param(b"a" * (4 * MEBIBYTE + 1), HEAD, id="one above 4 MiB would hold the worker up"),
    ],
)
def test_large_bodies_are_compressed(body: bytes, head: bytes) -> None:
    packed = replace(WHOLE, body=body).pack(KEY)
    assert packed.startswith(head)
    assert len(packed) < len(body) + 400


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(None, id="nothing"),
        pytest.param(b"", id="no bytes"),
        pytest.param(b"garbage", id="garbage"),
        pytest.param(b'{"body":"x"}', id="JSON"),
        pytest.param(HEAD, id="a head without an entry"),
        pytest.param(summed(HEAD, b"garbage"), id="a head before garbage"),
        pytest.param(summed(ZSTD_HEAD, b"garbage"), id="the other head before garbage"),
        pytest.param(summed(HEAD, b"\x93\xc2\xa1t\xc4\x00"), id="too few fields"),
        pytest.param(summed(HEAD, b"\x9e\xc2\xa1t\xc4\x00\x00" + b"\xc0" * 10), id="a field more than there are"),
        pytest.param(summed(HEAD, b"\x84\xa1a\xc2\xa1b\xa1t\xa1c\xc4\x00\xa1d\x00"), id="a map"),
        pytest.param(summed(HEAD, b"\x94\xc2\xa1t\xc4\x00\xa11"), id="a text where a number belongs"),
        pytest.param(
            b"tidegate-entry-1\n\x98\xc2\xa1t\xc4\x00\x00\xc0\xc0\xc0\xc0", id="an entry of the layout before this"
        ),
        pytest.param(WHOLE.pack(KEY).replace(b"entry-3", b"entry-4"), id="one of a later layout"),
        pytest.param(summed(HEAD, WHOLE.pack(KEY)[len(HEAD) + 4 :] + b"\x00"), id="bytes after the end"),
        pytest.param(WHOLE.pack("0af4"), id="an entry of another key"),
        pytest.param(
            summed(HEAD, STREAM.pack(KEY)[len(HEAD) + 4 :].replace(b"text/event-stream", b"\xff" * 17)),
            id="text that is no UTF-8",
        ),
        pytest.param(HEAD + LARGE.pack(KEY), id="a head before a head"),
        pytest.param(with_frame(b""), id="a compressed body without a byte"),
        pytest.param(with_frame(LARGE.body), id="a body that should be compressed and is not"),
        pytest.param(with_frame(frame(LARGE.body)[:-1]), id="a frame that is cut"),
        pytest.param(with_frame(frame(LARGE.body) + b"\x00"), id="a frame with bytes after it"),
        pytest.param(with_frame(frame(LARGE.body) * 2), id="two frames"),
        pytest.param(with_frame(frame(LARGE.body, tells_size=False)), id="a frame that does not tell its size"),
        pytest.param(with_frame(frame(b"")), id="a frame of nothing"),
        pytest.param(with_frame(b"\x50\x2a\x4d\x18\x01\x00\x00\x00x"), id="a frame to be skipped"),
    ],
)
def test_what_is_no_entry_is_a_miss(packed: bytes | None) -> None:
    assert StoredAnswer.unpack(packed, KEY) is None


@pytest.mark.parametrize("stored", [pytest.param(WHOLE, id="as it is"), pytest.param(LARGE, id="compressed")])
def test_an_entry_cut_anywhere_is_a_miss(stored: StoredAnswer) -> None:
    packed = stored.pack(KEY)
    assert all(StoredAnswer.unpack(packed[:end], KEY) is None for end in range(len(packed)))


@pytest.mark.parametrize("stored", [pytest.param(WHOLE, id="as it is"), pytest.param(LARGE, id="compressed")])
def test_an_entry_with_a_wrong_bit_anywhere_is_a_miss(stored: StoredAnswer) -> None:
    packed = stored.pack(KEY)
    for position in range(len(packed)):
        wrong = bytearray(packed)
        wrong[position] ^= 0x10
        assert StoredAnswer.unpack(bytes(wrong), KEY) is None, position


def test_a_bomb_is_not_let_off() -> None:
    bomb = with_frame(frame(bytes(64 * MEBIBYTE)))
    assert len(bomb) < 16 * KIBIBYTE
    assert StoredAnswer.unpack(bomb, KEY) is None


def test_a_bomb_that_claims_to_be_small_is_not_let_off() -> None:
    bomb = frame(bytes(64 * MEBIBYTE))
    # RFC 8878 §3.1.1: magic number, descriptor, window, and the size in four bytes.
    assert bomb[6:10] == (64 * MEBIBYTE).to_bytes(4, "little")
    lying = bomb[:6] + (5 * KIBIBYTE).to_bytes(4, "little") + bomb[10:]
    assert zstandard.frame_content_size(lying) == 5 * KIBIBYTE
    assert StoredAnswer.unpack(with_frame(lying), KEY) is None
