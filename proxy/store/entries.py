"""Stored answers as values and as bytes: what an entry of the cache holds, and how it is written down.

Body and content type are all that is kept of the answer itself; cookies, dates, codings, ids and rate-limit headers
belong to one exchange (SPEC §6). This file does not know under which key an entry stands, whether it is still fresh,
nor which store keeps it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from policies.usage import Usage  # noqa: TC001  the decoder reads the annotation

_FORMAT: Final = b"tidegate-entry-1\n"
"""First bytes of an entry; another number is another layout, which this build does not read."""


class StoredAnswer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One complete answer.

    `body` is what the upstream sent, whole: of a stream every event up to and including `[DONE]`, the usage event
    too, whoever asked for it; a replay takes that one out for a client that did not ask. `created_milliseconds` is
    Unix time, and `usage` what the upstream reported, None when it made no report. `ttl_seconds` is for how long it was
    stored, None in entries of earlier builds.
    """

    is_stream: bool
    content_type: str
    body: bytes
    created_milliseconds: int
    usage: Usage | None = None
    fingerprint: str | None = None
    model: str | None = None
    ttl_seconds: int | None = None

    def pack(self) -> bytes:
        """Write the entry as bytes for the store."""
        return _FORMAT + _ENCODER.encode(self)

    @classmethod
    def unpack(cls, packed: bytes | None) -> StoredAnswer | None:
        """Read what `pack` wrote; None for nothing, for another layout and for anything that is no entry."""
        if packed is None or not packed.startswith(_FORMAT):
            return None
        try:
            return _DECODER.decode(memoryview(packed)[len(_FORMAT) :])
        except msgspec.DecodeError:
            return None


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(StoredAnswer)
