"""One attempt at one upstream: a request out, the head of its answer in, the body in pieces.

The only file of the data plane that knows the client library. Its exceptions end here, without a trace: they may quote
what an upstream sent. What travels on is of `proxy.errors`, or an `AttemptFailed` that says whether the request may
have reached the upstream. Knows nothing of models, retries and which headers may pass, nor how a way is found.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import aclosing, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, partial
from io import BytesIO
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict
from yarl import URL

from proxy.errors import UpstreamBroken, UpstreamError, UpstreamTooSlow
from proxy.steps import Unfinished, begin
from proxy.upstreams.connections import DIRECT, is_certificate_refused, told_tls_error
from proxy.wire.codings import CodingError, make_decoder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
    from types import TracebackType
    from typing import Self

    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.client_reqrep import ClientRequest, ConnectionKey
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

    from proxy.exchange import Headers
    from proxy.upstreams.connections import Way
    from proxy.upstreams.proxies import Proxy
    from proxy.wire.codings import Decoder

    Take = Callable[[bytes], Coroutine[Any, Any, bool]]

_STREAM_TYPE = "text/event-stream"
_MAX_HEAD_BYTES = 64 * 1024
_MAX_HEADERS = 1024
_READ_BUFFER_BYTES = 16 * 1024
"""Beyond twice as much an upstream is read no more until some was taken; the kernel keeps more."""
_STREAM_PIECE_BYTES = 16 * 1024
"""A stream's bytes are copied a few times on their way, and a client that reads slowly makes them stay there."""
_IDLE_SECONDS = 60.0
_MAX_ADDRESSES = 4096
_MAX_REASON_CHARACTERS = 300
_MAX_IGNORED_BYTES = 64 * 1024
_KNOWN_BOUNDS = 64
_PROXY_REFUSES = 407
_PROXY_WANTS = "its credentials belong in the variable that names it: http://user:password@host:port"
_PROXY_AGENT = ("User-Agent", "tidegate")
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


_USUAL_BOUNDS = ClientBounds()


@lru_cache(_KNOWN_BOUNDS)
def _timeout(bounds: ClientBounds) -> aiohttp.ClientTimeout:
    # sock_connect would leave out the name's resolution, and begin anew for every address that it has.
    return aiohttp.ClientTimeout(total=None, connect=bounds.connect_seconds, sock_read=bounds.first_byte_seconds)


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


class _Flow:
    """Has the pieces of a body taken in the moment they come, until one has to wait or is the last that is wanted.

    `turn` is done when that is so, or no more pieces come; a piece that has to wait is `unfinished`.
    """

    __slots__ = ("_take", "has_enough", "turn", "unfinished")

    def __init__(self, take: Take, loop: asyncio.AbstractEventLoop) -> None:
        self._take = take
        self.turn: asyncio.Future[None] = loop.create_future()
        self.unfinished: Unfinished[bool] | None = None
        self.has_enough = False

    def take(self, data: bytes) -> None:
        """Have a piece taken; what is raised is for who awaits the turn."""
        try:
            outcome = begin(self._take(data))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  nothing may end in the library's parser
            self.turn.set_exception(error)
            return
        if isinstance(outcome, Unfinished):
            self.unfinished = outcome
        elif outcome:
            self.has_enough = True
        else:
            return
        self.turn.set_result(None)

    def end(self) -> None:
        """End the turn, as nothing more comes."""
        if not self.turn.done():
            self.turn.set_result(None)


class _FlowingReader(aiohttp.StreamReader):
    """The reader of a body while it flows: what comes goes by, and is kept only while there is no flow.

    Readers are made by aiohttp's parser, and become one of these by their class.
    """

    __slots__ = ()

    def feed_data(self, data: bytes, size: int = 0) -> bool:
        """Have a piece taken, or keep it."""
        flow = self._flow
        if flow is None or flow.turn.done():
            return super().feed_data(data, size)
        flow.take(data)
        return False

    def begin_http_chunk_receiving(self) -> None:
        """Do nothing: where chunks begin and end is looked at by nobody."""

    def end_http_chunk_receiving(self) -> None:
        """Do nothing."""

    def feed_eof(self) -> None:
        """End the flow, too."""
        super().feed_eof()
        if self._flow is not None:
            self._flow.end()

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        """End the flow, too; whoever let it flow asks for the exception."""
        super().set_exception(exc, *cause)
        if self._flow is not None:
            self._flow.end()

    @property
    def _flow(self) -> _Flow | None:
        protocol = self._protocol
        assert isinstance(protocol, _Protocol)  # noqa: S101  made by our factory
        return protocol.flow


class _Protocol(ResponseHandler):
    """A connection that knows how often it has served and how it ended; an answer that cannot be parsed ends, too.

    `is_idle` while it is kept for a next request; `has_answered` tells whether a byte came for the latest one, `lost`
    when the connection ended; `flow` is what takes the body's pieces as they come. aiohttp leaves the reader of a body
    waiting for ever, its time-out taken off, when a chunk's head is broken; and it takes a reset for the proper end of
    a body that has no length. It makes a timer for every packet, where one looks at the clock again.
    """

    flow: _Flow | None = None
    requests = 0
    is_idle = False
    has_answered = False
    was_cut = False
    lost: float | None = None
    _silent_until = 0.0

    def data_received(self, data: bytes) -> None:
        """Note that there is an answer, and break the connection where nobody has asked.

        aiohttp would keep what came for the next request, which may be another client's.
        """
        if self.is_idle and data:  # aiohttp itself comes with none
            self.abort()
            return
        self.has_answered = True
        super().data_received(data)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Read nothing within the block, if the connection stands."""
        if self.transport is not None:
            self.pause_reading()
        try:
            yield
        finally:
            if self.transport is not None:
                self.resume_reading()

    def set_exception(self, exc: BaseException, exc_cause: BaseException | None = None) -> None:
        """Note that the connection has failed, and tell the reader of a body that has not ended."""
        super().set_exception(exc, exc if exc_cause is None else exc_cause)
        payload = self._payload
        if isinstance(exc, HttpProcessingError) and payload is not None and not payload.is_eof():
            payload.set_exception(aiohttp.ClientPayloadError(), exc)

    def _reschedule_timeout(self) -> None:
        """Begin to wait anew; a timer under way that does not end too late goes on."""
        timeout_seconds = self._read_timeout
        if not timeout_seconds:
            self._drop_timeout()
            return
        self._silent_until = self._loop.time() + timeout_seconds
        timer = self._read_timeout_handle
        if timer is None or timer.when() > self._silent_until:
            self._drop_timeout()
            self._read_timeout_handle = self._loop.call_at(self._silent_until, self._look_at_clock)

    def _look_at_clock(self) -> None:
        if self._loop.time() < self._silent_until:
            self._read_timeout_handle = self._loop.call_at(self._silent_until, self._look_at_clock)
        else:
            self._on_read_timeout()

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
        protocol.is_idle = protocol.has_answered = False
        _current.get().protocol = protocol
        return connection

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        return await super()._get(key, traces) if _current.get().reuses else None

    def _release(self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        assert isinstance(protocol, _Protocol)  # noqa: S101  made by our factory
        protocol.is_idle = True
        super()._release(key, protocol, should_close=should_close)

    def _update_proxy_auth_header_and_build_proxy_req(self, req: ClientRequest) -> ClientRequest:
        """Have a proxy's own TLS be the system's: the upstream's authorities and certificate are no business of it."""
        proxy_request = super()._update_proxy_auth_header_and_build_proxy_req(req)
        proxy_request._ssl = True  # noqa: SLF001  there is no other way to say so
        return proxy_request


class UpstreamAnswer:
    """An answer whose head is known. `headers` are as received; the body comes decoded, whatever its coding.

    Must be closed; `close` gives the connection back where the body was read to its end, and cuts it otherwise.
    `is_whole` tells that the end was read; `is_usage_added` that usage was asked for which the client did not ask
    for; `is_replaceable` that another deployment may be asked as long as none of it has left; `failure` what the answer
    came to when it broke or could not be passed on; `when_closed` is called once, at the end.
    """

    __slots__ = (
        "_decoder",
        "_ends_with_connection",
        "_peeked",
        "_protocol",
        "_response",
        "_silence_seconds",
        "_unread",
        "failure",
        "headers",
        "is_replaceable",
        "is_usage_added",
        "is_whole",
        "media_type",
        "status",
        "when_closed",
    )

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        protocol: _Protocol,
        decoder: Decoder | None,
        *,
        silence_seconds: float,
    ) -> None:
        self.status = response.status
        self.headers: Headers = list(response.headers.items())
        self.media_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        self.is_whole = False
        self.is_usage_added = False
        self.is_replaceable = False
        self.failure: UpstreamError | None = None
        self.when_closed: Callable[[], None] | None = None
        self._peeked: list[bytes] = []
        self._unread: Iterator[bytes] = iter(())
        self._response = response
        self._silence_seconds = silence_seconds
        self._ends_with_connection = not _has_length(response)
        self._protocol = protocol
        self._decoder = decoder
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
        while True:
            for piece in self._held():
                yield piece
            try:
                data = await (content.read(_STREAM_PIECE_BYTES) if self.is_stream else content.readany())
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                # The reader forgets what it holds once it has failed; that was generated, and is the client's.
                self._unread = self._decoded(content._read_nowait(-1))  # noqa: SLF001
                for piece in self._held():
                    yield piece
                raise self._broken(error) from None
            if not data:
                break
            if self._decoder is None:
                yield data
            else:
                self._unread = self._decoded(data)
        self._end()

    async def flow(self, take: Take) -> bool:
        """Have the body taken piece by piece, each in the moment it comes, until one was enough or the body ends.

        `take` returns True for enough; then this returns True too, and what is left comes with the next call, or from
        `chunks`. Where `take` waits, reading does; before that it is in no task, so that it must not begin a time-out.
        Raises what `take` raises, and as `chunks` does.
        """
        for piece in self._held():
            if await take(piece):
                return True
        content = self._response.content
        take_raw = take if self._decoder is None else partial(self._take_decoded, take)
        while True:
            while not content.at_eof() and (data := content._read_nowait(-1)):  # noqa: SLF001  what there is by now
                if await take_raw(data):
                    return True
            if (error := content.exception()) is not None:
                raise self._broken(error)
            if content.is_eof():
                self._end()
                return False
            if await self._flow_by(content, take_raw):
                return True

    async def _flow_by(self, content: aiohttp.StreamReader, take: Take) -> bool:
        """Let pieces flow until one has to wait, and wait for it; tell whether it was enough."""
        protocol = self._protocol
        content.__class__ = _FlowingReader
        flow = protocol.flow = _Flow(take, asyncio.get_running_loop())
        try:
            await flow.turn
        except BaseException:
            if flow.unfinished is not None:
                flow.unfinished.close()
            raise
        finally:
            if protocol.flow is flow:
                protocol.flow = None
        if flow.unfinished is None:
            return flow.has_enough
        with nullcontext() if content.is_eof() else protocol.resting():  # after its end it may serve another request
            return await flow.unfinished

    async def _take_decoded(self, take: Take, data: bytes) -> bool:
        self._unread = self._decoded(data)
        for piece in self._unread:
            if await take(piece):
                return True
        return False

    def _held(self) -> Iterator[bytes]:
        """Hand out what has come and was not taken yet; whoever stops in the middle leaves the rest."""
        while self._peeked:
            yield self._peeked.pop(0)
        for piece in self._unread:  # noqa: UP028  to delegate would end what is left with this
            yield piece

    def _end(self) -> None:
        """Note that the body is whole. Raises UpstreamBroken where it is not."""
        if self._ends_with_connection and self._protocol.was_cut:
            raise self._broken()
        if self._decoder is not None and not self._decoder.is_complete:
            self.failure = UpstreamBroken("The upstream's compressed answer ended too early.")
            raise self.failure
        self.is_whole = True

    async def read_whole(self, max_bytes: int) -> tuple[bytes, bool]:
        """Read the body until it ends or is above `max_bytes`: what was read, and whether that is all."""
        pieces, left_bytes = [], max_bytes
        async for piece in self.chunks():
            pieces.append(piece)
            left_bytes -= len(piece)
            if left_bytes < 0:
                break
        return b"".join(pieces), left_bytes >= 0

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
        self.count_as_closed()

    def count_as_closed(self) -> None:
        """Have told what `when_closed` tells, though the answer is kept; it is not told again."""
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

    def _broken(self, error: BaseException | None = None) -> UpstreamError:
        if isinstance(error, TimeoutError):
            self.failure = UpstreamTooSlow(
                f"The upstream was silent for {self._silence_seconds:g} s within its answer."
            )
        else:
            self.failure = UpstreamBroken("The connection to the upstream broke within its answer.")
        return self.failure


class UpstreamClient:
    """All upstreams' connections, kept alive and shared; opened with `async with`."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._addresses: dict[str, URL] = {}

    async def __aenter__(self) -> Self:
        """Open the pool."""
        self._session = aiohttp.ClientSession(
            connector=_Connector(),
            request_class=_Request,
            cookie_jar=aiohttp.DummyCookieJar(),
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

    async def post(  # noqa: PLR0913  all that one attempt is made of, by name
        self,
        address: str,
        headers: Headers,
        body: bytes,
        *,
        way: Way = DIRECT,
        bounds: ClientBounds = _USUAL_BOUNDS,
        on_sent: Callable[[], None] | None = None,
        reuses_connection: bool = True,
    ) -> UpstreamAnswer:
        """Send one request and wait for the head of its answer; the address is used as it stands.

        `on_sent` is called once the body has begun to be written. Raises AttemptFailed: as STALE where a connection
        that had served before was gone, and the request not read. Whoever sends it again has to do without
        `reuses_connection`, as the others may be gone as well.
        """
        attempt = _Attempt(reuses=reuses_connection, on_sent=on_sent)
        data = body if len(body) <= _MAX_BYTES_AT_ONCE else BytesIO(body)
        response = await self._send("POST", address, headers, data, way=way, bounds=bounds, attempt=attempt)
        try:
            decoder = _decoder_of(response)
        except CodingError as error:
            response.close()
            raise AttemptFailed(Failure.NOT_HTTP, f"its answer is in a coding that is not read: {error}") from None
        protocol = attempt.protocol
        assert protocol is not None  # noqa: S101  an answer came over one
        return UpstreamAnswer(response, protocol, decoder, silence_seconds=bounds.silence_seconds)

    async def get(self, address: str, headers: Headers, *, way: Way = DIRECT, timeout_seconds: float) -> int:
        """Ask for an address over a connection of its own and return the status; the body is thrown away.

        Raises AttemptFailed, also when all of it takes longer than `timeout_seconds`.
        """
        attempt = _Attempt(reuses=False, on_sent=None)
        bounds = ClientBounds(timeout_seconds, timeout_seconds, timeout_seconds)
        fields = [*headers, ("Connection", "close")]
        try:
            async with asyncio.timeout(timeout_seconds):
                response = await self._send("GET", address, fields, None, way=way, bounds=bounds, attempt=attempt)
                await _ignore_body(response)
        except TimeoutError:
            raise AttemptFailed(Failure.TIMEOUT, f"no answer within {timeout_seconds:g} s") from None
        return response.status

    async def _send(  # noqa: PLR0913  what an attempt is made of, by name
        self,
        method: str,
        address: str,
        headers: Headers,
        data: bytes | BytesIO | None,
        *,
        way: Way,
        bounds: ClientBounds,
        attempt: _Attempt,
    ) -> aiohttp.ClientResponse:
        assert self._session is not None  # noqa: S101  opened by `async with`
        url, proxy = self._url(address), way.proxy
        fields, with_connect = _fields(headers, url, proxy)
        token = _current.set(attempt)
        try:
            response = await self._session.request(
                method,
                url,
                data=data,
                headers=fields,
                allow_redirects=False,
                timeout=_timeout(bounds),
                ssl=True if way.tls is None else way.tls,
                proxy=None if proxy is None else self._url(proxy.address),
                proxy_headers=with_connect,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            on_the_way = "" if proxy is None or attempt.protocol is not None else f"through proxy {proxy.address}: "
            raise AttemptFailed(_failure_of(error, attempt), on_the_way + _reason_of(error)) from None
        finally:
            _current.reset(token)
        if proxy is not None and url.scheme == "http" and response.status == _PROXY_REFUSES:
            response.close()
            raise AttemptFailed(Failure.UNREACHABLE, f"through proxy {proxy.address}: {_refusal(_PROXY_REFUSES)}")
        return response

    def _url(self, address: str) -> URL:
        """Parse an address once; those that carry a client's api-version must not fill the memory."""
        url = self._addresses.get(address)
        if url is None:
            if len(self._addresses) >= _MAX_ADDRESSES:
                self._addresses.clear()
            url = self._addresses[address] = URL(address, encoded=True)
        return url


def _fields(headers: Headers, url: URL, proxy: Proxy | None) -> tuple[CIMultiDict[str], CIMultiDict[str] | None]:
    """Return what is sent with the request, and with CONNECT before it. Proxies find credentials where they read."""
    fields = CIMultiDict(headers)
    if proxy is None:
        return fields, None
    with_connect = CIMultiDict([_PROXY_AGENT])
    if proxy.authorization is not None:
        read_by_proxy = fields if url.scheme == "http" else with_connect
        read_by_proxy["Proxy-Authorization"] = proxy.authorization
    return fields, with_connect


async def _ignore_body(response: aiohttp.ClientResponse) -> None:
    """Read a body that does not matter, as far as it is small."""
    left = _MAX_IGNORED_BYTES
    try:
        while left > 0 and (piece := await response.content.read(left)):
            left -= len(piece)
    except (aiohttp.ClientError, OSError):
        pass  # the status had come
    finally:
        response.close()


def _failure_of(error: Exception, attempt: _Attempt) -> Failure:
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return Failure.CONNECT_TIMEOUT
    if attempt.protocol is None or isinstance(error, aiohttp.ClientConnectorError) or _refuses_certificate(error):
        return Failure.UNREACHABLE
    if isinstance(error, TimeoutError):
        return Failure.TIMEOUT
    if isinstance(error, aiohttp.ClientResponseError):
        return Failure.NOT_HTTP
    is_break = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
    return Failure.STALE if is_break and attempt.was_stale else Failure.NO_ANSWER


def _refuses_certificate(error: Exception) -> bool:
    """Tell whether the greeting failed after all: since TLS 1.3 a server looks at certificates when it is over."""
    cause = _tls_error(error)
    return cause is not None and is_certificate_refused(cause)


def _tls_error(error: BaseException) -> ssl.SSLError | None:
    """Return the error of TLS that is behind one of the library's, which may look like one itself."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error if isinstance(error, ssl.SSLError) else None


def _reason_of(error: BaseException) -> str:
    """Say what failed: in the system's words, and else by name, since the library's words may quote an answer."""
    tls = _tls_error(error)
    if tls is not None:
        return told_tls_error(tls)[:_MAX_REASON_CHARACTERS]
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return _refusal(error.status)
    if isinstance(error, OSError):
        return f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARACTERS]
    while error.__cause__ is not None:
        error = error.__cause__
    return type(error).__name__


def _refusal(status: int) -> str:
    """Say that a proxy refused, and what it wants where that is known."""
    return f"it refused with {status}" + (f"; {_PROXY_WANTS}" if status == _PROXY_REFUSES else "")


def _has_length(response: aiohttp.ClientResponse) -> bool:
    """Tell whether a body says itself where it ends (RFC 9112 §6.3); others end with the connection."""
    coding = response.headers.get("Transfer-Encoding")
    return "Content-Length" in response.headers if coding is None else "chunked" in coding.lower()


def _decoder_of(response: aiohttp.ClientResponse) -> Decoder | None:
    codings = response.headers.getall("Content-Encoding", ())
    return make_decoder(", ".join(codings)) if codings else None
