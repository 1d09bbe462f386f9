"""A forward proxy on loopback, on a thread of its own: tunnels (CONNECT), and requests in absolute form.

Any host name leads to the one port that it was told of, so that names can be used that nobody resolves.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


class ForwardProxy:
    """Notes the first line and the fields of each request; answers with `refusal` instead where that is set."""

    def __init__(self, target_port: int, tls: ssl.SSLContext | None = None) -> None:
        self.target_port = target_port
        self.tls = tls
        self.port = 0
        self.refusal: bytes | None = None
        self.lines: list[str] = []
        self.fields: list[dict[str, str]] = []

    def start(self) -> ForwardProxy:
        """Begin to serve."""
        ready = threading.Event()

        def run() -> None:
            loop = asyncio.new_event_loop()
            server = loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls))
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            loop.run_forever()

        threading.Thread(target=run, daemon=True).start()
        assert ready.wait(5)
        return self

    def forget(self) -> None:
        """Begin anew: nothing noted, nothing refused."""
        self.refusal = None
        self.lines, self.fields = [], []

    @property
    def url(self) -> str:
        """Return its address."""
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            line, fields = await self._read_head(reader)
            if self.refusal is not None:
                writer.write(self.refusal)
                await writer.drain()
                return
            there, back = await asyncio.open_connection("127.0.0.1", self.target_port)
            with contextlib.closing(back):
                if line.startswith("CONNECT "):
                    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    await asyncio.gather(_pump(reader, back), _pump(there, writer))
                else:
                    await asyncio.gather(self._pass_on(line, fields, reader, back), _pump(there, writer))

    async def _read_head(self, reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
        head = await reader.readuntil(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").rstrip().split("\r\n")
        split = (field.partition(":") for field in fields)
        self.lines.append(line)
        self.fields.append({name.lower(): value.strip() for name, _, value in split})
        return line, self.fields[-1]

    async def _pass_on(
        self, line: str, fields: dict[str, str], reader: asyncio.StreamReader, back: asyncio.StreamWriter
    ) -> None:
        """Pass on requests that know their length, as a proxy does: without its address and what is meant for it."""
        while True:
            method, target, version = line.split(" ")
            passed = [f"{name}: {value}" for name, value in fields.items() if not name.startswith("proxy-")]
            head = "\r\n".join([f"{method} /{target.split('/', 3)[3]} {version}", *passed, "", ""])
            back.write(head.encode("latin-1") + await reader.readexactly(int(fields.get("content-length", "0"))))
            line, fields = await self._read_head(reader)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    sink.close()
