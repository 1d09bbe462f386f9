"""Real stores for tests: start one, flush it, freeze it, kill it, bring it back.

Knows processes and sockets; it does not use the gateway's own store client, which it is there to test.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import hiredis
import pytest
import redis

from proxy.store.embedded import find_server_binary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

_READY_SECONDS = 10.0
_PATIENCE_SECONDS = 10.0
_LOOK_SECONDS = 0.005
_READ_BYTES = 1 << 20

OK = b"+OK\r\n"
NIL = b"$-1\r\n"
SILENCE = None
HANG_UP = b"hang up"


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something that has no event of its own is so; TimeoutError if it never is."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110 - processes and foreign servers send us no event
            await asyncio.sleep(_LOOK_SECONDS)


def server_binaries() -> dict[str, Path]:
    """Find the servers that are here, by name: Valkey from its package, Redis if the machine has one."""
    found = {"valkey": find_server_binary()}
    if redis_server := shutil.which("redis-server"):
        found["redis"] = Path(redis_server)
    return found


class StoreServer:
    """One store process of a test, on a Unix socket (or a loopback port) in a folder of its own.

    Keeps an append-only file if `keeps_data`, so that `kill` and `start` bring it back with what it acknowledged.
    """

    def __init__(self, *, binary: Path | None = None, port: int = 0, keeps_data: bool = False) -> None:
        """Say how to run it; `port` 0 means the Unix socket only."""
        self.directory = Path(tempfile.mkdtemp(prefix="tg-", dir="/tmp"))  # short, as socket paths must be
        self._socket = self.directory / "s"
        self._binary = binary or find_server_binary()
        self.port = port
        self._keeps_data = keeps_data
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill and clean up."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def url(self) -> str:
        """Address as the configuration would have it."""
        return f"redis://127.0.0.1:{self.port}/0" if self.port else f"unix://{self._socket}"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start, or start again after `kill`, and wait until it answers."""
        self._socket.unlink(missing_ok=True)
        settings = {
            "port": self.port,
            "bind": "127.0.0.1",
            "unixsocket": self._socket,
            "dir": self.directory,
            "save": "",
            "appendonly": "yes" if self._keeps_data else "no",
            "appendfsync": "no",
            "loglevel": "warning",
        }
        options = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
        self._process = subprocess.Popen([self._binary, *options], stdout=subprocess.DEVNULL)
        self._wait_until_ready()

    def kill(self) -> None:
        """End it at once, as a crash would; also when it is frozen."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stop it in its tracks: connections are accepted by the kernel, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on; it executes what it was sent in between."""
        os.kill(self.pid, signal.SIGCONT)

    def flush(self) -> None:
        """Remove all data and scripts and reset the statistics."""
        with self.client() as client:
            client.flushall()
            client.script_flush()
            client.config_resetstat()

    @contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """Open a plain client, for looking in from the side."""
        client = redis.Redis.from_url(self.url, protocol=2)
        try:
            yield client
        finally:
            client.close()
            client.connection_pool.disconnect()

    def calls(self) -> dict[str, int]:
        """How often each command ran since the last flush, by its lower-case name."""
        with self.client() as client:
            statistics = client.info("commandstats")
        return {name.removeprefix("cmdstat_"): entry["calls"] for name, entry in statistics.items()}

    def _wait_until_ready(self) -> None:
        patience = redis.retry.Retry(redis.backoff.ConstantBackoff(0.01), int(_READY_SECONDS / 0.01))
        client = redis.Redis(unix_socket_path=str(self._socket), protocol=2, retry=patience)
        try:
            client.ping()
        finally:
            client.close()


class ScriptedStore:
    """A server that answers what the test says, for what a real one does too rarely.

    `answer` is asked for each command, as its words, and gives the reply's bytes, SILENCE or HANG_UP. How PING and TIME
    are answered stands in `manners`; they are not among the `commands`.
    """

    def __init__(self, answer: Callable[[list[bytes]], bytes | None]) -> None:
        """Say what is answered."""
        self.answer = answer
        self.manners: dict[bytes, bytes | None] = {
            b"PING": b"+PONG\r\n",
            b"TIME": b"*2\r\n$1\r\n7\r\n$1\r\n0\r\n",
        }
        self.commands: list[list[bytes]] = []
        self.reads: list[int] = []
        self.connections = 0
        self._directory = Path(tempfile.mkdtemp(prefix="tg-", dir="/tmp"))
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Address as the configuration would have it."""
        return f"unix://{self._directory}/s"

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_unix_server(self._serve, f"{self._directory}/s")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hang up and clean up."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)
        await self._server.wait_closed()
        shutil.rmtree(self._directory, ignore_errors=True)

    def say(self, data: bytes) -> None:
        """Send bytes over all connections that are open, asked or not."""
        for writer in self._writers:
            if not writer.is_closing():
                writer.write(data)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        parser = hiredis.Reader()
        while data := await reader.read(_READ_BYTES):
            parser.feed(data)
            before = len(self.commands)
            while (command := parser.gets()) is not False:
                self._handle(command, writer)
            self.reads.append(len(self.commands) - before)
        writer.close()

    def _handle(self, command: list[bytes], writer: asyncio.StreamWriter) -> None:
        if command[0] == b"CLIENT":
            reply: bytes | None = OK
        elif command[0] in self.manners:
            reply = self.manners[command[0]]
        else:
            reply = self.answer(command)
            self.commands.append(command)
        if reply == HANG_UP:
            writer.close()
        elif reply is not SILENCE and not writer.is_closing():
            writer.write(reply)


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[StoreServer]:
    """Run the one server that tests share which only read and write."""
    with StoreServer() as server:
        yield server


@pytest.fixture
def valkey(valkey_server: StoreServer) -> StoreServer:
    """Hand out the shared server, emptied."""
    valkey_server.flush()
    return valkey_server


@pytest.fixture
def own_valkey() -> Iterator[StoreServer]:
    """Run a server of the test's own, to be frozen and killed; it keeps its data."""
    with StoreServer(keeps_data=True) as server:
        yield server


@pytest.fixture
def own_valkey_on_tcp() -> Iterator[StoreServer]:
    """Run a server of the test's own on a loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with StoreServer(port=port) as server:
        yield server


@pytest.fixture(params=sorted(server_binaries()))
def any_store(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    """Run each kind of server that this machine has, empty."""
    with StoreServer(binary=server_binaries()[request.param]) as server:
        yield server
