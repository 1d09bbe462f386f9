"""Content codings (gzip, deflate, br, zstd): bytes in pieces, in and out, never more at once than asked.

Used for request bodies and for upstreams that compress although they were asked not to. Knows no header names and no
sockets; how much may come out in all is the caller's bound.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Protocol

import brotli  # type: ignore[import-untyped]  # ships no types
import zstandard

from policies.errors import InvalidRequest, PayloadTooLarge, UnsupportedMedia

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PIECE_BYTES = 256 * 1024
"""Most bytes that one step of a decoder hands out; zstd may go above by a few blocks of 128 KiB."""

_GZIP_WINDOW = 31
_ZLIB_WINDOW = 15
_RAW_WINDOW = -15
_ZLIB_HEAD_BYTES = 2
_ZSTD_SLICE_BYTES = 64
_ZSTD_MAX_WINDOW_BYTES = 8 * 1024 * 1024  # RFC 9659 §3
_MAX_CODINGS = 2


class CodingError(Exception):
    """The bytes are not what their coding says, or a coding is not known."""


class Decoder(Protocol):
    """One coding being undone."""

    @property
    def is_complete(self) -> bool:
        """Whether the coded data has reached its proper end."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Hand out what these bytes decode to, piece by piece. Raises CodingError."""


class _Zlib:
    """gzip (members may follow one another) and deflate (with zlib's head as in RFC 9110, or raw as some send it)."""

    def __init__(self, window: int | None) -> None:
        self._window = window
        self._inner = zlib.decompressobj(_ZLIB_WINDOW if window is None else window)
        self._head = b"" if window is None else None

    @property
    def is_complete(self) -> bool:
        return self._inner.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        data = self._with_head(data)
        is_full = False
        while data or is_full:
            if self._inner.eof:
                self._inner = zlib.decompressobj(self._next_window())
            try:
                piece = self._inner.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise CodingError(f"the compressed data is broken ({error})") from error
            data = self._inner.unused_data or self._inner.unconsumed_tail
            # A full piece may have left output inside although no input is left over.
            is_full = len(piece) == PIECE_BYTES and not self._inner.eof
            if piece:
                yield piece

    def _next_window(self) -> int:
        if self._window != _GZIP_WINDOW:
            raise CodingError("something follows the end of the compressed data")
        return _GZIP_WINDOW

    def _with_head(self, data: bytes) -> bytes:
        """Keep the first two bytes back until both are there: they tell zlib's head from raw deflate."""
        if self._head is None:
            return data
        data = self._head + data
        if len(data) < _ZLIB_HEAD_BYTES:
            self._head = data
            return b""
        self._head = None
        if data[0] & 0x0F != zlib.DEFLATED or int.from_bytes(data[:2], "big") % 31:
            self._inner = zlib.decompressobj(_RAW_WINDOW)
        return data


class _Brotli:
    """br, whose decompressor is told how much may come out at once."""

    def __init__(self) -> None:
        self._inner = brotli.Decompressor()

    @property
    def is_complete(self) -> bool:
        return bool(self._inner.is_finished())

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._inner.is_finished() and data:
            raise CodingError("something follows the end of the compressed data")
        try:
            piece = self._inner.process(data, output_buffer_limit=PIECE_BYTES)
            while piece:
                yield piece
                piece = b"" if self._inner.is_finished() else self._inner.process(b"", output_buffer_limit=PIECE_BYTES)
        except brotli.error as error:
            raise CodingError(f"the compressed data is broken ({error})") from error


class _Zstd:
    """zstd, fed in slices: a few bytes may stand for a block of 128 KiB, and its decompressor knows no bound."""

    def __init__(self) -> None:
        self._context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
        self._inner = self._context.decompressobj()

    @property
    def is_complete(self) -> bool:
        return self._inner.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        start = 0
        while start < len(data):
            part = data[start : start + _ZSTD_SLICE_BYTES]
            if self._inner.eof:
                self._inner = self._context.decompressobj()
            try:
                piece = self._inner.decompress(part)
            except zstandard.ZstdError as error:
                raise CodingError(f"the compressed data is broken ({error})") from error
            start += len(part) - len(self._inner.unused_data)
            if piece:
                yield piece


class _Chain:
    """Several codings, the one that was applied last undone first."""

    def __init__(self, outer: Decoder, inner: Decoder) -> None:
        self._outer = outer
        self._inner = inner

    @property
    def is_complete(self) -> bool:
        return self._outer.is_complete and self._inner.is_complete

    def feed(self, data: bytes) -> Iterator[bytes]:
        for piece in self._outer.feed(data):
            yield from self._inner.feed(piece)


_DECODERS: dict[str, Callable[[], Decoder]] = {
    "gzip": lambda: _Zlib(_GZIP_WINDOW),
    "x-gzip": lambda: _Zlib(_GZIP_WINDOW),
    "deflate": lambda: _Zlib(None),
    "br": _Brotli,
    "zstd": _Zstd,
}
CODINGS = tuple(_DECODERS)
"""Names of the codings that are read."""


def make_decoder(coding: str | None) -> Decoder | None:
    """Return a decoder for a Content-Encoding value; None when there is nothing to undo. Raises CodingError."""
    names = [name for part in (coding or "").split(",") if (name := part.strip().lower()) not in {"", "identity"}]
    if len(names) > _MAX_CODINGS:
        raise CodingError(f"more than {_MAX_CODINGS} codings are not undone")
    decoder: Decoder | None = None
    for name in names:
        if name not in _DECODERS:
            raise CodingError(f"the coding {name[:40]!r} is not known; known are {', '.join(CODINGS)}")
        inner = decoder
        decoder = _DECODERS[name]() if inner is None else _Chain(_DECODERS[name](), inner)
    return decoder


def decode_body(raw: bytes, coding: str | None, max_bytes: int) -> bytes:
    """Return a request body with its coding undone (SPEC §3).

    Raises UnsupportedMedia for a coding that is not known, InvalidRequest for broken or cut data, PayloadTooLarge
    as soon as more than `max_bytes` have come out.
    """
    try:
        decoder = make_decoder(coding)
    except CodingError as error:
        raise UnsupportedMedia(f"The body's Content-Encoding is not read here: {error}.") from error
    if decoder is None:
        _check_size(len(raw), max_bytes)
        return raw
    body = bytearray()
    try:
        for piece in decoder.feed(raw):
            body += piece
            _check_size(len(body), max_bytes)
    except CodingError as error:
        raise InvalidRequest(f"The body does not decompress: {error}.") from error
    if not decoder.is_complete:
        raise InvalidRequest("The body does not decompress: the compressed data ends too early.")
    return bytes(body)


def _check_size(size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise PayloadTooLarge(f"The decompressed body is larger than {max_bytes} bytes.", code="body_too_large")
