"""Streams that begin before there is an answer: comments show that somebody is still at work (SPEC §6, joining).

What follows is written into the answer that has begun, errors as events. Knows why nobody has an answer yet as little
as where it comes from.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, Self

from policies.errors import Rejection
from policies.requests.asked import Endpoint
from proxy.errors import (
    STOPPED,
    ClientLeft,
    Draining,
    GatewayError,
    UpstreamUnusable,
    error_object,
    is_draining,
    note_error,
)
from proxy.relay import STREAM_FIELDS, STREAM_TYPE, is_stream
from proxy.wire.answers import answer_headers
from proxy.wire.chunks import CHUNKS, without_usage_event
from proxy.wire.conversion import to_stream
from proxy.wire.responses import RESPONSES
from proxy.wire.sse import BOM

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from types import TracebackType

    from policies.requests.asked import EffectiveRequest
    from proxy.exchange import Exchange, Headers, Writer

_COMMENT: Final = b": waiting\n\n"
_OK: Final = 200
_ERRORS: Final = 400


class EarlyStream:
    """The writer of one stream, which `comment` may begin early; until then it is as the one it stands before.

    On the way out of its block an error that comes before the answer does becomes the stream's last event.
    """

    __slots__ = ("_effective", "_exchange", "_follows_comments", "_has_begun", "_is_answered", "_writer")

    def __init__(self, writer: Writer, exchange: Exchange, effective: EffectiveRequest) -> None:
        """Begin nothing yet."""
        self._writer = writer
        self._exchange = exchange
        self._effective = effective
        self._has_begun = False
        self._follows_comments = False
        self._is_answered = False

    async def comment(self, limit_fields: Headers) -> None:
        """Write a comment; the first one sends the head, with these fields and what else is known by now."""
        if not self._has_begun:
            self._has_begun = self._follows_comments = True
            fields = [*STREAM_FIELDS, *answer_headers(self._exchange), *limit_fields]
            await self._writer.start(_OK, [("Content-Type", STREAM_TYPE), *fields])
        await self._writer.write(_COMMENT)

    @property
    def is_started(self) -> bool:
        """Whether the head has left."""
        return self._writer.is_started

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head, unless it has left. Raises UpstreamUnusable for an answer that is no stream by then."""
        if not self._has_begun:
            await self._writer.start(status, headers)
        elif not is_stream(headers):
            raise _no_stream()
        self._is_answered = True

    async def write(self, data: bytes) -> None:
        """Send bytes of the body; a mark of the byte order behind a comment would be part of a name."""
        if self._follows_comments:
            self._follows_comments = False
            data = data.removeprefix(BOM)
        await self._writer.write(data)

    async def finish(self) -> None:
        """End the body."""
        await self._writer.finish()

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer; into a stream that has begun what it says as events."""
        self._is_answered = True
        if not self._has_begun:
            await self._writer.respond(status, headers, body)
            return
        await self.write(self._as_events(status, headers, body))
        await self._writer.finish()

    def abort(self) -> None:
        """Break the connection."""
        self._writer.abort()

    def _as_events(self, status: int, headers: Headers, body: bytes) -> bytes:
        if is_stream(headers):
            return body
        if status >= _ERRORS:
            return self._error_event(body)
        events = to_stream(self._effective.endpoint, body)
        if events is None:
            return self._error_event(error_object(_no_stream()))
        return events if self._effective.view.wants_usage else without_usage_event(events)

    def _error_event(self, error: bytes) -> bytes:
        family = RESPONSES if self._effective.endpoint is Endpoint.RESPONSES else CHUNKS
        return family.error_event(error, b"")

    async def __aenter__(self) -> Self:
        """Return the writer."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Tell the client of a stream that has begun, and nobody else yet, what went wrong."""
        if isinstance(error, asyncio.CancelledError) and is_draining(error):
            error = Draining(STOPPED)
        if not self._has_begun or self._is_answered or not isinstance(error, Rejection | GatewayError):
            return False
        note_error(self._exchange, error)
        await self._writer.write(self._error_event(error_object(error)))
        await self._writer.finish()
        return True


@asynccontextmanager
async def repeated(step: Callable[[], Awaitable[None]], seconds: float) -> AsyncIterator[None]:
    """Take a step each time that so many seconds have passed within the block; a client that leaves ends that."""
    ended = asyncio.Event()

    async def repeat() -> None:
        with suppress(ClientLeft):
            while not await _happens(ended, seconds):
                await step()

    repeating = asyncio.create_task(repeat())
    try:
        yield
    finally:
        ended.set()  # a step under way is not broken off: half a head cannot be taken back
        await repeating


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def _no_stream() -> UpstreamUnusable:
    return UpstreamUnusable("The upstream's answer is no stream, which was asked for and has begun.")
