"""What could not be told to the store yet: on local disk, in order, kept over a crash, delivered when it is back.

Every worker writes files of its own, locked while it lives; files that a dead worker left are adopted by whoever
delivers next. A file holds one record a line, led by `-` while it waits and `+` once it was delivered. Delivery after
a crash may repeat the one record that was under way, so that receivers have to be idempotent: settlement is by request
id, everything else can be by the record's id. This file does not know what a record is for.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import structlog

from proxy.store.connection import CommandRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

_WAITING = b"-"
_DELIVERED = b"+"
_SUFFIX = ".spool"
_SET_ASIDE = "refused.jsonl"
_LINE_BYTES = 8_192
_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700

_log = structlog.get_logger(__name__)


class SpooledRecord(msgspec.Struct, frozen=True):
    """One thing to tell the store later. `id` is unique, and the same at every delivery of this record."""

    id: str
    kind: str
    payload: str


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(SpooledRecord)


class _SpoolFile:
    """One file, held under its lock; delivered records come before waiting ones."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.waiting = 0
        self._descriptor = descriptor
        self._next = 0
        self._line_bytes = 0
        self._end = 0
        self._learn()

    def _learn(self) -> None:
        """Find out what waits. A torn last line was never acknowledged to anyone and is overwritten."""
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._end += len(line)
                if line.startswith(_DELIVERED):
                    self._next = self._end
                else:
                    self.waiting += 1

    def append(self, record: SpooledRecord) -> None:
        """Write a record at the end. Raises OSError, and has then kept nothing."""
        line = _WAITING + _encode(record) + b"\n"
        if os.pwrite(self._descriptor, line, self._end) < len(line):
            raise OSError("the disk took only a part of the record")
        self._end += len(line)
        self.waiting += 1

    def peek(self) -> SpooledRecord | None:
        """Read the first waiting record; None if nothing waits."""
        if not self.waiting:
            return None
        span = _LINE_BYTES
        while b"\n" not in (piece := os.pread(self._descriptor, span, self._next)):
            span *= 2
        line = piece[: piece.index(b"\n")]
        self._line_bytes = len(line) + 1
        return _decoder.decode(line[1:])

    def mark_delivered(self) -> None:
        """Go past the record that `peek` read."""
        os.pwrite(self._descriptor, _DELIVERED, self._next)
        self._next += self._line_bytes
        self.waiting -= 1

    def remove(self) -> None:
        """Delete the file; it is empty of waiting records."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Unlock the file; another worker may adopt it."""
        os.close(self._descriptor)


class Spool:
    """The records of one worker, oldest first, with what dead workers left behind. Blocking calls of microseconds."""

    def __init__(self, directory: Path, worker: int) -> None:
        """Open the spool in a folder that all workers of a gateway share; it is made if need be."""
        directory.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        self._directory = directory
        self._worker = worker
        self._files: list[_SpoolFile] = []
        self._own: _SpoolFile | None = None
        self._unwritten: list[SpooledRecord] = []
        self._is_delivering = False
        self._adopt()

    def __len__(self) -> int:
        """How many records wait (the gauge `spool_records`)."""
        return sum(file.waiting for file in self._files) + len(self._unwritten)

    def append(self, kind: str, payload: str) -> SpooledRecord:
        """Keep a record behind all others; it outlives this process as soon as this returns.

        A disk that takes no more is logged, and the record is kept in memory.
        """
        record = SpooledRecord(secrets.token_hex(12), kind, payload)
        try:
            if self._unwritten:  # a later record must not overtake those
                self._unwritten.append(record)
            else:
                self._own_file().append(record)
        except OSError as error:
            _log.error("spool cannot be written; the record is kept in memory", reason=str(error))
            self._unwritten.append(record)
        return record

    async def deliver(self, tell: Callable[[SpooledRecord], Awaitable[None]]) -> int:
        """Tell all waiting records in order, each once; returns how many were told.

        Ends with the StoreUnavailable that `tell` raises; that record and the later ones wait for the next call. One
        that is refused for good (CommandRefused) is set aside in `refused.jsonl`. A call while another one is under
        way returns 0.
        """
        if self._is_delivering:
            return 0
        self._is_delivering = True
        try:
            self._adopt()
            told = 0
            while self._files:
                told += await self._deliver_file(self._files[0], tell)
            while self._unwritten:
                await self._tell_one(self._unwritten[0], tell)
                self._unwritten.pop(0)
                told += 1
            return told
        finally:
            self._is_delivering = False

    def close(self) -> None:
        """Let go of the files; what waits in them is adopted by the next worker."""
        for file in self._files:
            file.close()
        self._files.clear()
        self._own = None

    async def _deliver_file(self, file: _SpoolFile, tell: Callable[[SpooledRecord], Awaitable[None]]) -> int:
        told = 0
        while (record := file.peek()) is not None:
            await self._tell_one(record, tell)
            file.mark_delivered()
            told += 1
        self._files.remove(file)
        if file is self._own:
            self._own = None
        file.remove()
        return told

    async def _tell_one(self, record: SpooledRecord, tell: Callable[[SpooledRecord], Awaitable[None]]) -> None:
        try:
            await tell(record)
        except CommandRefused as error:
            _log.error("spooled record was refused and is set aside", kind=record.kind, reason=error.message)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            with os.fdopen(os.open(self._directory / _SET_ASIDE, flags, _PRIVATE_FILE), "ab") as aside:
                aside.write(_encode(record) + b"\n")

    def _own_file(self) -> _SpoolFile:
        if self._own is None:
            path = self._directory / f"{time.time_ns():020d}-{self._worker}{_SUFFIX}"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE_FILE)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._own = _SpoolFile(path, descriptor)
            self._files.append(self._own)
        return self._own

    def _adopt(self) -> None:
        """Take over the files that no living worker holds; they are older than our own."""
        held = {file.path for file in self._files}
        for path in sorted(self._directory.glob(f"*{_SUFFIX}")):
            if path not in held and (file := _adopt_file(path)) is not None:
                self._files.append(file)
        self._files.sort(key=lambda file: file.path.name)


def _adopt_file(path: Path) -> _SpoolFile | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:  # else its owner has just delivered and removed it
            return _SpoolFile(path, descriptor)
    os.close(descriptor)
    return None
