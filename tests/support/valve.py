"""A TCP relay on loopback that a test can shut: what lies behind it hangs, or refuses, until it is opened again."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Literal, Self

_READ_BYTES = 65_536
_CLOSE_SECONDS = 5


class Valve:
    """Relays connections to a port within a `with` block; open at first."""

    def __init__(self, port: int) -> None:
        """Say where to."""
        self._target = port
        self._is_open = threading.Event()
        self._is_open.set()
        self._refuses = False
        self._is_over = False
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def __enter__(self) -> Self:
        """Begin to accept."""
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up and wait for the threads."""
        self._is_over = True
        self._is_open.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._hang_up()
        for thread in self._threads:
            thread.join(_CLOSE_SECONDS)
        self._listener.close()

    def shut(self, how: Literal["hangs", "refuses"]) -> None:
        """Let nothing through: bytes wait until it is opened, or connections end and new ones with them."""
        self._is_open.clear()
        self._refuses = how == "refuses"
        if self._refuses:
            self._hang_up()

    def open(self) -> None:
        """Let everything through again, what has been waiting first."""
        self._refuses = False
        self._is_open.set()

    def _hang_up(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _start(self, run: object, *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refuses:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [client, server]
            self._start(self._pump, client, server)
            self._start(self._pump, server, client)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with source, suppress(OSError):
            while data := source.recv(_READ_BYTES):
                self._is_open.wait()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
