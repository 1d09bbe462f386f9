"""A whole gateway in this process that answers on a real socket, from a thread of its own, and a client of it.

The client sees each piece of a body as the gateway wrote it, which is what a chunked answer's framing tells.
"""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness import Raw, Resp
from sending import series
from whole import KEY, Whole, whole_gateway

from proxy import app
from proxy.config_values import Address
from proxy.listening import listening, url_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from stores import StoreServer

    from proxy.config import Configuration
    from proxy.metrics import Metrics

_START_SECONDS = 30.0
_STOP_SECONDS = 30.0
_CLIENT_SECONDS = 15.0


@dataclass
class ServedGateway:
    """A gateway under way; records are read from the outbox, from which nobody takes them."""

    base_url: str
    metrics: Metrics
    store: StoreServer
    stop: Callable[[], None]
    is_stopped: threading.Event

    def records(self) -> dict[str, dict[str, Any]]:
        """Return all usage records by request id. A request's is there before the end of its answer."""
        with self.store.client() as client:
            lines = [
                line
                for key in client.scan_iter(match="*:outbox")
                for _, fields in client.xrange(key)
                for line in fields.values()
            ]
        return {record["request_id"]: record for record in map(json.loads, lines)}

    def series(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the counters of one metric by label values."""
        return dict(series(self.metrics, name))

    @contextmanager
    def client(self, timeout: float = _CLIENT_SECONDS) -> Iterator[ChunkClient]:
        """Connect."""
        client = ChunkClient(self.base_url, timeout)
        try:
            yield client
        finally:
            client.close()


class Got(Resp):
    """An answer that is read piece by piece: `pieces` are the gateway's writes, `body` all of them so far."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []


class ChunkClient(Raw):
    """A client over one connection that notes each chunk of its answers."""

    def ask(self, path: str, body: Mapping[str, Any], **fields: str) -> None:
        """Send a request with alice's key; `fields` have underscores for hyphens."""
        named = [(name.replace("_", "-"), value) for name, value in fields.items()]
        own = [("Authorization", f"Bearer {KEY}"), ("Content-Type", "application/json")]
        self.request("POST", path, [*own, *named], json.dumps(body).encode())

    def answer(self, got: Got | None = None) -> Got:
        """Read one answer, into `got` as it comes; what went wrong on the way is its `error`."""
        got = got or Got()
        try:
            self.read_head(got)
            if "chunked" in (got.header("Transfer-Encoding") or ""):
                for piece in self.chunks():
                    got.pieces.append(piece)
                    got.body += piece
                got.complete = True
            else:
                self.read_body(got)
        except (EOFError, OSError, ValueError) as error:
            got.error = error
        return got

    def chunks(self) -> Iterator[bytes]:
        """Read the chunks of a body, of which the head has been read. Raises EOFError, OSError and ValueError."""
        while size := int(self._take_line(), 16):
            yield self._take(size)
            self._take(2)
        self._take(2)

    def _take_line(self) -> bytes:
        while b"\r\n" not in self.buf:
            self.read_more()
        line, _, self.buf = self.buf.partition(b"\r\n")
        return line

    def _take(self, size: int) -> bytes:
        parts, left = [self.buf[:size]], size - len(self.buf)
        self.buf = self.buf[size:]
        while left > 0:
            data = self.s.recv(min(left, 1 << 20))
            if not data:
                raise EOFError
            parts.append(data)
            left -= len(data)
        return b"".join(parts)


@contextmanager
def served_gateway(configuration: Configuration, store: StoreServer) -> Iterator[ServedGateway]:
    """Open a gateway on a thread of its own and serve it on a free port; on the way out it drains."""
    with listening(Address("127.0.0.1", 0), setting="listen", count=1) as [sock]:
        opened: dict[str, Any] = {}
        is_ready, is_stopped = threading.Event(), threading.Event()

        async def run() -> None:
            stopping, loop = asyncio.Event(), asyncio.get_running_loop()
            async with whole_gateway(configuration, store.url) as whole:
                opened["whole"] = whole
                opened["stop"] = lambda: loop.call_soon_threadsafe(stopping.set)
                is_ready.set()
                await app.serve(whole.gateway, sock, stopping)

        def in_thread() -> None:
            try:
                asyncio.run(run())
            finally:
                is_stopped.set()
                is_ready.set()

        thread = threading.Thread(target=in_thread, name="gateway")
        thread.start()
        assert is_ready.wait(_START_SECONDS)
        assert not is_stopped.is_set(), "the gateway did not start"
        whole: Whole = opened["whole"]
        try:
            yield ServedGateway(url_of(sock), whole.metrics, store, opened["stop"], is_stopped)
        finally:
            if not is_stopped.is_set():
                opened["stop"]()
            thread.join(_STOP_SECONDS)
            assert not thread.is_alive()
