"""Whole answers for clients that asked for a stream: sent as the stream that they would have come as.

Stands before any writer. Knows how an answer is spread over events; knows neither why it came whole nor what it cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from proxy.relay import STREAM_FIELDS, STREAM_TYPE, WHOLE_FIELDS
from proxy.wire.chunks import without_usage_event
from proxy.wire.conversion import to_stream

if TYPE_CHECKING:
    from policies.requests.asked import Endpoint
    from proxy.exchange import Headers, Writer

_OK: Final = 200


class SpreadAnswer:
    """A writer that makes a stream of a whole answer; an error, and what cannot be spread exactly, stays whole."""

    __slots__ = ("_endpoint", "_keeps_usage", "_writer")

    def __init__(self, writer: Writer, endpoint: Endpoint, *, keeps_usage: bool) -> None:
        """With `keeps_usage` the stream has a usage event, whether or not the client asked for one."""
        self._writer = writer
        self._endpoint = endpoint
        self._keeps_usage = keeps_usage

    @property
    def is_started(self) -> bool:
        """Whether the head has left."""
        return self._writer.is_started

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head of what comes in pieces, which stays as it is."""
        await self._writer.start(status, headers)

    async def write(self, data: bytes) -> None:
        """Send a piece."""
        await self._writer.write(data)

    async def finish(self) -> None:
        """End what came in pieces."""
        await self._writer.finish()

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer as a stream."""
        events = to_stream(self._endpoint, body) if status == _OK else None
        if events is None:
            await self._writer.respond(status, headers, body)
            return
        own = {name.lower() for name, _ in (*WHOLE_FIELDS, ("Content-Type", ""))}
        others = [(name, value) for name, value in headers if name.lower() not in own]
        await self._writer.start(status, [("Content-Type", STREAM_TYPE), *STREAM_FIELDS, *others])
        await self._writer.write(events if self._keeps_usage else without_usage_event(events))
        await self._writer.finish()

    def abort(self) -> None:
        """Break the connection."""
        self._writer.abort()
