"""What goes on beside the requests: leases are renewed, orphans booked, the spool delivered (SPEC §5, §10).

One owner awaits all of it. It decides nothing about a request; what an orphan costs stands in its hold.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from proxy.errors import StoreUnavailable
from proxy.store.connection import CommandRefused
from proxy.store.reservations import Ending, Settlement, read_end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from proxy.admission import Admission
    from proxy.metrics import Metrics
    from proxy.spool import Spool, SpooledRecord
    from proxy.store.connection import Reply, Store
    from proxy.store.reservations import Orphan, Reservations

ROUNDS_PER_LEASE: Final = 3
"""How often a lease is renewed, and orphans are looked for, while it runs."""
BATCH: Final = 100
"""Most requests that one call renews or finds."""

_SPOOL_KIND: Final = "settlement"
_DELIVERY_SECONDS: Final = 0.5
_ADOPTION_SECONDS: Final = 10.0
_CLOSE_SECONDS: Final = 5.0

_log = structlog.get_logger(__name__)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Settlement).decode


class Upkeep:
    """The background work of one worker's admissions."""

    def __init__(  # noqa: PLR0913  the parts it stands on, by name
        self,
        reservations: Reservations,
        live: Mapping[str, Admission],
        *,
        store: Store,
        spool: Spool,
        metrics: Metrics,
        lease_seconds: float,
    ) -> None:
        """`live` are the admitted requests of this worker, by request id."""
        self._reservations = reservations
        self._live = live
        self._store = store
        self._spool = spool
        self._metrics = metrics
        self._round_seconds = lease_seconds / ROUNDS_PER_LEASE
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin."""
        rows: tuple[tuple[str, Callable[[], Awaitable[None]], float], ...] = (
            ("renew", self.renew, self._round_seconds),
            ("sweep", self._sweep_when_steady, self._round_seconds),
            ("deliver", self._deliver_waiting, _DELIVERY_SECONDS),
            ("adopt", self.deliver, _ADOPTION_SECONDS),
        )
        self._tasks = [asyncio.create_task(self._repeat(*row), name=f"upkeep: {row[0]}") for row in rows]

    async def close(self) -> None:
        """End the loops and deliver the spool once more; what stays is delivered by the next worker. Never fails."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.deliver()
        except (StoreUnavailable, TimeoutError) as error:
            _log.warning("the spool is not empty", records=len(self._spool), reason=str(error) or "no time left")
        except Exception:  # noqa: BLE001  the outermost frame: whoever closes has more to close
            self._note_fault("deliver")

    def keep(self, settlement: Settlement) -> None:
        """Keep an end that the store could not be told, behind those that wait already."""
        self._spool.append(_SPOOL_KIND, _encode(settlement).decode())
        self._metrics.spool_records.set(len(self._spool))

    @property
    def is_behind(self) -> bool:
        """Whether ends wait that the store was not told yet."""
        return len(self._spool) > 0

    async def renew(self) -> None:
        """Extend the leases of this worker's live requests. Raises StoreUnavailable.

        Those that were admitted without the store too: it may have admitted them though no answer came.
        """
        admitted = list(self._live.items())
        for start in range(0, len(admitted), BATCH):
            batch = admitted[start : start + BATCH]
            counts = (count for _, admission in batch for count in admission.counts)
            await self._reservations.renew([name for name, _ in batch], counts)

    async def sweep(self) -> None:
        """Book the holds whose owner died at their worst case. Raises StoreUnavailable.

        Our own are renewed first, and each is tried once, so that those which stay do not hold it here for ever.
        """
        await self.renew()
        tried: set[str] = set()
        while True:
            found = await self._reservations.find_orphans(BATCH)
            orphans = [each for each in found if each.request_id not in self._live and each.request_id not in tried]
            if not orphans:
                return
            for orphan in orphans:
                tried.add(orphan.request_id)
                await self._try_to_book(orphan)

    async def _sweep_when_steady(self) -> None:
        """Sweep, but not before the store has been here for a lease: until then living owners may not have renewed."""
        if self._store.available_seconds() > self._round_seconds * ROUNDS_PER_LEASE:
            await self.sweep()

    async def _try_to_book(self, orphan: Orphan) -> None:
        try:
            await self._book(orphan)
        except StoreUnavailable as error:
            if not self._store.is_available:
                raise
            _log.error("a hold cannot be booked", request_id=orphan.request_id, reason=error.message)

    async def _book(self, orphan: Orphan) -> None:
        settlement = Settlement(
            orphan.request_id, Ending.ORPHAN, orphan.record, orphan.shares, self._reservations.now()
        )
        happened, _levels = read_end(await self._reservations.send(settlement))
        if happened == "orphaned":
            self._metrics.reservations_expired_total.inc()
            _log.warning("a hold was booked at its worst case: its owner died", request_id=orphan.request_id)

    async def deliver(self) -> None:
        """Tell the store what waits, in order. Raises StoreUnavailable; the rest waits on."""
        try:
            await self._spool.deliver(self._tell)
        finally:
            self._metrics.spool_records.set(len(self._spool))

    async def _deliver_waiting(self) -> None:
        if self.is_behind:
            await self.deliver()

    async def _tell(self, records: Sequence[SpooledRecord]) -> Sequence[BaseException | None]:
        """Tell the store of some ends in one trip; for each the reason if it was not told."""
        replies = await asyncio.gather(*map(self._send, records), return_exceptions=True)
        return [reply if isinstance(reply, BaseException) else None for reply in replies]

    def _send(self, record: SpooledRecord) -> Awaitable[Reply]:
        try:
            return self._reservations.send_spooled(_decode(record.payload))
        except msgspec.DecodeError as error:
            unread: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            unread.set_exception(CommandRefused(f"This build cannot read it: {error}"))
            return unread

    async def _repeat(self, name: str, work: Callable[[], Awaitable[None]], seconds: float) -> None:
        """Do something again and again; a store that is away is waited for, a fault is logged and counted."""
        told = None
        while True:
            try:
                if self._store.is_available:
                    await work()
                    told = None
            except StoreUnavailable as error:
                if error.message != told:
                    _log.info("upkeep waits for the store", work=name, reason=error.message)
                told = error.message
            except Exception:  # noqa: BLE001  the outermost frame of a task
                self._note_fault(name)
            await asyncio.sleep(seconds)

    def _note_fault(self, name: str) -> None:
        self._metrics.unhandled_errors_total.labels("upkeep").inc()
        _log.exception("upkeep failed", work=name)
