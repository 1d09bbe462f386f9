"""Reading how much room limits have, without taking any: for those who ask what is left, and for `tidegate explain`.

The layout of KEYS and ARGV of `look` is known here and in the head of the script. Knows no request and decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from policies.room import Room
from policies.windows import calendar_span
from proxy.errors import StoreUnavailable
from proxy.store.keys import Keys
from proxy.store.reservations import count_of, read_levels, store_now
from proxy.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import tzinfo

    from policies.limits import BoundLimit
    from policies.windows import Level
    from proxy.store.connection import Reply, Store
    from proxy.store.reservations import Count

_LOOK: Final = Script("look")
_MOVED: Final = b"moved"
_MAX_TRIES: Final = 3
"""Limits are looked at again when the store's clock was in another calendar window than ours."""


async def look(store: Store, organization: str, zone: tzinfo, limits: Sequence[BoundLimit]) -> tuple[Room, ...]:
    """Return how a request's limits stand now, in their order, and write nothing.

    `organization` is its id, `zone` where its calendar windows begin; the store has been started. One trip, or one more
    around midnight. Raises StoreUnavailable.
    """
    if not limits:
        return ()

    async def call(counts: Sequence[Count]) -> Reply:
        return await store.run(_LOOK, [count.key for count in counts], window_arguments(counts))

    counts, reply = await call_in_windows(store, organization, zone, limits, call)
    return rooms_of(counts, read_levels(reply))


async def call_in_windows(
    store: Store,
    organization: str,
    zone: tzinfo,
    limits: Sequence[BoundLimit],
    call: Callable[[Sequence[Count]], Awaitable[Reply]],
) -> tuple[Sequence[Count], Reply]:
    """Let a script be called for limits where they count now; once more if the store was in another calendar window.

    Returns where they count, and the script's reply. Raises StoreUnavailable.
    """
    now = store_now(store)
    for _ in range(_MAX_TRIES):
        counts = _counts(limits, Keys(organization), zone, now)
        reply = await call(counts)
        if reply[0] != _MOVED:
            return counts, reply
        now = reply[1]
    raise StoreUnavailable("The store's clock does not stand still enough to tell which calendar windows it is in.")


def rooms_of(counts: Sequence[Count], levels: Sequence[Level]) -> tuple[Room, ...]:
    """Return how limits stand whose levels were read."""
    pairs = zip(counts, levels, strict=True)
    return tuple(Room(count.bound, level, count.bound.tank, count.span) for count, level in pairs)


def window_arguments(counts: Sequence[Count]) -> list[int]:
    """Return what scripts want to know of each count that they read: its refilling and its calendar window."""
    return [number for count in counts for number in _arguments(count)]


def _counts(limits: Sequence[BoundLimit], keys: Keys, zone: tzinfo, now: int) -> tuple[Count, ...]:
    return tuple(count_of(bound, keys, lambda unit: calendar_span(unit, now, zone)) for bound in limits)


def _arguments(count: Count) -> tuple[int, int, int, int]:
    start, end = (0, 0) if count.span is None else (count.span.start, count.span.end)
    return count.bound.tank.amount, count.bound.tank.period, start, end
