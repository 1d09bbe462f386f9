"""Streams held at both ends: the upstream and the client of whatever is between them, in one process.

So an event is sent when the one before has come out at the other end: each passes alone, however slow the machine, and
there is no pace to be kept. What passes is made beforehand, so that both ends together cost little.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Self, cast

from gateway import key_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

_HEAD_END: Final = b"\r\n\r\n"
_EVENT_END: Final = b"\n\n\r\n"
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
_NUMBER: Final = re.compile(rb'"content": ?"(\d+) ')
_LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_QUESTION: Final = "word " * 50
_BACKLOG: Final = 1024


def _event(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    value: dict[str, Any] = {
        "id": "chatcmpl-9vJ2qHc1f0YwZrT5kLmN8bXa",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m",
        "system_fingerprint": "fp_44709d6fcb",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}],
    }
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


FIRST: Final = _event({"role": "assistant", "content": "It"})
EVENT: Final = _event({"content": " begins"})
LAST: Final = _event({}, "stop") + b"data: [DONE]\n\n"
_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_BEGIN: Final = _HEAD + _chunk(FIRST)
_NEXT: Final = _chunk(EVENT)
_END: Final = _chunk(LAST) + b"0\r\n\r\n"


class BothEnds:
    """Where the streams begin and come out; `upstream_url` is what to put something in front of."""

    def __init__(self, server: asyncio.Server, upstreams: dict[int, asyncio.WriteTransport]) -> None:
        self.upstream_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self.upstreams = upstreams
        self._next_number = 0

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Self]:
        """Listen as the upstream."""
        upstreams: dict[int, asyncio.WriteTransport] = {}
        listening = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Upstream(upstreams), sock=listening)
        try:
            yield cls(server, upstreams)
        finally:
            server.close()

    def number(self) -> int:
        """Return what no other stream is told apart by."""
        self._next_number += 1
        return self._next_number


class _Upstream(asyncio.Protocol):
    """Answers a request with the first event, and leaves the rest to whoever looks the stream up."""

    def __init__(self, streams: dict[int, asyncio.WriteTransport]) -> None:
        self._streams = streams
        self._received = b""
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's have another ancestor

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, is_read, body = self._received.partition(_HEAD_END)
        length = _LENGTH.search(head)
        if not is_read or length is None or len(body) < int(length[1]):
            return
        self._received = b""
        number = _NUMBER.search(body)
        assert number is not None
        self._streams[int(number[1])] = self._transport
        self._transport.write(_BEGIN)


class Stream(asyncio.Protocol):
    """One client's connection, over which one stream passes after the other."""

    def __init__(self, ends: BothEnds, address: str, *, temperature: float) -> None:
        self._ends = ends
        host, _, self._path = address.removeprefix("http://").partition("/")
        self._host, _, port = host.partition(":")
        self._port = int(port)
        self._temperature = temperature
        self._transport: asyncio.WriteTransport
        self._upstream: asyncio.WriteTransport
        self._received = b""
        self._take: Callable[[], bool]
        self._done: asyncio.Future[None]
        self._left = 0

    async def connect(self) -> None:
        """Open the connection."""
        await asyncio.get_running_loop().create_connection(lambda: self, self._host, self._port)

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    async def begin(self) -> float:
        """Ask, and return how many seconds later the first event was there."""
        number = self._ends.number()
        body = json.dumps(
            {
                "model": "m",
                "messages": [{"role": "user", "content": f"{number} {_QUESTION}"}],
                "stream": True,
                "max_tokens": 60,
                "temperature": self._temperature,
            }
        ).encode()
        head = (
            f"POST /{self._path} HTTP/1.1\r\nHost: {self._host}\r\nAuthorization: Bearer {key_of('alice')}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        begun = time.perf_counter()
        self._transport.write(head.encode() + body)
        await self._until(self._take_first)
        taken = time.perf_counter() - begun
        self._upstream = self._ends.upstreams.pop(number)
        return taken

    async def go_on(self, events: int) -> None:
        """Pass so many more events, each when the one before has come out."""
        self._left = events
        self._upstream.write(_NEXT)
        await self._until(self._take_next)

    async def end(self) -> None:
        """Send the rest, and wait for the end."""
        self._upstream.write(_END)
        await self._until(self._take_last)

    async def _until(self, take: Callable[[], bool]) -> None:
        self._take, self._done = take, asyncio.get_running_loop().create_future()
        await self._done

    # What comes out

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's have another ancestor

    def data_received(self, data: bytes) -> None:
        self._received = self._received + data if self._received else data
        try:
            is_done = self._take()
        except RuntimeError as wrong:
            self._done.set_exception(wrong)
            return
        if is_done:
            self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(error or RuntimeError("The connection was closed within a stream."))

    def _take_first(self) -> bool:
        if _HEAD_END in self._received and not self._received.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(self._received.decode())
        return self._has_come(FIRST, _EVENT_END)

    def _take_next(self) -> bool:
        if not self._has_come(EVENT, _EVENT_END):
            return False
        self._left -= 1
        if self._left:
            self._upstream.write(_NEXT)
        return not self._left

    def _take_last(self) -> bool:
        return self._has_come(LAST, _LAST_CHUNK)

    def _has_come(self, expected: bytes, end: bytes) -> bool:
        """Tell whether all is there; the pieces of what is between may be cut differently. Raises RuntimeError."""
        if not self._received.endswith(end):
            return False
        if expected not in self._received and expected not in _joined(self._received):
            raise RuntimeError(f"{expected!r} was sent, and {self._received!r} came out.")
        self._received = b""
        return True


def _joined(chunks: bytes) -> bytes:
    """Return chunks without their heads."""
    return re.sub(rb"(?:\A|\r\n)[0-9a-f]+\r\n", b"", chunks)


async def connected(ends: BothEnds, address: str, count: int, *, temperature: float) -> Sequence[Stream]:
    """Open so many clients' connections."""
    streams = [Stream(ends, address, temperature=temperature) for _ in range(count)]
    await asyncio.gather(*(stream.connect() for stream in streams))
    return streams
