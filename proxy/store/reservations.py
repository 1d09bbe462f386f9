"""The limit scripts as typed calls: what they are given, and what their replies mean.

The layout of KEYS and ARGV of `admit`, `settle`, `renew` and `expired` is known here and in the heads of the scripts;
that of `look` in `rooms`.
This file decides nothing: it does not know when to admit or to settle, nor what anything costs.
"""

from __future__ import annotations

import time
from asyncio import gather
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from policies.windows import Calendar, Level, Span, calendar_span
from proxy.store.scripts import Script

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence
    from datetime import tzinfo

    from policies.limits import BoundLimit
    from proxy.store.connection import Argument, Command, Reply, Store
    from proxy.store.keys import Keys

HOLD_LIFE_MILLISECONDS: Final = 86_400_000
"""How long an unsettled hold waits for somebody who books it; its lease is much shorter."""
TOMBSTONE_LIFE_MILLISECONDS: Final = 600_000
"""How long it is known that a request has ended, so that its settlement is not booked twice."""
LONG_TOMBSTONE_LIFE_MILLISECONDS: Final = 2 * HOLD_LIFE_MILLISECONDS
"""Likewise for those few that may be told again much later: what comes from the spool, and orphans."""
PROBE_LIFE_MILLISECONDS: Final = 60_000
"""How long the key stands that was written to find out whether the store takes writes."""
WAITER_LIFE_MILLISECONDS: Final = 3_000
"""How long a waiting request that does not ask again keeps those behind it waiting."""
LEASES_PER_LIFE: Final = 3
"""A limit's key outlives its refilling by this many leases: it remembers that it was reset."""

_ADMIT: Final = Script("admit")
_SETTLE: Final = Script("settle")
_RENEW: Final = Script("renew")
_EXPIRED: Final = Script("expired")
_HEAD: Final = 2
_NOTES: Final = 4
_MAX_EPOCH_DIGITS: Final = 15


class Verdict(StrEnum):
    """What `admit` says."""

    ADMITTED = "admitted"
    HIT = "hit"
    """Admitted for a hit only."""
    REFUSED = "refused"
    WAITING = "waiting"
    """Nothing was taken; the request stands in line, and is to ask again."""
    LATE = "late"
    """Executed after its deadline; nothing was taken."""
    MOVED = "moved"
    """A calendar window is not the one that was meant; nothing was taken."""
    ENDED = "ended"
    """The request was settled or released before."""


class Hits(StrEnum):
    """Whether a stored answer may do."""

    NO = "no"
    MAYBE = "maybe"
    ONLY = "only"


class Ending(StrEnum):
    """How a reservation ends."""

    SETTLE = "settle"
    ORPHAN = "orphan"
    RELEASE = "release"


class Count(msgspec.Struct, frozen=True):
    """Where one bound limit counts for one request: the key, and the calendar window if it has one."""

    bound: BoundLimit
    key: str
    span: Span | None


class Share(msgspec.Struct, frozen=True, array_like=True):
    """What one request takes from one key, as kept with the hold and in the spool: enough to settle without more.

    `until` is the end of the calendar window in Unix milliseconds, 0 without one.
    """

    key: str
    capacity: int
    amount: int
    period: int
    taken: int
    until: int


class Settlement(msgspec.Struct, frozen=True):
    """The end of a request, as it goes to the store at once or from the spool later.

    `ended_milliseconds` is when it ended, by the store's clock; `record` the usage record, empty for none; `was_sent`
    whether it has left for the store, which may have booked it though no answer came. `lines` are those in which it may
    stand still.
    """

    request_id: str
    ending: Ending
    record: str
    shares: tuple[Share, ...]
    ended_milliseconds: int
    was_sent: bool = False
    lines: tuple[tuple[str, str], ...] = ()


class InTheWay(NamedTuple):
    """A count that has no room, by its position; what those in line before ask for, and how many they are."""

    position: int
    ahead: int
    waiters_before: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """Reply of `admit`: levels in the order of the counts, empty for a verdict that reads none.

    `observed` are the counts of observed limits that had no room: their positions, and what was left before.
    `in_the_way` are those that had none otherwise; of a request that waits, those that it waits for.
    `came_microseconds` is when it came, by the store's clock. `epoch` is the cache's at that moment (`cache_state`),
    None where it cannot be read, and for a verdict that reads no levels.
    """

    verdict: Verdict
    now: int
    levels: tuple[Level, ...]
    observed: tuple[tuple[int, int], ...] = ()
    in_the_way: tuple[InTheWay, ...] = ()
    came_microseconds: int = 0
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Orphan:
    """A hold whose lease is over: the record that was left with it, and what it took at worst."""

    request_id: str
    record: str
    shares: tuple[Share, ...]


class Reservations:
    """The limits, holds and usage records of one organization in one store."""

    def __init__(self, store: Store, keys: Keys, zone: tzinfo, *, lease_seconds: float) -> None:
        """`zone` is where calendar windows begin."""
        self._store = store
        self._keys = keys
        self._zone = zone
        self._lease = round(lease_seconds * 1000)
        self._grace = self._lease * LEASES_PER_LIFE
        self._spans: dict[Calendar, Span] = {}

    def now(self) -> int:
        """Return Unix milliseconds of the store's clock, as far as it is known."""
        return store_now(self._store)

    def counts(self, limits: Sequence[BoundLimit], now: int) -> tuple[Count, ...]:
        """Return where limits count at `now` (Unix milliseconds of the store's clock)."""
        return tuple(count_of(bound, self._keys, lambda unit: self._span(unit, now)) for bound in limits)

    def _span(self, unit: Calendar, now: int) -> Span:
        span = self._spans.get(unit)
        if span is None or not span.holds(now):
            span = self._spans[unit] = calendar_span(unit, now, self._zone)
        return span

    def send_admit(  # noqa: PLR0913  what the script is given, by name
        self,
        request_id: str,
        counts: Sequence[Count],
        *,
        hits: Hits,
        deadline: int,
        record: bytes,
        came_microseconds: int = 0,
        waited_milliseconds: int = 0,
    ) -> asyncio.Future[Reply]:
        """Let an admission leave; `read_admit` reads the reply. It takes nothing after `deadline` (store's clock).

        One that was told to wait says since when, as it was told, and for how long by now.
        """
        keys, lines = [self._keys.hold(request_id), self._keys.leases, self._keys.cache], list[str]()
        arguments: list[Argument] = [request_id, deadline, self._lease, HOLD_LIFE_MILLISECONDS, self._grace, hits.value]
        arguments += (record, _encode([share(count, count.bound.at_worst) for count in counts]))
        arguments += (came_microseconds, WAITER_LIFE_MILLISECONDS)
        for count in counts:
            keys.append(count.key)
            arguments += _admit_arguments(count, waited_milliseconds)
            if count.bound.named.waits:
                lines += self._keys.line(count.bound)
        return self._store.send_script(_ADMIT, [*keys, *lines], arguments)

    def lines(self, counts: Iterable[Count]) -> tuple[tuple[str, str], ...]:
        """Return the lines in which a request waits for these counts, where it does."""
        return tuple(self._keys.line(count.bound) for count in counts if count.bound.named.waits)

    def send_leave(self, request_id: str, lines: Iterable[tuple[str, str]]) -> None:
        """Let a request leave lines; nobody need wait for that."""
        for line, waiters in lines:
            for reply in (
                self._store.send("ZREM", line, request_id),
                self._store.send("HDEL", waiters, request_id),
            ):
                reply.add_done_callback(forget_failure)

    def send(self, settlement: Settlement) -> asyncio.Future[Reply]:
        """Let an end leave; `read_end` reads the reply. It may be sent again: only the first counts."""
        is_orphan = settlement.ending is Ending.ORPHAN
        life = LONG_TOMBSTONE_LIFE_MILLISECONDS if is_orphan else TOMBSTONE_LIFE_MILLISECONDS
        return self._send_end(settlement, life)

    def send_spooled(self, settlement: Settlement) -> asyncio.Future[Reply]:
        """Let an end leave that was kept in the spool, perhaps for long; as `send` does it, and as often as need be."""
        return self._send_end(settlement, LONG_TOMBSTONE_LIFE_MILLISECONDS)

    def _send_end(self, settlement: Settlement, life: int) -> asyncio.Future[Reply]:
        self.send_leave(settlement.request_id, settlement.lines)
        keys = [self._keys.hold(settlement.request_id), self._keys.leases, self._keys.outbox]
        age = max(0, self.now() - settlement.ended_milliseconds)
        arguments: list[Argument] = [settlement.request_id, settlement.ending.value, life, settlement.record]
        arguments += (self._grace, age, "skip" if may_be_forgotten(settlement, age) else "book")
        for each in settlement.shares:
            keys.append(each.key)
            arguments += (each.capacity, each.amount, each.period, each.taken, each.until)
        return self._store.send_script(_SETTLE, keys, arguments)

    async def renew(self, request_ids: Sequence[str], counts: Iterable[Count]) -> int:
        """Extend leases, and the lives of what they hold room in. Returns how many are still held.

        A calendar window ends when it ends. Raises StoreUnavailable.
        """
        limits = {count.key for count in counts if count.span is None}
        keys = [self._keys.leases, *map(self._keys.hold, request_ids), *limits]
        arguments: list[Argument] = [self._lease, HOLD_LIFE_MILLISECONDS, len(request_ids), *request_ids]
        kept, _now = await self._store.run(_RENEW, keys, arguments)
        return int(kept)

    async def find_orphans(self, at_most: int) -> list[Orphan]:
        """Return holds whose lease is over. Raises StoreUnavailable."""
        ids = [each.decode() for each in await self._store.run(_EXPIRED, [self._keys.leases], [at_most])]
        replies = await gather(*(self._store.send("HMGET", self._keys.hold(each), "record", "limits") for each in ids))
        return [_orphan(request_id, reply) for request_id, reply in zip(ids, replies, strict=True)]


def store_now(store: Store) -> int:
    """Return Unix milliseconds of a store's clock, as far as it is known."""
    return int((time.time() + store.clock_offset_seconds()) * 1000)


def count_of(bound: BoundLimit, keys: Keys, span_of: Callable[[Calendar], Span]) -> Count:
    """Return where a limit counts; `span_of` tells which calendar window it is in."""
    if not isinstance(bound.window, Calendar):
        return Count(bound, keys.limit(bound), None)
    span = span_of(bound.window)
    return Count(bound, keys.limit(bound, span.start), span)


def probe(keys: Keys) -> tuple[Command, ...]:
    """Return what a store has to carry out if limits are to be counted in it: to write, and to know its own keys."""
    return (
        ("SET", keys.probe, 1, "PX", PROBE_LIFE_MILLISECONDS),
        ("ZCARD", keys.leases),
        ("XLEN", keys.outbox),
    )


def share(count: Count, taken: int) -> Share:
    """Return what a request takes from a count."""
    tank = count.bound.tank
    until = 0 if count.span is None else count.span.end
    return Share(count.key, tank.capacity, tank.amount, tank.period, taken, until)


def may_be_forgotten(settlement: Settlement, age: int) -> bool:
    """Tell whether the store may have booked an end of this age (ms) so long ago that its tombstone is gone.

    Half a tombstone's life is well within it, however far the clocks are apart.
    """
    life = TOMBSTONE_LIFE_MILLISECONDS if settlement.was_sent else LONG_TOMBSTONE_LIFE_MILLISECONDS
    return age > life // 2


def read_admit(reply: Reply) -> Reserved:
    """Read the reply of an admission."""
    if len(reply) == _HEAD:
        return Reserved(Verdict(reply[0].decode()), reply[1], ())
    observed, in_the_way, came, epoch = reply[-1].split(b";", _NOTES - 1)
    return Reserved(
        Verdict(reply[0].decode()),
        reply[1],
        read_levels(reply[:-1]),
        observed=_read_observed(observed) if observed else (),
        in_the_way=_read_in_the_way(in_the_way) if in_the_way else (),
        came_microseconds=int(came),
        epoch=read_epoch(epoch),
    )


def _read_observed(text: bytes) -> tuple[tuple[int, int], ...]:
    numbers = map(int, text.split())
    return tuple((number - 1, left) for number, left in zip(numbers, numbers, strict=True))


def _read_in_the_way(text: bytes) -> tuple[InTheWay, ...]:
    numbers = map(int, text.split())
    return tuple(InTheWay(number - 1, *more) for number, *more in zip(numbers, numbers, numbers, strict=True))


def read_epoch(text: bytes | None) -> int | None:
    """Read the epoch of the cache: 0 where there is none, None for what another may have put there."""
    if text is None:
        return 0
    return int(text) if text.isdigit() and len(text) <= _MAX_EPOCH_DIGITS else None


def read_end(reply: Reply) -> tuple[str, tuple[Level, ...]]:
    """Read the reply of a settlement: what happened, and the levels after it."""
    return reply[0].decode(), read_levels(reply)


def read_levels(reply: Reply) -> tuple[Level, ...]:
    """Read the levels that follow the first two members of a reply."""
    now, numbers = reply[1], iter(reply[_HEAD:])
    return tuple(Level(spent, carry, held, now) for spent, carry, held in zip(numbers, numbers, numbers, strict=True))


def forget_failure(reply: asyncio.Future[Reply]) -> None:
    """Look at a failure that perhaps nobody awaits, so that the loop does not report it."""
    if not reply.cancelled():
        reply.exception()


def _admit_arguments(count: Count, waited: int) -> tuple[str | int, ...]:
    bound, named = count.bound, count.bound.named
    tank = named.tank
    start, end = (0, 0) if count.span is None else (count.span.start, count.span.end)
    patience = max(0, bound.limit.wait_milliseconds - waited)
    numbers = (tank.capacity, tank.amount, tank.period, bound.ask, bound.takes, start, end, patience)
    return bound.taking.value, "wait" if named.waits else bound.limit.mode, *numbers


def _orphan(request_id: str, reply: list[Any]) -> Orphan:
    """Read a hold; one that has gone, or that another build wrote, has no shares."""
    record, limits = reply
    try:
        shares = _decode_shares(limits or b"[]")
    except msgspec.DecodeError:
        shares = []
    return Orphan(request_id, (record or b"").decode(), tuple(shares))


_encode: Final = msgspec.json.Encoder().encode
_decode_shares: Final = msgspec.json.Decoder(list[Share]).decode
