"""The front door: aiohttp's server, adapted to the request value and the writer that the path knows.

The only file of the data plane that knows aiohttp's server side. Holds no route and no rule; what aiohttp itself
would answer (a head it cannot read, say) is rendered in OpenAI's shape here too.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.web_protocol import RequestHandler
from multidict import CIMultiDict

from policies.errors import InvalidRequest, PayloadTooLarge
from proxy.errors import (
    CLIENT_TOO_SLOW,
    DRAINING,
    BodyTooSlow,
    ClientLeft,
    GatewayError,
    error_headers,
    error_object,
    status_of,
)
from proxy.exchange import new_request_id
from proxy.wire.codings import decode_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

    from aiohttp import StreamReader
    from aiohttp.abc import AbstractStreamWriter

    from policies.errors import Rejection
    from proxy.config import Bounds
    from proxy.exchange import Headers, Request, Writer

    NoteFault = Callable[[BaseException | None], None]
    Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_SERVER = ("Server", "tidegate")
_BACKLOG = 1024
_KEEPALIVE_SECONDS = 75.0
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST_WORDS_SECONDS = 1.0
"""How long an answer that is cut short at the end of a drain may take to say so and to be settled."""
_QUIET_SECONDS = 0.5
"""For how long nothing may have been asked on open connections until the end of a drain closes those."""
_WRITE_BUFFER_BYTES = 16 * 1024
"""What is kept for a client that reads slowly until writing waits for it: the kernel keeps more."""
_MAX_FIELDS = 1024
_LONGEST_USER_TIMEOUT_MILLISECONDS = 2**31 - 1
"""For how long at most the kernel can be told to wait for a client: not quite 25 days."""
_HEADS_READ = 4
"""How many times the bound of a head is read before the connection is broken: a little above is told with a 431."""
_TOO_MANY_FIELDS = "Too many headers"  # how aiohttp says it; the exception's type is that of any bad message


class HeadTooLarge(InvalidRequest):
    """The request head, or one line of it, is above its bound."""

    status_hint = 431


class ServedRequest:
    """A request as aiohttp parsed it, its body still unread."""

    __slots__ = ("_aio", "_bounds", "method", "path", "query")

    def __init__(self, aio: web.BaseRequest, bounds: Bounds) -> None:
        self._aio = aio
        self._bounds = bounds
        self.method = aio.method
        target = aio._message.path  # noqa: SLF001  raw_path costs a URL object, and decodes nothing more
        if not target.startswith("/"):
            target = "/" + target.partition("://")[2].partition("/")[2]
        self.path, _, self.query = target.partition("?")

    def header(self, name: str) -> str | None:
        """Return the first value of a header, or None."""
        return self._aio.headers.get(name)

    def headers(self, name: str) -> Sequence[str]:
        """Return all values of a header."""
        return self._aio.headers.getall(name, ())

    @property
    def head_bytes(self) -> int:
        """Size of the request head as it was sent."""
        fields = sum(len(name) + len(value) + 4 for name, value in self._aio._message.raw_headers)  # noqa: SLF001
        return len(self.method) + len(self.path) + len(self.query) + 13 + fields

    async def read(self) -> bytes:
        """Read the body within the bounds, answering `Expect: 100-continue` first (SPEC §3)."""
        limit = self._bounds.body_bytes
        if (self._aio.content_length or 0) > limit:
            raise too_large(limit)
        expects = self._aio.headers.get(hdrs.EXPECT, "").lower() == "100-continue"
        if expects and self._aio.version >= HttpVersion11:  # RFC 9110 §10.1.1: an older client's is ignored
            await self._aio._payload_writer.write(_CONTINUE)  # noqa: SLF001  the low-level server leaves it to us
        is_here = self._aio.content.is_eof()  # as most are: then there is nothing to wait for, and a timer costs much
        try:
            async with nullcontext() if is_here else asyncio.timeout(self._bounds.body_seconds):
                raw = await self._read_up_to(limit)
        except TimeoutError:
            raise BodyTooSlow(f"The body did not arrive within {self._bounds.body_seconds} s.") from None
        codings = self._aio.headers.getall(hdrs.CONTENT_ENCODING, ())  # one list, however many lines (RFC 9110 §5.3)
        return decode_body(raw, ", ".join(codings), self._bounds.decompressed_body_bytes) if codings else raw

    async def _read_up_to(self, limit: int) -> bytes:
        pieces = bytearray()
        try:
            async for piece in self._aio.content.iter_any():
                pieces += piece
                if len(pieces) > limit:
                    raise too_large(limit)
        except (HttpProcessingError, web.RequestPayloadError) as error:
            raise InvalidRequest("The body's transfer coding is broken; its chunks cannot be told apart.") from error
        return bytes(pieces)


def too_large(limit: int) -> PayloadTooLarge:
    """Say that a body is above its bound, in bytes."""
    return PayloadTooLarge(f"The body is larger than {limit} bytes, the most that is read here.", code="body_too_large")


class ServedWriter:
    """Where aiohttp takes the answer. Raises ClientLeft once the connection is gone."""

    __slots__ = ("_aio", "_is_chunked", "_stopping", "response")

    def __init__(self, aio: web.BaseRequest, stopping: asyncio.Event) -> None:
        self._aio = aio
        self._stopping = stopping
        self._is_chunked = False
        self.response: web.StreamResponse | None = None

    @property
    def is_started(self) -> bool:
        """Whether the head has left."""
        return self.response is not None

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head; the body follows in chunks."""
        self.response = web.StreamResponse(status=status, headers=CIMultiDict([*headers, _SERVER]))
        self._say_whether_last(self.response)
        await self._guard(self.response.prepare(self._aio))
        self._is_chunked = hdrs.TRANSFER_ENCODING in self.response.headers

    async def write(self, data: bytes) -> None:
        """Send bytes of the body; waits while the client's socket is full.

        Chunks are made here: an event is written for each token, and aiohttp's own way costs several times as much.
        """
        if not data:
            return
        protocol = self._aio.protocol
        try:
            if self._is_chunked:
                _write_chunk(protocol.transport, data)
            else:
                await self._aio.writer.write(data)
            if protocol.writing_paused:  # aiohttp looks at every 64 KiB only
                await self._aio.writer.drain()
        except ConnectionError as error:
            raise ClientLeft from error

    async def finish(self) -> None:
        """End the body."""
        assert self.response is not None  # noqa: S101  start comes first
        await self._guard(self.response.write_eof())

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer with its length; the body is left out for HEAD."""
        self.response = web.Response(status=status, headers=CIMultiDict([*headers, _SERVER]), body=body)
        self._say_whether_last(self.response)
        await self._guard(self.response.prepare(self._aio))
        await self.finish()

    def _say_whether_last(self, response: web.StreamResponse) -> None:
        if self._stopping.is_set():
            response.force_close()

    def abort(self) -> None:
        """Break the connection."""
        if self._aio.transport is not None:
            self._aio.transport.abort()

    @staticmethod
    async def _guard(step: Awaitable[AbstractStreamWriter | None]) -> None:
        try:
            await step
        except ConnectionError as error:
            raise ClientLeft from error


def _write_chunk(transport: asyncio.Transport | None, data: bytes) -> None:
    """Write one chunk (RFC 9112 §7.1). Raises ConnectionError."""
    if transport is None or transport.is_closing():
        raise ConnectionError("The connection is closed.")
    transport.write(b"%x\r\n%b\r\n" % (len(data), data))


class _Protocol(RequestHandler):
    """aiohttp's connection handler, speaking OpenAI's error shape where it answers on its own."""

    __slots__ = ("_client_seconds", "_last_body", "_most_head_bytes", "_note_fault", "_unfinished_head_bytes")

    def __init__(
        self,
        manager: _Server,
        *,
        client_seconds: float,
        note_fault: NoteFault,
        **kwargs: Any,  # noqa: ANN401  aiohttp's own
    ) -> None:
        super().__init__(manager, **kwargs)
        self._client_seconds = client_seconds
        self._note_fault = note_fault
        self._most_head_bytes = _HEADS_READ * kwargs["max_line_size"]
        self._unfinished_head_bytes = 0
        self._last_body: StreamReader | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve a connection, which keeps little for its client, and not for long.

        The kernel knows best whether a client reads: its buffers, of megabytes, hide that from the process. It breaks a
        connection when nothing of what was sent was acknowledged, or all room was taken, for so long.
        """
        super().connection_made(transport)
        assert self.transport is not None  # noqa: S101  it has just been made
        self.transport.set_write_buffer_limits(_WRITE_BUFFER_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):  # RFC 5482, on Linux; elsewhere nobody is given up
            patience = min(round(self._client_seconds * 1000), _LONGEST_USER_TIMEOUT_MILLISECONDS)
            with suppress(OSError):  # it has gone already
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the request under way; where the kernel gave its client up, that is the reason."""
        if isinstance(exc, TimeoutError) and self._task_handler is not None:
            self._task_handler.cancel(CLIENT_TOO_SLOW)
        super().connection_lost(exc)

    async def _drain_helper(self) -> None:
        """Wait until the client has taken enough; aiohttp would wait once more for what was cancelled before."""
        if self._drain_waiter is not None and self._drain_waiter.cancelled():
            self._drain_waiter = None
        await super()._drain_helper()

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client; break the connection when a head goes on and on.

        aiohttp bounds each line of a head and their number, and so lets it grow to the product of both.
        """
        heads = self._request_count
        super().data_received(data)
        if self._request_count != heads:
            self._last_body = self._messages[-1][1] if self._messages else None
            self._unfinished_head_bytes = 0
        elif self._last_body is None or self._last_body.is_eof():
            self._unfinished_head_bytes += len(data)
            if self._unfinished_head_bytes > self._most_head_bytes and self.transport is not None:
                self.transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,  # noqa: ARG002  aiohttp's own; ours follows from the error
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a head that cannot be read; anything else is a fault of ours and is logged."""
        error: Rejection | GatewayError
        if isinstance(exc, LineTooLong) or (message or "").startswith(_TOO_MANY_FIELDS):
            error = HeadTooLarge("The request head is too large.", code="request_head_too_large")
        elif isinstance(exc, HttpProcessingError):
            error = InvalidRequest(f"The request head cannot be read: {(message or exc.message).splitlines()[0][:200]}")
        else:
            self._note_fault(exc)
            error = GatewayError("The gateway failed to answer; the operator's log says more.")
        if request.writer.output_size > 0:
            raise ConnectionError("The head has left; the connection is closed instead.")
        # aiohttp answers an unreadable head as HTTP/1.0, so that it has to be told what it does (RFC 9112 §9.6).
        fields = [*_own_headers(error), _SERVER, ("Connection", "close")]
        response = web.Response(status=status_of(error), headers=CIMultiDict(fields), body=error_object(error))
        response.force_close()
        return response


def _own_headers(error: Rejection | GatewayError) -> Headers:
    """Return the fields of an answer that the path has no part in; it gets a request id like all others."""
    return [*error_headers(error), ("x-request-id", new_request_id())]


class _Server(web.Server):
    """aiohttp's low-level server with our connection handler."""

    def __init__(
        self,
        handler: Handle,
        *,
        bounds: Callable[[], Bounds],
        client_seconds: Callable[[], float],
        note_fault: NoteFault,
        **kwargs: Any,  # noqa: ANN401  aiohttp's own
    ) -> None:
        super().__init__(handler, **kwargs)
        self._bounds = bounds
        self._client_seconds = client_seconds
        self._note_fault = note_fault

    def __call__(self) -> RequestHandler:
        head_bytes = self._bounds().head_bytes
        return _Protocol(
            self,
            client_seconds=self._client_seconds(),
            note_fault=self._note_fault,
            loop=self._loop,
            max_line_size=head_bytes,
            max_field_size=head_bytes,
            **self._kwargs,
        )


class _Traffic:
    """Who is being answered. While a gateway drains, connections that are open are still served."""

    def __init__(self) -> None:
        self.under_way: set[asyncio.Task[Any]] = set()
        self._moved = asyncio.Event()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count the current task while it answers."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  every handler runs in one
        self.under_way.add(task)
        self._moved.set()
        try:
            yield
        finally:
            self.under_way.discard(task)
            self._moved.set()

    async def run_dry(self, server: web.Server, patience_seconds: float) -> None:
        """Return when nobody is connected, when nobody has asked for a while, or when the patience is at its end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds):
                while server.connections and await self._has_moved():
                    pass

    async def _has_moved(self) -> bool:
        """Wait until an answer begins or ends; False when there is none and none begins."""
        self._moved.clear()
        try:
            async with asyncio.timeout(None if self.under_way else _QUIET_SECONDS):
                await self._moved.wait()
        except TimeoutError:
            return False
        return True


async def serve(  # noqa: PLR0913  what it stands on, by name
    answer: Callable[[Request, Writer], Awaitable[None]],
    sock: socket.socket,
    stopping: asyncio.Event,
    *,
    bounds: Callable[[], Bounds],
    client_seconds: Callable[[], float],
    drain_seconds: Callable[[], float],
    note_fault: NoteFault,
) -> None:
    """Answer requests from `sock` until `stopping` is set, then finish those under way within `drain_seconds`.

    `bounds`, `client_seconds` and `drain_seconds` are asked for when they are needed; a client that takes nothing of
    its answer for `client_seconds` counts as gone. Who is connected when it ends may ask once more on each connection:
    the answer says that it is closed. What is not finished in time, or when this is cancelled, is
    cancelled with `DRAINING` for a reason, and has a moment for its last words. `note_fault` is told what `answer`
    should not have raised; its client gets a 500.
    """
    traffic = _Traffic()

    async def handle(aio: web.BaseRequest) -> web.StreamResponse:
        with traffic.answering():
            return await _answer_one(answer, aio, bounds(), stopping)

    server = _Server(
        handle,
        bounds=bounds,
        client_seconds=client_seconds,
        note_fault=note_fault,
        handler_cancellation=True,
        access_log=None,
        auto_decompress=False,
        keepalive_timeout=_KEEPALIVE_SECONDS,
        max_headers=_MAX_FIELDS,
    )
    runner = web.ServerRunner(server, shutdown_timeout=_LAST_WORDS_SECONDS)
    await runner.setup()
    site = web.SockSite(runner, sock, backlog=_BACKLOG)
    try:
        await site.start()
        await stopping.wait()
        await _stop_accepting(server, site, sock)
        await traffic.run_dry(server, drain_seconds())
    finally:
        if site in runner.sites:
            await site.stop()
        await _cut_short(traffic.under_way)
        await runner.cleanup()


async def _answer_one(
    answer: Callable[[Request, Writer], Awaitable[None]], aio: web.BaseRequest, bounds: Bounds, stopping: asyncio.Event
) -> web.StreamResponse:
    request, writer = ServedRequest(aio, bounds), ServedWriter(aio, stopping)
    if request.head_bytes > bounds.head_bytes:
        error = HeadTooLarge(
            f"The request head is larger than {bounds.head_bytes} bytes.", code="request_head_too_large"
        )
        await writer.respond(status_of(error), _own_headers(error), error_object(error))
    else:
        await answer(request, writer)
    if writer.response is None:
        raise ConnectionError("Nothing was answered; the connection is closed.")
    return writer.response


async def _stop_accepting(server: _Server, site: web.BaseSite, sock: socket.socket) -> None:
    """Close the listening socket; who has connected by then is served, though nobody had accepted it yet."""
    waiting = [*_accept_all(sock)]
    await site.stop()
    for each in waiting:
        with suppress(OSError):  # it has left in the meantime
            await asyncio.get_running_loop().connect_accepted_socket(server, each)


def _accept_all(sock: socket.socket) -> Iterator[socket.socket]:
    while True:
        try:
            yield sock.accept()[0]
        except ConnectionAbortedError:
            continue
        except OSError:  # nobody is left; or there is no room for more, and others are turned away
            return


async def _cut_short(under_way: Collection[asyncio.Task[Any]]) -> None:
    """Cancel answers under way and wait for their last words."""
    left = tuple(under_way)
    for task in left:
        task.cancel(DRAINING)
    if left:
        await asyncio.wait(left, timeout=_LAST_WORDS_SECONDS)
