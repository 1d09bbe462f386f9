"""What could not be told to the store yet: on local disk, in order, kept over a crash, delivered when it is back.

Every worker writes files of its own, locked while it lives; files that a dead worker left are adopted by whoever
delivers next. A file holds one record a line, led by `-`; a `+` instead says that this record and all before it were
delivered. Delivery after a crash may repeat the few records that were under way, so that receivers have to be
idempotent: settlement is by request id, everything else can be by the record's id. This file does not know what a
record is for.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import structlog

from proxy.store.connection import CommandRefused

if TYPE_CHECKING:
    from pathlib import Path

SPOOL_FOLDER_NAME = "spool"
"""The folder in `data_dir` that all workers keep their files in."""

BATCH_RECORDS = 64
"""Most records that are told in one go."""

_WAITING = b"-"
_DELIVERED = b"+"
_SUFFIX = ".spool"
_NEW_SUFFIX = ".new"
_SET_ASIDE = "refused.jsonl"
_READ_BYTES = 131_072
_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700

_log = structlog.get_logger(__name__)


class SpooledRecord(msgspec.Struct, frozen=True):
    """One thing to tell the store later. `id` is unique, and the same at every delivery of this record."""

    id: str
    kind: str
    payload: str


Tell = Callable[[Sequence[SpooledRecord]], Awaitable[Sequence[BaseException | None]]]
"""Tells records in one go and returns for each None, or why it was not told."""

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(SpooledRecord)


class _SpoolFile:
    """One file, held under its lock; delivered records come before waiting ones."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.waiting = 0
        self._descriptor = descriptor
        self._next = 0
        self._end = 0
        self._learn()

    def _learn(self) -> None:
        """Find out what waits. A torn last line was never acknowledged to anyone and is overwritten."""
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._end += len(line)
                self.waiting += 1
                if line.startswith(_DELIVERED):
                    self._next, self.waiting = self._end, 0

    def append(self, line: bytes) -> None:
        """Write a line at the end. Raises OSError, and has then kept nothing."""
        if os.pwrite(self._descriptor, line, self._end) < len(line):
            raise OSError("the disk took only a part of the record")
        self._end += len(line)
        self.waiting += 1

    def peek(self) -> list[bytes]:
        """Read the first waiting lines; none if nothing waits."""
        span = _READ_BYTES
        while True:
            piece = os.pread(self._descriptor, min(span, self._end - self._next), self._next)
            lines = piece.split(b"\n", BATCH_RECORDS)[:-1]
            if lines or len(piece) < span:
                return [line + b"\n" for line in lines]
            span *= 2

    def mark_delivered(self, lines: Sequence[bytes]) -> None:
        """Go past the first lines that `peek` read."""
        self._next += sum(map(len, lines))
        self.waiting -= len(lines)
        if lines and lines[-1].startswith(_WAITING):
            os.pwrite(self._descriptor, _DELIVERED, self._next - len(lines[-1]))

    def remove(self) -> None:
        """Delete the file; it is empty of waiting records."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Unlock the file; another worker may adopt it."""
        os.close(self._descriptor)


class Spool:
    """The records of one worker, oldest first, with what dead workers left behind.

    What blocks takes microseconds; what dead workers left may be large, and is looked through in a thread.
    """

    def __init__(self, directory: Path, worker: int) -> None:
        """Open the spool in a folder that all workers of a gateway share; it is made if need be."""
        directory.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        self._directory = directory
        self._worker = worker
        self._files = _adopt_files(directory, frozenset())
        self._own: _SpoolFile | None = None
        self._unwritten: list[bytes] = []
        self._adopting: asyncio.Task[list[_SpoolFile]] | None = None
        self._is_delivering = False

    def __len__(self) -> int:
        """How many records wait (the gauge `spool_records`)."""
        return sum(file.waiting for file in self._files) + len(self._unwritten)

    def append(self, kind: str, payload: str) -> SpooledRecord:
        """Keep a record behind all others; it outlives this process as soon as this returns.

        A disk that takes no more is logged, and the record is kept in memory.
        """
        record = SpooledRecord(secrets.token_hex(12), kind, payload)
        line = _WAITING + _encode(record) + b"\n"
        try:
            if self._unwritten:  # a later record must not overtake those
                self._unwritten.append(line)
            else:
                self._own_file().append(line)
        except OSError as error:
            _log.error("spool cannot be written; the record is kept in memory", reason=str(error))
            self._unwritten.append(line)
        return record

    async def deliver(self, tell: Tell) -> int:
        """Tell all waiting records in order and in batches, each once; returns how many were dealt with.

        Ends with the first reason that `tell` gives (StoreUnavailable); that record and the later ones wait for the
        next call, and those of its batch that were told are told again. One that is refused for good (CommandRefused)
        or that cannot be read is set aside in `refused.jsonl`. A call while another one is under way returns 0.
        """
        if self._is_delivering:
            return 0
        self._is_delivering = True
        try:
            await self._adopt()
            told = 0
            while self._files:
                told += await self._deliver_file(self._files[0], tell)
            return told + await self._deliver_unwritten(tell)
        finally:
            self._is_delivering = False

    def close(self) -> None:
        """Let go of the files; what waits in them is adopted by the next worker. What no disk takes is lost now."""
        try:
            while self._unwritten:
                self._own_file().append(self._unwritten[0])
                del self._unwritten[0]
        except OSError as error:
            lost = len(self._unwritten)
            _log.error("records are lost: neither the store nor the disk took them", records=lost, reason=str(error))
        for file in self._files:
            file.close()
        self._files.clear()
        self._own = None

    async def _deliver_file(self, file: _SpoolFile, tell: Tell) -> int:
        told = 0
        while lines := file.peek():
            done, failure = await self._tell(lines, tell)
            file.mark_delivered(lines[:done])
            told += done
            if failure is not None:
                raise failure
        self._files.remove(file)
        if file is self._own:
            self._own = None
        file.remove()
        return told

    async def _deliver_unwritten(self, tell: Tell) -> int:
        told = 0
        while lines := self._unwritten[:BATCH_RECORDS]:
            done, failure = await self._tell(lines, tell)
            del self._unwritten[:done]
            told += done
            if failure is not None:
                raise failure
        return told

    async def _tell(self, lines: Sequence[bytes], tell: Tell) -> tuple[int, BaseException | None]:
        """Tell records in one go; how many from the first on are dealt with, and why the next one is not."""
        records = [_read(line) for line in lines]
        failures = iter(await tell([record for record in records if isinstance(record, SpooledRecord)]))
        for done, (line, record) in enumerate(zip(lines, records, strict=True)):
            failure = next(failures) if isinstance(record, SpooledRecord) else record
            if isinstance(failure, CommandRefused):
                self._set_aside(line, failure)
            elif failure is not None:
                return done, failure
        return len(lines), None

    def _set_aside(self, line: bytes, refusal: CommandRefused) -> None:
        _log.error("a spooled record was refused and is set aside", file=_SET_ASIDE, reason=refusal.message)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with os.fdopen(os.open(self._directory / _SET_ASIDE, flags, _PRIVATE_FILE), "ab") as aside:
            aside.write(line.removeprefix(_WAITING))

    def _own_file(self) -> _SpoolFile:
        """Return the file that is written to; a new one gets the name by which it can be adopted once it is locked."""
        if self._own is None:
            path = self._directory / f"{time.time_ns():020d}-{self._worker}{_SUFFIX}"
            new = path.with_suffix(_NEW_SUFFIX)
            descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE_FILE)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            new.rename(path)
            self._own = _SpoolFile(path, descriptor)
            self._files.append(self._own)
        return self._own

    async def _adopt(self) -> None:
        """Take over what no living worker holds; it is older than our own. Who is cancelled leaves it to the next."""
        if self._adopting is None:
            held = frozenset(file.path for file in self._files)
            self._adopting = asyncio.create_task(asyncio.to_thread(_adopt_files, self._directory, held))
        await asyncio.wait([self._adopting])
        adopting, self._adopting = self._adopting, None
        self._files = sorted([*self._files, *adopting.result()], key=lambda file: file.path.name)


def _read(line: bytes) -> SpooledRecord | CommandRefused:
    try:
        return _decoder.decode(line.removeprefix(_WAITING))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return CommandRefused(f"It cannot be read: {error}")


def _adopt_files(directory: Path, held: frozenset[Path]) -> list[_SpoolFile]:
    """Lock and look through the files that no living worker holds, oldest first."""
    paths = sorted(path for path in directory.glob(f"*{_SUFFIX}") if path not in held)
    return [file for file in map(_adopt_file, paths) if file is not None]


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
