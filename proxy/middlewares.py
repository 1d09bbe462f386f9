"""The two frames around every answer: the request id, and the rendering of errors.

Anything else that feels like a middleware is a station of the path (STYLE §3).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from policies.errors import Rejection
from proxy.errors import (
    STOPPED,
    Draining,
    GatewayError,
    error_headers,
    error_object,
    is_draining,
    note_error,
    status_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from proxy.exchange import Exchange, Headers, Request, Writer

    Answer = Callable[[Request, Writer, Exchange], Awaitable[None]]


class IdentifiedWriter:
    """A writer that puts `x-request-id` on every head, and notes in the exchange what status left and when."""

    __slots__ = ("_exchange", "_writer")

    def __init__(self, writer: Writer, exchange: Exchange) -> None:
        self._writer = writer
        self._exchange = exchange

    @property
    def is_started(self) -> bool:
        """Whether the head has left."""
        return self._writer.is_started

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head."""
        self._exchange.status = status
        await self._writer.start(status, [*headers, ("x-request-id", self._exchange.request_id)])

    async def write(self, data: bytes) -> None:
        """Send bytes of the body."""
        await self._writer.write(data)

    async def finish(self) -> None:
        """End the body."""
        await self._writer.finish()

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer."""
        self._exchange.status = status
        await self._writer.respond(status, [*headers, ("x-request-id", self._exchange.request_id)], body)

    def abort(self) -> None:
        """Break the connection."""
        self._writer.abort()


def with_request_id(answer: Answer) -> Answer:
    """Give every answer the gateway's own request id (SPEC §5)."""

    async def identified(request: Request, writer: Writer, exchange: Exchange) -> None:
        exchange.client_request_id = request.header("X-Client-Request-Id")
        await answer(request, IdentifiedWriter(writer, exchange), exchange)

    return identified


def with_errors(answer: Answer) -> Answer:
    """Render what is raised, in OpenAI's shape (SPEC §9); an answer that has begun by then is broken off."""

    async def rendered(request: Request, writer: Writer, exchange: Exchange) -> None:
        try:
            await answer(request, writer, exchange)
        except (Rejection, GatewayError) as error:
            await _render(error, writer, exchange)
        except asyncio.CancelledError as cancelled:
            if not is_draining(cancelled):
                raise
            await _render(Draining(STOPPED), writer, exchange)

    return rendered


async def _render(error: Rejection | GatewayError, writer: Writer, exchange: Exchange) -> None:
    note_error(exchange, error)
    if writer.is_started:
        writer.abort()
    else:
        await writer.respond(status_of(error), error_headers(error), error_object(error))
