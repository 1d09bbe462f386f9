"""Comments of our own on streams in which nothing comes, so that nobody between client and gateway gives them up.

Stands before any writer and adds bytes at event boundaries alone (SPEC §7). Knows the grammar's ends of events and the
clock; not what an event says, nor why none comes.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog

from proxy.errors import ClientLeft
from proxy.relay import is_stream
from proxy.wire.sse import BOM, ends_event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxy.exchange import Headers, Writer

_COMMENT: Final = b": keep-alive\n\n"
_TAIL_BYTES: Final = 4
_NEVER: Final = float("inf")

_log = structlog.get_logger(__name__)


@contextmanager
def kept_alive(writer: Writer, seconds: float | None) -> Iterator[Writer]:
    """Return a writer that writes a comment each time a stream was silent for so long; None: the writer as it is.

    The stream begins with its head: before that nothing is written. After the block nothing is, either.
    """
    if seconds is None:
        yield writer
        return
    stream = _KeptAlive(writer, seconds)
    try:
        yield stream
    finally:
        stream.end()


class _KeptAlive:
    """Passes everything on, and looks at the clock as often as a comment might be due: once in a while, not at writes.

    `_quiet_since` is when the last write ended; never while one is under way, so that no comment gets into it.
    """

    __slots__ = (
        "_beat",
        "_has_begun",
        "_has_comment",
        "_loop",
        "_quiet_since",
        "_seconds",
        "_tail",
        "_timer",
        "_writer",
    )

    def __init__(self, writer: Writer, seconds: float) -> None:
        self._writer = writer
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._beat: asyncio.Task[None] | None = None
        self._quiet_since = _NEVER
        self._tail = b""
        self._has_begun = False
        self._has_comment = False

    @property
    def is_started(self) -> bool:
        """Whether the head has left."""
        return self._writer.is_started

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head; from now on a stream is looked after."""
        await self._writer.start(status, headers)
        if is_stream(headers):
            self._quiet_since = self._loop.time()
            self._timer = self._loop.call_later(self._seconds, self._look)

    async def write(self, data: bytes) -> None:
        """Send bytes of the body."""
        if not self._has_begun:
            data = self._begin(data)
        self._tail = data[-_TAIL_BYTES:] if len(data) >= _TAIL_BYTES else (self._tail + data)[-_TAIL_BYTES:]
        self._quiet_since = _NEVER
        await self._writer.write(data)
        self._quiet_since = self._loop.time()

    async def finish(self) -> None:
        """End the body."""
        self.rest()
        await self._writer.finish()

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer."""
        await self._writer.respond(status, headers, body)

    def abort(self) -> None:
        """Break the connection."""
        self.rest()
        self._writer.abort()

    def rest(self) -> None:
        """Write no comment from now on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """Write no comment from now on, and wait for none that is on its way."""
        self.rest()
        if self._beat is not None:
            self._beat.cancel()

    def _begin(self, data: bytes) -> bytes:
        """Return the stream's first bytes; a mark of the byte order behind a comment would be part of a name."""
        self._has_begun = True
        return data.removeprefix(BOM) if self._has_comment else data

    def _look(self) -> None:
        left = self._seconds
        quiet = self._loop.time() - self._quiet_since
        if quiet < left:
            left -= max(quiet, 0.0)
        else:
            self._beat = self._loop.create_task(self._write_comment())
        self._timer = self._loop.call_later(left, self._look)

    async def _write_comment(self) -> None:
        is_over, is_writing = self._timer is None, self._quiet_since == _NEVER  # since this task was made
        if is_over or is_writing or (self._tail and not ends_event(self._tail)):
            return
        self._quiet_since, self._has_comment = _NEVER, True
        try:
            await self._writer.write(_COMMENT)
            self._quiet_since = self._loop.time()
        except ClientLeft:  # whoever serves the connection ends its request, whatever that waits for
            return
        except Exception:  # noqa: BLE001  the outermost frame of a task
            _log.exception("a stream is kept alive no longer")
            self.rest()
