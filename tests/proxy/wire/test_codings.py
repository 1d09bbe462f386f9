from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING

import brotli
import pytest
import zstandard

from policies.errors import InvalidRequest, PayloadTooLarge, UnsupportedMedia
from proxy.wire.codings import CodingError, decode_body, make_decoder

if TYPE_CHECKING:
    from collections.abc import Callable

PLAIN = b'{"prompt": "' + b"tide " * 2000 + bytes(range(32, 127)) + b'"}'
LARGE = 64 * 1024 * 1024


def raw_deflate(data: bytes) -> bytes:
    squeezer = zlib.compressobj(wbits=-15)
    return squeezer.compress(data) + squeezer.flush()


CODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "gzip in two members": ("gzip", lambda data: gzip.compress(data[:100]) + gzip.compress(data[100:])),
    "x-gzip": ("x-gzip", gzip.compress),
    "deflate as the RFC has it": ("deflate", zlib.compress),
    "deflate without zlib's head": ("deflate", raw_deflate),
    "brotli": ("br", brotli.compress),
    "zstd": ("zstd", zstandard.compress),
    "zstd in two frames": ("zstd", lambda data: zstandard.compress(data[:100]) + zstandard.compress(data[100:])),
    "gzip in brotli": ("gzip, br", lambda data: brotli.compress(gzip.compress(data))),
    "identity": ("identity", bytes),
    "an empty field": ("", bytes),
}


@pytest.mark.parametrize(("coding", "encode"), CODINGS.values(), ids=CODINGS.keys())
def test_bodies_are_decoded(coding: str, encode: Callable[[bytes], bytes]) -> None:
    assert decode_body(encode(PLAIN), coding, LARGE) == PLAIN


@pytest.mark.parametrize(("coding", "encode"), list(CODINGS.values())[:9], ids=list(CODINGS.keys())[:9])
def test_streams_are_decoded_byte_by_byte(coding: str, encode: Callable[[bytes], bytes]) -> None:
    decoder = make_decoder(coding)
    assert decoder is not None
    out = b"".join(piece for byte in encode(PLAIN) for piece in decoder.feed(bytes([byte])))
    assert out == PLAIN
    assert decoder.is_complete


def test_a_flushed_stream_flows() -> None:
    squeezer = zlib.compressobj(wbits=31)
    decoder = make_decoder("gzip")
    assert decoder is not None
    for event in (b"data: one\n\n", b"data: two\n\n"):
        fed = squeezer.compress(event) + squeezer.flush(zlib.Z_SYNC_FLUSH)
        assert b"".join(decoder.feed(fed)) == event
    assert not decoder.is_complete


@pytest.mark.parametrize(
    ("coding", "encode"),
    [
        pytest.param("gzip", gzip.compress, id="gzip"),
        pytest.param("deflate", zlib.compress, id="deflate"),
        pytest.param("br", brotli.compress, id="brotli"),
        pytest.param("zstd", zstandard.compress, id="zstd"),
    ],
)
def test_a_bomb_is_refused_before_it_is_unpacked(coding: str, encode: Callable[[bytes], bytes]) -> None:
    bomb = encode(bytes(LARGE))
    with pytest.raises(PayloadTooLarge, match="larger than 1000000 bytes"):
        decode_body(bomb, coding, 1_000_000)
    decoder = make_decoder(coding)
    assert decoder is not None
    assert len(next(decoder.feed(bomb))) <= 16 * 1024 * 1024


@pytest.mark.parametrize(
    ("raw", "coding", "error"),
    [
        pytest.param(gzip.compress(PLAIN)[:-3], "gzip", InvalidRequest, id="gzip that is cut"),
        pytest.param(brotli.compress(PLAIN)[:-3], "br", InvalidRequest, id="brotli that is cut"),
        pytest.param(zstandard.compress(PLAIN)[:-3], "zstd", InvalidRequest, id="zstd that is cut"),
        pytest.param(b"plain text", "gzip", InvalidRequest, id="no gzip at all"),
        pytest.param(b"plain text", "br", InvalidRequest, id="no brotli at all"),
        pytest.param(b"plain text", "zstd", InvalidRequest, id="no zstd at all"),
        pytest.param(b"\xff\xff\xff", "deflate", InvalidRequest, id="no deflate at all"),
        pytest.param(zlib.compress(b"x") + b"more", "deflate", InvalidRequest, id="more after deflate's end"),
        pytest.param(gzip.compress(b"x") + b"more", "gzip", InvalidRequest, id="more after gzip's end"),
        pytest.param(b"", "gzip", InvalidRequest, id="nothing at all in gzip"),
        pytest.param(b"x", "compress", UnsupportedMedia, id="a coding that is not known"),
        pytest.param(b"x", "gzip, gzip, gzip", UnsupportedMedia, id="more codings than two"),
        pytest.param(b"x" * 11, None, PayloadTooLarge, id="a plain body above the bound"),
    ],
)
def test_what_does_not_decode_is_refused(raw: bytes, coding: str | None, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode_body(raw, coding, 10 if coding is None else LARGE)


def test_an_unknown_coding_names_those_that_are_known() -> None:
    with pytest.raises(CodingError, match="'snappy' is not known; known are gzip, x-gzip, deflate, br, zstd"):
        make_decoder("snappy")
