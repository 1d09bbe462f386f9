"""A TCP relay on loopback that records the bytes of both directions: what really passed an upstream's socket.

Knows connections and bytes; `read_answers` alone knows HTTP/1.1 framing, through the raw client of `harness`.
"""

from __future__ import annotations

import socket
import threading
from typing import Self
from urllib.parse import urlsplit

from harness import Raw, Resp

_READ_BYTES = 65_536


class Connection:
    """The bytes of one connection, in both directions."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.answered = bytearray()


class RecordingRelay:
    """Relays connections to `target` (an address such as http://127.0.0.1:9000) within a `with` block."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname, parts.port)
        self._path = parts.path
        self.connections: list[Connection] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))

    @property
    def base_url(self) -> str:
        """Address of the relay, with the target's path."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}{self._path}"

    def __enter__(self) -> Self:
        """Begin to accept."""
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        """Close every connection and wait for the threads."""
        self._listener.shutdown(socket.SHUT_RDWR)
        for opened in self._sockets:
            try:
                opened.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self._threads:
            thread.join(5)
        for opened in (self._listener, *self._sockets):
            opened.close()

    def forget(self) -> None:
        """Drop what was recorded; connections that are open go on being recorded."""
        for connection in self.connections:
            connection.sent.clear()
            connection.answered.clear()

    def answers(self) -> list[Resp]:
        """Return all answers that were recorded, framing taken off, in the order of connections."""
        return [answer for connection in list(self.connections) for answer in read_answers(bytes(connection.answered))]

    def _start(self, run: object, *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            for opened in (client, server):
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [client, server]
            connection = Connection()
            self.connections.append(connection)
            self._start(self._pump, client, server, connection.sent)
            self._start(self._pump, server, client, connection.answered)

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket, record: bytearray) -> None:
        try:
            while data := source.recv(_READ_BYTES):
                record += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return


class _Recording(Raw):
    """The raw client's reader over bytes that have already come."""

    def __init__(self, data: bytes) -> None:
        self.buf, self.t0 = data, 0.0

    def read_more(self) -> None:
        raise EOFError


def read_answers(data: bytes) -> list[Resp]:
    """Read a connection's answers one after the other; the last may be unfinished (`complete` is False then)."""
    reader, found = _Recording(data), []
    while reader.buf:
        answer = reader.response()
        if answer.status == 0:
            break
        found.append(answer)
    return found
