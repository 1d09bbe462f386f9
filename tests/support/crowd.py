"""A crowd of requests at the limits of one real store, as gateways send them: admitted, waiting, settled, left, lost.

Requests end at, below and above what was held; are told twice, too late, or never; ask for hits; and wait. Which limits
there are is for the test to say. Judges nothing: what was right is for `log_oracle` to tell.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from admitting import KEYS, decision
from store_log import Promised

from policies.limits import Taking
from proxy.metrics import Metrics
from proxy.store.connection import Store
from proxy.store.reservations import (
    Ending,
    Hits,
    Reservations,
    Settlement,
    Verdict,
    read_admit,
    share,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from random import Random

    from policies.limits import BoundLimit
    from proxy.store.reservations import Count, Orphan, Reserved

LEASE_SECONDS: Final = 0.4
_DEADLINE_MILLISECONDS: Final = 2_000
_SWEEP_SECONDS: Final = 0.05
_PAUSE_SECONDS: Final = 0.01
_AT_ONCE: Final = 64
_POOL: Final = 200
_MICRODOLLARS: Final = 1_000_000
_UNITS: Final = {"second": 1_000, "minute": 60_000, "hour": 3_600_000}

PRICE: Final = {"price": {"input": 1.5, "output": 2.0}, "max_output_tokens": 64}
_PATIENT: Final = {"by": ["project"], "on_exceed": "wait"}
LIMITS: Final[tuple[Mapping[str, Any], ...]] = (
    {"of": "requests", "limit": 150, "per": "second", "burst": 30, "by": ["user"]},
    {"of": "tokens", "limit": 9_000, "per": "700ms", "burst": 2_500, "by": ["organization"]},
    {"of": "tokens", "limit": 40_000, "per": "day", "by": ["user"]},
    {"of": "usd", "limit": 2, "per": "month", "by": ["project"]},
    {"of": "usd", "limit": 0.007, "per": "13s", "burst": 0.004, "by": ["user"]},
    {"of": "concurrency", "limit": 9, "by": ["key"]},
    {"of": "output_tokens", "limit": 4_000, "per": "900ms", "by": ["user"], "hold": "none"},
    {"of": "completions", "limit": 333, "per": "1777ms", "by": ["organization"], "charge_hits": "full"},
    {"of": "input_tokens", "limit": 50, "per": "second", "by": ["user"], "mode": "observe"},
    {"of": "concurrency", "limit": 20, "by": ["organization"], "on_exceed": "wait", "max_wait": "400ms"},
    {"of": "tokens", "limit": 7_001, "per": "second", "burst": 1_000, **_PATIENT, "max_wait": "150ms"},
    {"of": "requests", "limit": 400, "per": "second", "burst": 12, **_PATIENT, "max_wait": "1s"},
    {"of": "tokens", "limit": 9_999_999, "per": "7d", "burst": 60_000, "by": ["user"]},
)


class Crowd:
    """Sends requests over some connections; `verdicts` counts what was answered, `promised` what limits promise."""

    def __init__(self, stores: Sequence[Store], chance: Random) -> None:
        """Take started stores; everything random is drawn from `chance`."""
        self.verdicts: Counter[str] = Counter()
        self.promised: dict[str, Promised] = {}
        self._gateways = [Reservations(store, KEYS, UTC, lease_seconds=LEASE_SECONDS) for store in stores]
        self._chance = chance
        self._pool = [self._draw_limits() for _ in range(_POOL)]
        self._late: list[Orphan] = []

    async def send(self, requests: int) -> None:
        """Send so many requests, many at once, and wait until all have ended that ever will."""
        numbers = iter(range(requests))
        sweeper = asyncio.create_task(self._sweep())
        await asyncio.gather(*(self._client(numbers) for _ in range(_AT_ONCE)))
        await asyncio.sleep(2 * LEASE_SECONDS)  # what nobody ends is found when its lease is over, by the store's clock
        sweeper.cancel()
        await asyncio.gather(sweeper, return_exceptions=True)

    async def _client(self, numbers: Any) -> None:  # noqa: ANN401  an iterator that all share
        for number in numbers:
            await self._request(f"r{number}", self._chance.choice(self._gateways), self._chance.choice(self._pool))

    async def _request(self, name: str, gateway: Reservations, limits: Sequence[BoundLimit]) -> None:
        counts = gateway.counts(limits, gateway.now())
        self.promised.update((count.key, _promise(count)) for count in counts)
        hits = self._chance.choice((Hits.NO, Hits.NO, Hits.MAYBE, Hits.MAYBE, Hits.ONLY))
        if self._happens(0.01):
            self._end(gateway, name, Ending.RELEASE, counts, ())  # a client that leaves before all began
        reserved = await self._admit(gateway, name, counts, hits)
        if reserved.verdict is Verdict.WAITING:
            reserved = await self._wait(gateway, name, counts, hits, reserved)
        if reserved.verdict in (Verdict.ADMITTED, Verdict.HIT):
            await self._pass(gateway, name, counts, reserved.verdict)

    async def _admit(
        self, gateway: Reservations, name: str, counts: Sequence[Count], hits: Hits, came: int = 0, waited: int = 0
    ) -> Reserved:
        deadline = gateway.now() + (-20 if self._happens(0.03) else _DEADLINE_MILLISECONDS)
        replies = [
            gateway.send_admit(
                name,
                counts,
                hits=hits,
                deadline=deadline,
                record=b"{}",
                came_microseconds=came,
                waited_milliseconds=waited,
            )
            for _ in range(2 if self._happens(0.03) else 1)
        ]
        reserved = [read_admit(reply) for reply in await asyncio.gather(*replies)]
        self.verdicts.update(each.verdict.value for each in reserved)
        return reserved[-1]

    async def _wait(
        self, gateway: Reservations, name: str, counts: Sequence[Count], hits: Hits, reserved: Reserved
    ) -> Reserved:
        since = asyncio.get_running_loop().time()
        while reserved.verdict is Verdict.WAITING:
            await asyncio.sleep(self._chance.random() * _PAUSE_SECONDS)
            if self._happens(0.02):
                gateway.send_leave(name, gateway.lines(counts))
                self._end(gateway, name, Ending.RELEASE, counts, ())
                return reserved
            waited = int((asyncio.get_running_loop().time() - since) * 1_000)
            reserved = await self._admit(gateway, name, counts, hits, reserved.came_microseconds, waited)
        return reserved

    async def _pass(self, gateway: Reservations, name: str, counts: Sequence[Count], verdict: Verdict) -> None:
        if self._happens(0.02):
            return  # nobody ends it but the sweeper
        await asyncio.sleep(self._chance.random() ** 3 * 0.03)
        if verdict is Verdict.HIT:
            how = self._chance.choice((Ending.RELEASE, Ending.SETTLE))
            truths = [0 if count.bound.taking is Taking.MISS else count.bound.at_worst for count in counts]
        else:
            how = Ending.RELEASE if self._happens(0.03) else Ending.SETTLE
            share_of = self._chance.choice((0.0, 0.1, 0.5, 1.0, 1.0, self._chance.random() * 1.3))
            truths = [self._truth(count.bound, share_of) for count in counts]
        for _ in range(2 if self._happens(0.03) else 1):
            reply = self._end(gateway, name, how, counts, truths)
        await reply

    def _truth(self, bound: BoundLimit, share_of: float) -> int:
        if bound.taking is Taking.SPEND or bound.named.is_returned:
            return bound.at_worst
        return round(bound.at_worst * share_of)

    def _end(
        self, gateway: Reservations, name: str, how: Ending, counts: Sequence[Count], truths: Sequence[int]
    ) -> asyncio.Future[Any]:
        taken = truths or [0] * len(counts)
        shares = tuple(share(count, amount) for count, amount in zip(counts, taken, strict=True))
        ended = gateway.now() - (self._chance.randrange(60) if self._happens(0.1) else 0)
        return gateway.send(Settlement(name, how, "" if how is Ending.RELEASE else "{}", shares, ended))

    async def _sweep(self) -> None:
        """Settle at their worst those whose lease is over; of some the truth comes after all."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            late, self._late = self._late, await self._gateways[0].find_orphans(100)
            for orphan in self._late:
                self._told(orphan, Ending.ORPHAN, 1.0)
            for orphan in late:
                if self._happens(0.5):
                    self._told(orphan, Ending.SETTLE, self._chance.random() * 1.2)

    def _told(self, orphan: Orphan, how: Ending, share_of: float) -> None:
        shares = tuple(
            type(each)(each.key, each.capacity, each.amount, each.period, _round(each.taken, share_of), each.until)
            for each in orphan.shares
        )
        gateway = self._chance.choice(self._gateways)
        gateway.send(Settlement(orphan.request_id, how, "{}", shares, gateway.now()))

    def _draw_limits(self) -> tuple[BoundLimit, ...]:
        chosen = self._chance.sample(LIMITS, self._chance.randint(1, 4))
        asks = {"max_tokens": self._chance.randint(1, 300), "n": self._chance.randint(1, 3)}
        return decision(chosen, user=self._chance.choice(("alice", "bob")), model=PRICE, **asks).limits

    def _happens(self, probability: float) -> bool:
        return self._chance.random() < probability


@asynccontextmanager
async def stores(url: str, connections: int) -> AsyncIterator[list[Store]]:
    """Open so many connections to a store, each as one worker has it."""
    opened = [Store(url, name="state", metrics=Metrics(), timeout_seconds=5.0) for _ in range(connections)]
    try:
        for store in opened:
            await store.start()
        yield opened
    finally:
        for store in opened:
            await store.close()


def _promise(count: Count) -> Promised:
    """Return what the settings of a limit promise, read from them alone."""
    limit = count.bound.limit
    unit = _MICRODOLLARS if limit.of == "usd" else 1
    most = round(limit.limit * unit)
    if count.span is not None or limit.per is None:
        return Promised(most, 0, 0)
    return Promised(most if limit.burst is None else round(limit.burst * unit), most, _milliseconds(limit.per))


def _milliseconds(per: str) -> int:
    if per in _UNITS:
        return _UNITS[per]
    for unit, length in (("ms", 1), ("s", 1_000), ("d", 86_400_000)):
        if per.endswith(unit):
            return int(per.removesuffix(unit)) * length
    raise ValueError(per)


def _round(amount: int, share_of: float) -> int:
    return amount if amount <= 1 else round(amount * share_of)
