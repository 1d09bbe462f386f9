"""Counts that are rebuilt from usage records when the state store has come up without its data (SPEC §5, §10).

What was booked before the store had the data that it has now is read from this gateway's usage file and added to the
limits that count it today. What was booked since then is counted in these data already, and what waits in a spool is
booked by its settlement. A store that kept its data, or all but its last writes, is left as it is. Every gateway of a
store adds what its own file holds, once. Requests go on meanwhile.

What a file says is known by `recount`, how counts are added to by the store's script.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from proxy.errors import StoreUnavailable
from proxy.records import USAGE_FILE_NAME
from proxy.recount import recount
from proxy.store.dataset import add, begin
from proxy.store.keys import Keys
from proxy.store.reservations import LEASES_PER_LIFE, Reservations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from proxy.config import Configuration
    from proxy.metrics import Metrics
    from proxy.recount import Recounted
    from proxy.store.connection import Store
    from proxy.store.dataset import DataSet

PAUSE_SECONDS: Final = 0.5
"""How often the store is asked since when it has its data."""
RETRY_SECONDS: Final = 5.0
"""Pause after a rebuild that failed: it reads its file anew."""
BATCH_LIMITS: Final = 64
"""Most limits that one call adds to."""
_CONTRIBUTOR_FILE_NAME: Final = "usage.id"
_SETTLEMENTS_AT_ONCE: Final = 64

_log = structlog.get_logger(__name__)

ItemT = TypeVar("ItemT")


class Rebuild:
    """Adds to a store what this gateway's file of usage records says was counted before the store lost its data.

    By whose limits is what `configuration` says when it begins.
    """

    def __init__(self, state: Store, configuration: Configuration, metrics: Metrics) -> None:
        """Take a started store."""
        self._state = state
        self.configuration = configuration
        self._metrics = metrics
        self._keys = Keys(configuration.organization.id)
        lease_seconds = configuration.lease_seconds
        self._grace = round(lease_seconds * 1000) * LEASES_PER_LIFE
        self._reservations = Reservations(
            state, self._keys, configuration.organization.zone, lease_seconds=lease_seconds
        )
        self._contributor: str | None = None

    async def watch(self) -> None:
        """Rebuild whenever the store has come up without its data; for ever."""
        told = None
        while True:
            pause = PAUSE_SECONDS
            if self._state.is_available:
                try:
                    await self.rebuild()
                    told = None
                except (StoreUnavailable, OSError) as error:
                    pause = RETRY_SECONDS if self._state.is_available else PAUSE_SECONDS
                    if str(error) != told:
                        told = str(error)
                        _log.warning("limits are not yet counted anew from usage records", reason=told)
            await asyncio.sleep(pause)

    async def rebuild(self) -> int:
        """Add what there is to be added to the data that the store has now; from how many records, mostly none.

        May be repeated: what has been added is not added again. Raises StoreUnavailable or OSError, after which a part
        may be added.
        """
        path = self.configuration.data_dir / USAGE_FILE_NAME
        if not path.exists():
            await begin(self._state, self._keys)
            return 0
        if self._contributor is None:
            self._contributor = await asyncio.to_thread(_contributor, path.with_name(_CONTRIBUTOR_FILE_NAME))
        data = await begin(self._state, self._keys, self._contributor)
        if data.is_complete:
            return 0
        began, ending = time.monotonic(), threading.Event()
        try:
            found = await asyncio.to_thread(recount, path, self.configuration, data, ending.is_set)
        finally:
            ending.set()  # else the process could not end before the thread has read everything
        if not (await self._add(found, self._contributor, data) and found.records):
            return 0
        self._metrics.rebuilds_total.inc()
        _log.warning(
            "limits were counted anew from usage records: the state store had come up without its data",
            records=found.records,
            limits=found.limits,
            unreadable_lines=found.unreadable,
            seconds=round(time.monotonic() - began, 3),
        )
        return found.records

    async def _add(self, found: Recounted, contributor: str, data: DataSet) -> bool:
        """Add what was found; False if the store has lost its data once more."""
        for settlements in _batches(found.in_doubt, _SETTLEMENTS_AT_ONCE):
            await asyncio.gather(*map(self._reservations.send_spooled, settlements))
        batches = list(_batches(found.additions, BATCH_LIMITS)) or [()]
        for number, batch in enumerate(batches, 1):
            is_added = await add(
                self._state,
                self._keys,
                batch,
                contributor=contributor,
                since=data.since,
                grace_milliseconds=self._grace,
                is_last=number == len(batches),
            )
            if not is_added:
                return False
        return True


def _batches(items: Sequence[ItemT], size: int) -> Iterator[Sequence[ItemT]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _contributor(path: Path) -> str:
    """Return the id of this gateway's usage file, which is made if need be. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        if name := path.read_text("ascii", "replace").strip():
            return name
    made, name = path.with_suffix(".new"), secrets.token_hex(16)
    made.write_text(name)
    made.replace(path)
    return name
