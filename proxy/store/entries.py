"""Stored answers as values and as bytes: what an entry of the cache holds, and how it is written down.

Body and content type are all that is kept of the answer itself; cookies, dates, codings, ids and rate-limit headers
belong to one exchange (SPEC §6). What else stands in an entry tells who fetched it from where, and when. This file does
not know under which key an entry stands, whether it is still good, nor which store keeps it.

An entry is a head, which names the layout, a checksum (CRC-32 of its key and of what follows), and an array in
MessagePack; bodies that zstd makes much smaller stand in it compressed. So what was damaged, and what was put under
another key, is no entry. Packing and unpacking share what they compress with, and are for one thread of a process.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

import msgspec
import zstandard
from msgspec.structs import replace

from policies.usage import Provider, Usage  # noqa: TC001  the decoder reads the annotations

_PLAIN_HEAD: Final = b"tidegate-entry-3\n"
"""First bytes of an entry; another number is another layout, which this build does not read."""
_ZSTD_HEAD: Final = b"tidegate-entry-3-zstd\n"
"""First bytes of one whose body is a frame of zstd (RFC 8878) that tells its size and a checksum."""

_SUM_BYTES: Final = 4
_LEAST_COMPRESSED_BYTES: Final = 4 * 1024
_MOST_COMPRESSED_BYTES: Final = 4 * 1024 * 1024
"""Larger bodies stay as they are, since compressing takes 3 ms a MiB; no entry may claim to hold one."""
_LEAST_GAIN: Final = 8
"""A body is compressed if that spares one part in so many: each hit pays for undoing it."""
_ZSTD_LEVEL: Final = 1
"""Of the levels from -5 to 3 the one beyond which time buys no more room: prose shrinks to a half, streams to 5 %."""


class StoredAnswer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One complete answer.

    `body` is what the upstream sent, whole: of a stream every event up to and including `[DONE]`, the usage event
    too, whoever asked for it; a replay takes that one out for a client that did not ask. `created_milliseconds` is
    Unix time, and `usage` what the upstream reported, None when it made no report. `model` is as served.
    `ttl_seconds` is for how long it was stored, None where nobody said.

    `generation` is the purge generation in which its fetch began; `deployment` (`<upstream>/<name>`) answered it,
    `asked_model` is the configured model's name. `provider` paid for it, None where nobody is known; `request_id` was
    the fetch's.
    """

    is_stream: bool
    content_type: str
    body: bytes
    created_milliseconds: int
    usage: Usage | None = None
    fingerprint: str | None = None
    model: str | None = None
    ttl_seconds: int | None = None
    generation: int = 0
    deployment: str = ""
    asked_model: str = ""
    provider: Provider | None = None
    request_id: str = ""

    def pack(self, key: str) -> bytes:
        """Write the entry of a cache key as bytes for the store."""
        if (compressed := _find_smaller(self.body)) is None:
            return _PLAIN_HEAD + _with_sum(key, _ENCODER.encode(self))
        return _ZSTD_HEAD + _with_sum(key, _ENCODER.encode(replace(self, body=compressed)))

    @classmethod
    def unpack(cls, packed: bytes | None, key: str) -> StoredAnswer | None:
        """Read what `pack` wrote for a key; None for nothing, for another layout and for anything that is no entry.

        What a compressed body claims to be is bounded before any of it is undone.
        """
        if packed is None:
            return None
        try:
            if packed.startswith(_PLAIN_HEAD):
                return _DECODER.decode(_checked(key, memoryview(packed)[len(_PLAIN_HEAD) :]))
            if packed.startswith(_ZSTD_HEAD):
                entry = _DECODER.decode(_checked(key, memoryview(packed)[len(_ZSTD_HEAD) :]))
                return replace(entry, body=_decompress(entry.body))
        except (msgspec.DecodeError, zstandard.ZstdError):
            return None
        return None


def _with_sum(key: str, encoded: bytes) -> bytes:
    return _sum(key, encoded) + encoded


def _checked(key: str, content: memoryview) -> memoryview:
    """Take the checksum off. Raises DecodeError for one of anything else."""
    encoded = content[_SUM_BYTES:]
    if content[:_SUM_BYTES] != _sum(key, encoded):
        raise msgspec.DecodeError("it is not what was stored here")
    return encoded


def _sum(key: str, encoded: bytes | memoryview) -> bytes:
    return crc32(encoded, crc32(key.encode())).to_bytes(_SUM_BYTES)


def _find_smaller(body: bytes) -> bytes | None:
    """Return a body compressed, None where that is not worth the time."""
    if not _LEAST_COMPRESSED_BYTES <= len(body) <= _MOST_COMPRESSED_BYTES:
        return None
    compressed = _COMPRESSOR.compress(body)
    return compressed if len(compressed) <= len(body) - len(body) // _LEAST_GAIN else None


def _decompress(frame: bytes) -> bytes:
    """Undo a compression. Raises ZstdError, also for a frame that names no size such as are compressed here."""
    size = zstandard.frame_content_size(frame)
    if not _LEAST_COMPRESSED_BYTES <= size <= _MOST_COMPRESSED_BYTES:
        raise zstandard.ZstdError(f"no entry holds a compressed body of {size} bytes")
    return _DECOMPRESSOR.decompress(frame, allow_extra_data=False)


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(StoredAnswer)
_COMPRESSOR: Final = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
_DECOMPRESSOR: Final = zstandard.ZstdDecompressor(max_window_size=_MOST_COMPRESSED_BYTES)
