"""One attempt at one upstream: a request out, the head of its answer in, the body in pieces.

The only file of the data plane that knows the client library. Its exceptions end here, without a trace: they may quote
what an upstream sent. What travels on is of `proxy.errors`, or an `AttemptFailed` that says whether the request may
have reached the upstream. Knows nothing of models, retries and which headers may pass.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict
from yarl import URL

from proxy.errors import UpstreamBroken, UpstreamError, UpstreamTooSlow
from proxy.wire.codings import CodingError, make_decoder

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Callable, Iterator
    from types import TracebackType
    from typing import Self

    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.client_reqrep import ClientRequest, ConnectionKey
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

    from proxy.exchange import Headers
    from proxy.wire.codings import Decoder

_STREAM_TYPE = "text/event-stream"
_MAX_HEAD_BYTES = 64 * 1024
_MAX_HEADERS = 1024
_READ_BUFFER_BYTES = 64 * 1024
_IDLE_SECONDS = 60.0
_MAX_ADDRESSES = 4096
_MAX_REASON_CHARACTERS = 300
_MAX_BYTES_AT_ONCE = 1024 * 1024  # more in one write holds the event loop, of which aiohttp warns
_STALE_SECONDS = 0.5
"""How soon after a request was written a break tells that nobody was there to read it.

A peer that has given the connection up says so within a round trip, which takes 0.3 s half around the world. Whether
the request's bytes were acknowledged tells less: a kernel takes bytes that its process never reads.
"""


@dataclass(frozen=True, slots=True)
class ClientBounds:
    """How long an upstream may take, in seconds (SPEC §3); to connect means to resolve its name and to greet, too."""

    connect_seconds: float = 5.0
    first_byte_seconds: float = 600.0
    silence_seconds: float = 300.0


class Failure(StrEnum):
    """How an attempt ended without an answer."""

    UNREACHABLE = "connect"
    CONNECT_TIMEOUT = "connect_timeout"
    STALE = "stale"
    NO_ANSWER = "broken"
    NOT_HTTP = "unusable"
    TIMEOUT = "timeout"


class AttemptFailed(Exception):  # noqa: N818
    """No answer came; the class of failure says whether the request can have been read (SPEC §8)."""

    def __init__(self, failure: Failure, reason: str) -> None:
        super().__init__(reason)
        self.failure = failure
        self.reason = reason


class _Attempt:
    """One request on its way: over which connection it goes, and when its body began to be written."""

    __slots__ = ("_on_sent", "_sent", "protocol", "reuses")

    def __init__(self, *, reuses: bool, on_sent: Callable[[], None] | None) -> None:
        self.protocol: _Protocol | None = None
        self.reuses = reuses
        self._on_sent = on_sent
        self._sent: float | None = None

    def note_write(self, _body_bytes: int, _all_bytes: int) -> None:
        """Take note of a piece of the body that was handed to the transport; the first one tells."""
        if self._sent is None:
            self._sent = time.monotonic()
            if self._on_sent is not None:
                self._on_sent()

    @property
    def was_stale(self) -> bool:
        """Whether a break means that the connection had been given up, and the request was not read."""
        protocol = self.protocol
        if protocol is None or protocol.requests == 1 or protocol.has_answered:
            return False
        return self._sent is None or (protocol.lost or time.monotonic()) - self._sent < _STALE_SECONDS


_current: ContextVar[_Attempt] = ContextVar("current")


class _Request(aiohttp.ClientRequest):
    """A request that tells its attempt when the body begins to leave; a head alone makes no upstream work."""

    async def write_bytes(
        self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None
    ) -> None:
        """Write the body."""
        writer.on_body_write = _current.get().note_write
        await super().write_bytes(writer, conn, content_length)


class _Protocol(ResponseHandler):
    """A connection that knows how often it has served and how it ended; an answer that cannot be parsed ends, too.

    `has_answered` tells whether a byte came for the latest request, `lost` when the connection ended. aiohttp leaves
    the reader of a body waiting for ever, its time-out taken off, when a chunk's head is broken; and it takes a reset
    for the proper end of a body that has no length.
    """

    requests = 0
    has_answered = False
    was_cut = False
    lost: float | None = None

    def data_received(self, data: bytes) -> None:
        """Note that there is an answer."""
        self.has_answered = True
        super().data_received(data)

    def set_exception(self, exc: BaseException, exc_cause: BaseException | None = None) -> None:
        """Note that the connection has failed, and tell the reader of a body that has not ended."""
        super().set_exception(exc, exc if exc_cause is None else exc_cause)
        payload = self._payload
        if isinstance(exc, HttpProcessingError) and payload is not None and not payload.is_eof():
            payload.set_exception(aiohttp.ClientPayloadError(), exc)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Note when the connection ended, and whether it was cut, and not closed."""
        self.lost = time.monotonic()
        self.was_cut = exc is not None
        super().connection_lost(exc)


def _make_protocol(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return _Protocol(loop)


class _Connector(aiohttp.TCPConnector):
    """Tells over which connection a request went: one that had served before may have gone stale.

    aiohttp tells this to tracers only, which cost a signal at every step of every request.
    """

    def __init__(self) -> None:
        super().__init__(limit=0, keepalive_timeout=_IDLE_SECONDS)
        self._factory = partial(_make_protocol, loop=self._loop)

    async def connect(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  the name is aiohttp's
    ) -> Connection:
        """Return a connection, having noted which."""
        connection = await super().connect(req, traces, timeout)
        protocol = connection.protocol
        assert isinstance(protocol, _Protocol)  # noqa: S101  made by our factory
        protocol.requests += 1
        protocol.has_answered = False
        _current.get().protocol = protocol
        return connection

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        return await super()._get(key, traces) if _current.get().reuses else None


class UpstreamAnswer:
    """An answer whose head is known. `headers` are as received; the body comes decoded, whatever its coding.

    Must be closed; `close` gives the connection back where the body was read to its end, and cuts it otherwise.
    `is_whole` tells that the end was read; `is_usage_added` that usage was asked for which the client did not ask
    for; `failure` what the answer came to when it broke or could not be passed on; `when_closed` is called once, at
    the end.
    """

    __slots__ = (
        "_decoder",
        "_peeked",
        "_protocol",
        "_response",
        "_silence_seconds",
        "failure",
        "headers",
        "is_usage_added",
        "is_whole",
        "media_type",
        "status",
        "when_closed",
    )

    def __init__(self, response: aiohttp.ClientResponse, protocol: _Protocol | None, *, silence_seconds: float) -> None:
        self.status = response.status
        self.headers: Headers = list(response.headers.items())
        self.media_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        self.is_whole = False
        self.is_usage_added = False
        self.failure: UpstreamError | None = None
        self.when_closed: Callable[[], None] | None = None
        self._peeked: list[bytes] = []
        self._response = response
        self._silence_seconds = silence_seconds
        self._protocol = None if _has_length(response) else protocol
        self._decoder = _decoder_of(response)
        connection = response.connection
        if connection is not None and connection.protocol is not None:
            connection.protocol.read_timeout = silence_seconds
            connection.protocol.start_timeout()

    def header(self, name: str) -> str | None:
        """Return the first value of a header, or None."""
        return self._response.headers.get(name)

    @property
    def is_stream(self) -> bool:
        """Whether the body is server-sent events."""
        return self.media_type == _STREAM_TYPE

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Hand out the body as it comes, never empty pieces.

        Raises UpstreamBroken when the transport is cut or the coding broken, UpstreamTooSlow after silence; all
        that had arrived before was handed out.
        """
        content = self._response.content
        while self._peeked:
            yield self._peeked.pop(0)
        while True:
            try:
                data = await content.readany()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                # The reader forgets what it holds once it has failed; that was generated, and is the client's.
                for piece in self._decoded(content._read_nowait(-1)):  # noqa: SLF001
                    yield piece
                raise self._broken(error) from None
            if not data:
                break
            if self._decoder is None:
                yield data
            else:
                for piece in self._decoded(data):
                    yield piece
        if self._protocol is not None and self._protocol.was_cut:
            raise self._broken()
        if self._decoder is not None and not self._decoder.is_complete:
            self.failure = UpstreamBroken("The upstream's compressed answer ended too early.")
            raise self.failure
        self.is_whole = True

    async def read_whole(self, max_bytes: int) -> tuple[bytes, bool]:
        """Read the body until it ends or is above `max_bytes`: what was read, and whether that is all."""
        body = b""
        async for piece in self.chunks():
            body = body + piece if body else piece
            if len(body) > max_bytes:
                return body, False
        return body, True

    async def peek(self, max_bytes: int) -> bytes:
        """Read some `max_bytes` of the body, which `chunks` hands out nevertheless. Raises as `chunks` does."""
        seen: list[bytes] = []
        try:
            async with aclosing(self.chunks()) as chunks:
                async for piece in chunks:
                    seen.append(piece)
                    max_bytes -= len(piece)
                    if max_bytes <= 0:
                        break
        finally:
            self._peeked[:0] = seen
        return b"".join(seen)

    def close(self) -> None:
        """Give the connection back, or cut it when the body was not read to its end."""
        self._response.close()
        if self.when_closed is not None:
            self.when_closed()
            self.when_closed = None

    def _decoded(self, data: bytes) -> Iterator[bytes]:
        if self._decoder is None:
            if data:
                yield data
            return
        try:
            yield from self._decoder.feed(data)
        except CodingError as error:
            self.failure = UpstreamBroken(f"The upstream's answer does not decompress: {error}.")
            raise self.failure from error

    def _broken(self, error: Exception | None = None) -> UpstreamError:
        if isinstance(error, TimeoutError):
            self.failure = UpstreamTooSlow(
                f"The upstream was silent for {self._silence_seconds:g} s within its answer."
            )
        else:
            self.failure = UpstreamBroken("The connection to the upstream broke within its answer.")
        return self.failure


class UpstreamClient:
    """All upstreams' connections, kept alive and shared; opened with `async with`."""

    def __init__(self, bounds: ClientBounds) -> None:
        self._bounds = bounds
        self._session: aiohttp.ClientSession | None = None
        self._addresses: dict[str, URL] = {}

    async def __aenter__(self) -> Self:
        """Open the pool."""
        bounds = self._bounds
        self._session = aiohttp.ClientSession(
            connector=_Connector(),
            request_class=_Request,
            cookie_jar=aiohttp.DummyCookieJar(),
            # sock_connect would leave out the name's resolution, and begin anew for every address that it has.
            timeout=aiohttp.ClientTimeout(
                total=None, connect=bounds.connect_seconds, sock_read=bounds.first_byte_seconds
            ),
            auto_decompress=False,
            trust_env=False,
            max_line_size=_MAX_HEAD_BYTES,
            max_field_size=_MAX_HEAD_BYTES,
            max_headers=_MAX_HEADERS,
            read_bufsize=_READ_BUFFER_BYTES,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    async def post(
        self,
        address: str,
        headers: Headers,
        body: bytes,
        *,
        on_sent: Callable[[], None] | None = None,
        reuses_connection: bool = True,
    ) -> UpstreamAnswer:
        """Send one request and wait for the head of its answer; the address is used as it stands.

        `on_sent` is called once the body has begun to be written. Raises AttemptFailed: as STALE where a connection
        that had served before was gone, and the request not read. Whoever sends it again has to do without
        `reuses_connection`, as the others may be gone as well.
        """
        assert self._session is not None  # noqa: S101  opened by `async with`
        attempt = _Attempt(reuses=reuses_connection, on_sent=on_sent)
        token = _current.set(attempt)
        try:
            response = await self._session.post(
                self._url(address),
                data=body if len(body) <= _MAX_BYTES_AT_ONCE else BytesIO(body),
                headers=CIMultiDict(headers),
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise AttemptFailed(_failure_of(error, attempt), _reason_of(error)) from None
        finally:
            _current.reset(token)
        return UpstreamAnswer(response, attempt.protocol, silence_seconds=self._bounds.silence_seconds)

    def _url(self, address: str) -> URL:
        """Parse an address once; those that carry a client's api-version must not fill the memory."""
        url = self._addresses.get(address)
        if url is None:
            if len(self._addresses) >= _MAX_ADDRESSES:
                self._addresses.clear()
            url = self._addresses[address] = URL(address, encoded=True)
        return url


def _failure_of(error: Exception, attempt: _Attempt) -> Failure:
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return Failure.CONNECT_TIMEOUT
    if isinstance(error, aiohttp.ClientConnectorError):
        return Failure.UNREACHABLE
    if isinstance(error, TimeoutError):
        return Failure.TIMEOUT
    if isinstance(error, aiohttp.ClientResponseError):
        return Failure.NOT_HTTP
    is_break = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
    return Failure.STALE if is_break and attempt.was_stale else Failure.NO_ANSWER


def _reason_of(error: BaseException) -> str:
    """Say what failed: in the system's words, and else by name, since the library's words may quote an answer."""
    if isinstance(error, OSError):
        return f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARACTERS]
    while error.__cause__ is not None:
        error = error.__cause__
    return type(error).__name__


def _has_length(response: aiohttp.ClientResponse) -> bool:
    """Tell whether a body says itself where it ends (RFC 9112 §6.3); others end with the connection."""
    coding = response.headers.get("Transfer-Encoding")
    return "Content-Length" in response.headers if coding is None else "chunked" in coding.lower()


def _decoder_of(response: aiohttp.ClientResponse) -> Decoder | None:
    codings = response.headers.getall("Content-Encoding", ())
    if not codings:
        return None
    try:
        return make_decoder(", ".join(codings))
    except CodingError as error:
        response.close()
        raise UpstreamBroken(f"The upstream's answer is in a coding that is not read: {error}.") from error
