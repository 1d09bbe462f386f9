"""Many keep-alive connections that ask at once, and an upstream that answers with what it was sent.

The upstream's answer carries the request as it arrived, so that a client knows what its own request became however many
are under way. Knows HTTP's framing and nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fake_upstream import DONE, ev, json_reply, sse_reply, usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence

    from fake_upstream import Ops, Req

ANSWER_SECONDS = 30.0
"""Longest wait for an answer; none is this slow."""
_ECHO = "received"


# ---------------------------------------------------------------- the upstream
class Echo:
    """Answers as each endpoint does, and adds what it was sent. `count` is how many requests there were."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, req: Req) -> Ops:
        self.count += 1
        echo = {_ECHO: {"path": req.path, "body": base64.b64encode(req.body).decode()}}
        try:
            asked = json.loads(req.body)
        except ValueError:
            asked = {}
        is_streamed = isinstance(asked, dict) and asked.get("stream") is True
        if req.path.endswith("/embeddings"):
            return json_reply({"object": "list", "model": "m", "data": [], "usage": usage(1, 1), **echo})
        make = _RESPONSES if req.path.endswith("/responses") else _CHOICES
        return make[is_streamed]("chat/" in req.path, echo)


def _choices(is_chat: bool, echo: Mapping[str, Any]) -> Ops:  # noqa: FBT001  a column of the table below
    said = {"message": {"role": "assistant", "content": "x"}} if is_chat else {"text": "x", "logprobs": None}
    kind = "chat.completion" if is_chat else "text_completion"
    choice = {"index": 0, "finish_reason": "stop", **said}
    return json_reply(
        {"id": "c", "object": kind, "created": 1, "model": "m", "choices": [choice], "usage": usage(8), **echo}
    )


def _streamed_choices(is_chat: bool, echo: Mapping[str, Any]) -> Ops:  # noqa: FBT001  likewise
    said = {"delta": {"content": "x"}} if is_chat else {"text": "x", "logprobs": None}
    choice = {"index": 0, "finish_reason": "stop", **said}
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    return sse_reply(
        [ev({"id": "c", "object": kind, "created": 1, "model": "m", "choices": [choice], **echo}) + DONE], gap=0
    )


def _response(echo: Mapping[str, Any]) -> dict[str, Any]:
    content = [{"type": "output_text", "text": "x", "annotations": []}]
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "m",
        "output": [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}],
        "usage": {"input_tokens": 7, "output_tokens": 1, "total_tokens": 8},
        **echo,
    }


def _streamed_response(echo: Mapping[str, Any]) -> Ops:
    event = {"type": "response.completed", "sequence_number": 0, "response": _response({}), **echo}
    return sse_reply([b"event: response.completed\n" + ev(event)], gap=0)


_CHOICES = (_choices, _streamed_choices)
_RESPONSES = (lambda _, echo: json_reply(_response(echo)), lambda _, echo: _streamed_response(echo))


def echo_in(body: bytes) -> tuple[str | None, bytes]:
    """Return path and body that the upstream was sent, as its answer tells; None for an answer that is not its own."""
    text = body[body.find(b"{") : body.find(b"\n\ndata: [DONE]")] if body.startswith((b"data:", b"event:")) else body
    try:
        echo = json.loads(text).get(_ECHO)
    except (ValueError, AttributeError):
        return None, b""
    return (echo["path"], base64.b64decode(echo["body"])) if echo else (None, b"")


# ---------------------------------------------------------------- the clients
@dataclass(frozen=True)
class Answer:
    """One answer, without its framing. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def request_bytes(path: str, headers: Iterable[tuple[str, str]], body: bytes, *, chunks: Sequence[int] = ()) -> bytes:
    """Return a POST as it goes over the wire; with `chunks` (sizes, used in turn) it is sent in those."""
    framing = "Transfer-Encoding: chunked" if chunks else f"Content-Length: {len(body)}"
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers), framing]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (_chunked(body, chunks) if chunks else body)


def _chunked(body: bytes, sizes: Sequence[int]) -> bytes:
    pieces, at, turn = [], 0, 0
    while at < len(body):
        piece = body[at : at + sizes[turn % len(sizes)]]
        pieces.append(b"%x\r\n%s\r\n" % (len(piece), piece))
        at, turn = at + len(piece), turn + 1
    return b"".join([*pieces, b"0\r\n\r\n"])


@dataclass
class Connection:
    """One client's connection, opened when it is needed and again when it was closed."""

    base_url: str
    opened: int = 0
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = field(default=None, repr=False)

    @property
    def is_open(self) -> bool:
        """Tell whether the next request goes over a connection that was used before."""
        return self._streams is not None

    async def ask(self, *requests: bytes) -> list[Answer]:
        """Send requests at once, pipelined when there are several, and return the answers in order.

        Fewer than asked when the gateway closed the connection in between. Raises TimeoutError.
        """
        async with asyncio.timeout(ANSWER_SECONDS):
            if self._streams is None:
                where = urlsplit(self.base_url)
                self._streams = await asyncio.open_connection(where.hostname, where.port, limit=2**26)
                self.opened += 1
            reader, writer = self._streams
            answers: list[Answer] = []
            try:
                writer.write(b"".join(requests))
                while len(answers) < len(requests):
                    answers.append(await _read_answer(reader))
                    if answers[-1].headers.get("connection", "").lower() == "close":
                        self.close()
                        break
            except (OSError, asyncio.IncompleteReadError):
                self.close()
            return answers

    def close(self) -> None:
        """Close it; the next request opens another."""
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


async def _read_answer(reader: asyncio.StreamReader) -> Answer:
    status, headers = await read_head(reader)
    return Answer(status, headers, b"".join([piece async for piece in read_pieces(reader, headers)]))


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Read status and headers of an answer, past those that are interim."""
    while True:
        head, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        status = int(head.split(" ")[1])
        if status >= 200:
            return status, {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def read_pieces(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """Read the body behind such a head as it comes, without its framing; raises IncompleteReadError where it is cut."""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        async for piece in _chunks(reader):
            yield piece
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        yield await reader.read()


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        piece = await reader.readexactly(size + 2)
        if size == 0:
            return
        yield piece[:-2]


async def ask_all(
    base_url: str, items: Iterable[Any], ask: Callable[[Connection, Any], Awaitable[None]], *, connections: int
) -> int:
    """Take items in order and `ask` each, on so many connections at once; return how many connections were opened."""
    left = iter(items)

    async def work(connection: Connection) -> None:
        for item in left:
            await ask(connection, item)

    opened = [Connection(base_url) for _ in range(connections)]
    try:
        async with asyncio.TaskGroup() as clients:
            for connection in opened:
                clients.create_task(work(connection))
    finally:
        for connection in opened:
            connection.close()
    return sum(connection.opened for connection in opened)
