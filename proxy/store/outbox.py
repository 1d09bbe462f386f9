"""From the outbox to the file: every usage record once, in order, on disk before it leaves the store.

One drainer of all that share a store is elected by a lease. It reads a batch, appends it to its file, has the disk
confirm it, and then removes exactly these records from the outbox. Knows the outbox's entries (one field, `record`, a
JSON object) and lines; it does not know what a record says.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import structlog

from proxy.errors import StoreUnavailable
from proxy.store.dataset import begin
from proxy.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from proxy.store.connection import Reply, Store
    from proxy.store.keys import Keys

RECORD_FIELD = "record"
"""The one field of an outbox entry."""

BATCH_RECORDS = 512
PAUSE_SECONDS = 0.25
LEASE_MILLISECONDS = 5_000
"""A drainer that could not give its lease back, as the store was away, keeps its successor waiting for so long."""

RENEWAL_SECONDS = 1.5
"""How often the lease is held anew while the disk takes its time."""
PATIENCE_SECONDS = 5.0
"""Bound for one command of the drainer, which nobody waits for."""

FINAL_SECONDS = 10.0
"""How long the last draining may take at the end of the process; what is left waits in the store."""

REMEMBERED_LINES = 8 * BATCH_RECORDS
"""So many of the file's last lines are known, and not written again when the store hands them out once more."""

_TAIL_BYTES = 1 << 20
_PRIVATE_FILE = 0o600

_HOLD_LEASE = Script("hold_lease")
_DROP_LEASE = Script("drop_lease")

_log = structlog.get_logger(__name__)


class UsageFile:
    """The file of usage records: one JSON object a line, only whole lines, none twice.

    Blocking; opened anew for each batch, so that it may be moved away at any time.
    """

    def __init__(self, path: Path) -> None:
        """Name the file; it is made with the first batch."""
        self.path = path
        self._is_mended = False
        self._written: deque[int] = deque(maxlen=REMEMBERED_LINES)

    def append(self, lines: Sequence[bytes]) -> None:
        """Write the lines that are not among the last ones already, and have the disk confirm them.

        Each ends in a newline. Raises OSError, after which the file may end in a torn line; the next call cuts it.
        """
        is_new = not self.path.exists()
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _PRIVATE_FILE)
        with os.fdopen(descriptor, "ab") as file:
            self._mend(descriptor)
            known = set(self._written)
            fresh = [line for line in lines if hash(line) not in known]
            self._is_mended = False
            file.write(b"".join(fresh))
            file.flush()
            os.fsync(descriptor)
        if is_new:
            _confirm_folder(self.path.parent)
        self._written.extend(hash(line) for line in fresh)
        self._is_mended = True

    def _mend(self, descriptor: int) -> None:
        """Cut a torn last line, and learn the last whole ones: after a crash they may still be in the outbox."""
        if self._is_mended:
            return
        tail = _read_tail(descriptor, REMEMBERED_LINES)
        whole = tail[: tail.rfind(b"\n") + 1]
        if torn := len(tail) - len(whole):
            _log.warning("usage file ended in a torn line, which is cut", path=str(self.path), torn_bytes=torn)
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - torn)
        self._written.clear()
        self._written.extend(hash(line + b"\n") for line in whole.split(b"\n")[:-1])


class Drainer:
    """Moves the outbox into a file while it is open: `async with Drainer(…)`; drains once more at its end."""

    def __init__(self, store: Store, path: Path, keys: Keys) -> None:
        """Take a started store, the file's path, and the organization whose outbox is drained."""
        self._store = store
        self._file = UsageFile(path)
        self._keys = keys
        self._owner = secrets.token_hex(8)
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._trouble: str | None = None

    async def __aenter__(self) -> Self:
        """Begin to drain in the background."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="outbox drainer")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drain what is left, within FINAL_SECONDS, and let another drainer take over. Raises nothing of its own."""
        self._stopping.set()
        if self._task is not None:
            await self._task

    async def drain(self) -> int:
        """Move one batch, oldest first; how many records left the outbox, 0 also while another drainer is elected.

        Raises StoreUnavailable or OSError; the batch is then still in the outbox, and no record is written twice.
        """
        reading = self._store.send(
            "XRANGE", self._keys.outbox, "-", "+", "COUNT", BATCH_RECORDS, timeout_seconds=PATIENCE_SECONDS
        )
        is_elected, entries = await asyncio.gather(self._hold_lease(), reading)
        if not is_elected or not entries:
            return 0
        await self._write([line_of(entry) for entry in entries])
        await begin(self._store, self._keys)  # the oldest record tells since when the store has its data
        await self._store.command(
            "XDEL", self._keys.outbox, *(entry[0] for entry in entries), timeout_seconds=PATIENCE_SECONDS
        )
        return len(entries)

    def _hold_lease(self) -> asyncio.Future[Reply]:
        return self._store.send_script(
            _HOLD_LEASE, [self._keys.drainer], [self._owner, LEASE_MILLISECONDS], timeout_seconds=PATIENCE_SECONDS
        )

    async def _write(self, lines: Sequence[bytes]) -> None:
        """Append to the file, and stay elected however long the disk takes. Raises OSError."""
        writing = asyncio.create_task(asyncio.to_thread(self._file.append, lines))
        while not (await asyncio.wait([writing], timeout=RENEWAL_SECONDS))[0]:
            with suppress(StoreUnavailable):
                await self._hold_lease()
        writing.result()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            if await self._try_to_drain() < BATCH_RECORDS:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), PAUSE_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(FINAL_SECONDS):
                while await self._try_to_drain():
                    pass
        with suppress(StoreUnavailable):
            await self._store.run(_DROP_LEASE, [self._keys.drainer], [self._owner])

    async def _try_to_drain(self) -> int:
        """Drain, and tell trouble once until it has passed."""
        try:
            drained = await self.drain()
        except (StoreUnavailable, OSError) as error:
            if self._trouble != str(error):
                self._trouble = str(error)
                _log.error("usage records wait in the outbox", reason=self._trouble)
            return 0
        if self._trouble is not None:
            self._trouble = None
            _log.info("usage records are drained again")
        return drained


def line_of(entry: Reply) -> bytes:
    """Make the file's line of an outbox entry `[id, [field, value, …]]`: the record, led by its `outbox_id`.

    An entry that holds no JSON object is kept in `unreadable`, as text: nothing is lost, nothing breaks the file.
    """
    identifier: bytes = entry[0]
    pairs: list[bytes] = entry[1]
    fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
    record = fields.get(RECORD_FIELD.encode(), b"").strip().replace(b"\n", b" ")
    head = b'{"outbox_id":"' + identifier + b'"'
    if record.startswith(b"{") and record.endswith(b"}"):
        members = record[1:].lstrip()
        return head + (b"" if members == b"}" else b",") + members + b"\n"
    text = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()}
    return head + b',"unreadable":' + json.dumps(text).encode() + b"}\n"


def _read_tail(descriptor: int, lines: int) -> bytes:
    """Read whole lines from the end, at least so many if there are, plus what follows the last newline."""
    size = os.fstat(descriptor).st_size
    span = _TAIL_BYTES
    while True:
        start = max(0, size - span)
        tail = os.pread(descriptor, size - start, start)
        if start == 0:
            return tail
        if tail.count(b"\n") > lines:
            return tail[tail.index(b"\n") + 1 :]
        span *= 2


def _confirm_folder(folder: Path) -> None:
    """Have the disk confirm that a new file is in its folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
