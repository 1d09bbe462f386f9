"""What the supervisor and one worker say to each other, and the socket pair they say it through.

Messages are length-prefixed MessagePack. Either side that dies closes its end, which the other reads as the end of
the conversation. This file does not know what follows from a message.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from proxy.metrics import Snapshot  # noqa: TC001  msgspec reads the annotations at run time

if TYPE_CHECKING:
    import socket

_LENGTH_BYTES = 4


class Begin(msgspec.Struct, frozen=True, tag=True):
    """To the worker, first: its number, the resolved configuration (JSON) and the addresses of the stores."""

    worker: int
    configuration: bytes
    state_url: str
    cache_url: str


class Drain(msgspec.Struct, frozen=True, tag=True):
    """To the worker: accept nothing more, finish what is under way, end."""


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """To the worker: get ready to serve by another resolved configuration (JSON), and tell whether you can."""

    turn: int
    configuration: bytes


class Switch(msgspec.Struct, frozen=True, tag=True):
    """To the worker: serve by what was prepared last, and tell that you do."""

    turn: int


class Count(msgspec.Struct, frozen=True, tag=True):
    """To the worker: tell now what you have counted, and repeat `turn` so that the answer is known as one."""

    turn: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """To the supervisor, once: the worker serves."""


class Counted(msgspec.Struct, frozen=True, tag=True):
    """To the supervisor, when asked, and every second with turn 0: all that the worker has counted since it began."""

    snapshot: Snapshot
    turn: int = 0


class Done(msgspec.Struct, frozen=True, tag=True):
    """To the supervisor: what it asked for in `turn` is done, or, with a fault, it is not, and nothing has changed."""

    turn: int
    fault: str | None = None


Message = Begin | Drain | Prepare | Switch | Count | Ready | Counted | Done

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Message)


class Channel:
    """One end of the conversation."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take both directions of a connected stream socket."""
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> Channel:
        """Take over a connected stream socket."""
        return cls(*await asyncio.open_unix_connection(sock=sock))

    async def send(self, message: Message) -> None:
        """Send one message; into a conversation that has ended it goes nowhere."""
        body = _ENCODER.encode(message)
        if self._writer.is_closing():
            return
        self._writer.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
        try:
            await self._writer.drain()
        except ConnectionError:
            self._writer.close()

    async def receive(self) -> Message | None:
        """Return the next message, or None once the other side has ended or died.

        Raises msgspec.DecodeError for bytes that are no message; what follows them cannot be understood either.
        """
        try:
            length = await self._reader.readexactly(_LENGTH_BYTES)
            return _DECODER.decode(await self._reader.readexactly(int.from_bytes(length, "big")))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def close(self) -> None:
        """End the conversation."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return
