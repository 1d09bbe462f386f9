"""Very many slow streams at once: an upstream that begins them all before it goes on, and the clients that check them.

    python tests/benchmarks/paced_streams.py upstream '{"streams": 100, "events": 3, "every_seconds": 0.5}'
    python tests/benchmarks/paced_streams.py clients '{"streams": 100, "events": 3, "url": "http://…", "seconds": 60}'

Each role is a process of its own. The upstream prints its port and serves until it is terminated; it answers what is no
stream with a constant. The clients come one after the other, print what became of their streams as one JSON object, and
end. Both sides know what each event of each stream says. Streams have between half of `events` and all of them, besides
the first: so they end one after the other, too.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import uvloop
from gateway import key_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD_END: Final = b"\r\n\r\n"
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
_NUMBER: Final = re.compile(rb'"prompt": ?"(\d+) ')
_STREAM: Final = re.compile(rb'"stream": ?true')
_LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_BACKLOG: Final = 4096
_TICK_SECONDS: Final = 0.02
_NEW_STREAMS_A_TICK: Final = 10
_QUESTION: Final = "word " * 20
_EVENT: Final = (
    b'data: {"id":"cmpl-%d","object":"text_completion","created":1,"model":"m",'
    b'"choices":[{"text":" %d of %d","index":0,"logprobs":null,"finish_reason":%s}]}\n\n'
)
_STREAM_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_WHOLE: Final = json.dumps(
    {
        "id": "cmpl-plain",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [{"text": "word", "index": 0, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 1, "total_tokens": 21},
    }
).encode()
_WHOLE_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
    len(_WHOLE),
    _WHOLE,
)


def _last(stream: int, events: int) -> int:
    """Return the number of a stream's last event, where no stream has more than `events`."""
    return events - stream % (events // 2 + 1)


def _event(stream: int, number: int, last: int) -> bytes:
    """Return one event; the last is followed by the end."""
    event = _EVENT % (stream, number, stream, b'"stop"' if number == last else b"null")
    return event + b"data: [DONE]\n\n" if number == last else event


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


def request(prompt: str, host: str, *, is_stream: bool) -> bytes:
    """Return the bytes of a request."""
    body = json.dumps({"model": "m", "prompt": prompt, "stream": is_stream, "max_tokens": 60}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key_of('alice')}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


# ---------------------------------------------------------------- upstream
class _Begun:
    """Streams that have begun, by number; `all` is set when there are as many as there are to be."""

    def __init__(self, streams: int) -> None:
        self.streams: dict[int, asyncio.WriteTransport] = {}
        self.all = asyncio.Event()
        self._count = streams

    def add(self, number: int, transport: asyncio.WriteTransport) -> None:
        self.streams[number] = transport
        if len(self.streams) == self._count:
            self.all.set()


class _Upstream(asyncio.Protocol):
    """Begins the streams that are asked for."""

    def __init__(self, begun: _Begun, events: int) -> None:
        self._begun = begun
        self._events = events
        self._received = b""
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, is_read, body = self._received.partition(_HEAD_END)
        length = _LENGTH.search(head)
        if not is_read or length is None or len(body) < int(length[1]):
            return
        self._received = b""
        if _STREAM.search(body) is None:
            self._transport.write(_WHOLE_ANSWER)
            return
        found = _NUMBER.search(body)
        assert found is not None
        number = int(found[1])
        self._transport.write(_STREAM_HEAD + _chunk(_event(number, 0, _last(number, self._events))))
        self._begun.add(number, self._transport)


async def _serve(streams: int, events: int, every_seconds: float) -> None:
    begun = _Begun(streams)
    listening = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
    await asyncio.get_running_loop().create_server(lambda: _Upstream(begun, events), sock=listening)
    print(listening.getsockname()[1], flush=True)
    await begun.all.wait()
    a_tick = streams * _TICK_SECONDS / every_seconds
    due, turns = 0.0, _turns(begun.streams, events)
    while True:
        due += a_tick
        while due >= 1:
            due -= 1
            transport, data = next(turns, (None, b""))
            if transport is None:
                await asyncio.Event().wait()
            else:
                transport.write(data)
        await asyncio.sleep(_TICK_SECONDS)


def _turns(streams: dict[int, asyncio.WriteTransport], events: int) -> Iterator[tuple[asyncio.WriteTransport, bytes]]:
    """Hand out what is sent, and where: every stream in its turn gets its next event."""
    for number in range(1, events + 1):
        for stream, transport in streams.items():
            last = _last(stream, events)
            if number <= last:
                yield transport, _chunk(_event(stream, number, last)) + (b"0\r\n\r\n" if number == last else b"")


# ---------------------------------------------------------------- clients
class Came(NamedTuple):
    """What became of the clients' streams; `wrong` shows one that was not as it should be."""

    complete: int
    wrong: str
    most_open: int


class _Clients:
    """All of them, and how many have an answer under way."""

    def __init__(self) -> None:
        self.open = self.most_open = 0


class _Client(asyncio.Protocol):
    """Asks for one stream and keeps what comes."""

    def __init__(self, sent: bytes, clients: _Clients) -> None:
        self.received: list[bytes] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sent = sent
        self._clients = clients
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        self._transport.write(self._sent)

    def data_received(self, data: bytes) -> None:
        if not self.received:
            self._clients.open += 1
            self._clients.most_open = max(self._clients.most_open, self._clients.open)
        self.received.append(data)
        if data.endswith(b"0\r\n\r\n") and b"".join(self.received[-3:]).endswith(_LAST_CHUNK):
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self._clients.open -= bool(self.received)
        self.ended.set_result(None)


async def _ask(streams: int, events: int, url: str, seconds: float) -> Came:
    host = url.removeprefix("http://")
    address, _, port = host.partition(":")
    loop = asyncio.get_running_loop()
    clients, asking = _Clients(), []
    for stream in range(streams):
        sent = request(f"{stream} {_QUESTION}", host, is_stream=True)
        client = _Client(sent, clients)
        await loop.create_connection(lambda client=client: client, address, int(port))  # type: ignore[misc]
        asking.append(client)
        if not (stream + 1) % _NEW_STREAMS_A_TICK:
            await asyncio.sleep(_TICK_SECONDS)
    await asyncio.wait([client.ended for client in asking], timeout=seconds)
    answers = [b"".join(client.received) for client in asking]
    right = [_is_as_sent(answer, stream, events) for stream, answer in enumerate(answers)]
    wrong = next((answer for answer, is_right in zip(answers, right, strict=True) if not is_right), b"")
    return Came(sum(right), wrong.decode(errors="replace"), clients.most_open)


def _is_as_sent(answer: bytes, stream: int, events: int) -> bool:
    last = _last(stream, events)
    expected = b"".join(_event(stream, number, last) for number in range(last + 1))
    head, _, chunks = answer.partition(_HEAD_END)
    return head.startswith(b"HTTP/1.1 200") and chunks.endswith(_LAST_CHUNK) and _body_of(chunks) == expected


def _body_of(chunks: bytes) -> bytes:
    """Return what is in an answer's chunks, as far as they are whole."""
    body, at = bytearray(), 0
    while (begin := chunks.find(b"\r\n", at)) > at:
        size = int(chunks[at:begin], 16)
        body += chunks[begin + 2 : begin + 2 + size]
        at = begin + 2 + size + 2
    return bytes(body)


def main(role: str, settings: str) -> None:
    """Play one role."""
    chosen: dict[str, Any] = json.loads(settings)
    if role == "upstream":
        uvloop.run(_serve(**chosen))
    else:
        print(json.dumps(uvloop.run(_ask(**chosen))._asdict()))


if __name__ == "__main__":
    main(*sys.argv[1:])
