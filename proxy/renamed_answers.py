"""Answers in the name that the client asked for: a model whose `response_model` is `asked` (SPEC §8).

Stands before any writer. What is stored, and what several read, keeps its upstream's name: each client gets its own.
Knows neither why an answer comes nor where from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from proxy.relay import is_stream
from proxy.wire.renaming import NameReplacer, StreamRenamer, rename

if TYPE_CHECKING:
    from policies.requests.asked import Endpoint
    from proxy.exchange import Headers, Writer

_ERRORS: Final = 400


class RenamedAnswer:
    """A writer that replaces the model's name; errors stay as they are."""

    __slots__ = ("_endpoint", "_name", "_renamer", "_writer")

    def __init__(self, writer: Writer, name: str, endpoint: Endpoint) -> None:
        """Put `name`, as the client wrote it, into what answers of this endpoint say of their model."""
        self._writer = writer
        self._name = name
        self._endpoint = endpoint
        self._renamer: NameReplacer | StreamRenamer | None = None

    @property
    def is_started(self) -> bool:
        """Whether the head has left."""
        return self._writer.is_started

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head."""
        if status < _ERRORS:
            make = StreamRenamer if is_stream(headers) else NameReplacer
            self._renamer = make(self._name, self._endpoint)
        await self._writer.start(status, headers)

    async def write(self, data: bytes) -> None:
        """Send bytes of the body: of a stream whole events, or parts of one too long to come whole."""
        if self._renamer is not None:
            data = self._renamer.feed(data)
        if data:
            await self._writer.write(data)

    async def finish(self) -> None:
        """End the body."""
        await self._writer.finish()

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer, or a whole stream."""
        if status < _ERRORS:
            if is_stream(headers):
                body = StreamRenamer(self._name, self._endpoint).feed(body)
            else:
                body = rename(body, self._name, self._endpoint)
        await self._writer.respond(status, headers, body)

    def abort(self) -> None:
        """Break the connection."""
        self._writer.abort()
