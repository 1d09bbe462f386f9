"""Limits over requests that have been: who would have found room, had these limits counted (SPEC §5).

The worst case is taken when a request starts and settled to its charge when it ends, by the arithmetic that counts
while the store is away. Knows no record and no rule; the time is told.
"""

from __future__ import annotations

import sys
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from policies.limits import taken, taken_by_hit
from policies.room import Room, refuse
from policies.windows import Calendar, Span, calendar_span
from proxy.local_limits import LocalLimits
from proxy.store.keys import Keys
from proxy.store.reservations import Count, Hits, Verdict, count_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import tzinfo

    from policies.charges import Charged
    from policies.limits import BoundLimit
    from policies.room import Refusal


class Replayed(NamedTuple):
    """What became of a request: its refusal, or None, and then the observed limits that would have refused it."""

    refusal: Refusal | None
    observed: tuple[BoundLimit, ...] = ()


class LimitReplay:
    """The limits of one organization, with nothing taken from any of them at first."""

    def __init__(self, organization: str, zone: tzinfo) -> None:
        """`zone` is where calendar windows begin."""
        self._keys = Keys(organization)
        self._zone = zone
        self._levels = LocalLimits(workers=1, held_here=lambda _key: 0, remembered=sys.maxsize)
        self._spans: dict[Calendar, Span] = {}
        self._ends: list[tuple[int, int, tuple[Count, ...], Verdict, list[int]]] = []
        self._numbers = count()

    def admit(
        self, limits: Sequence[BoundLimit], charged: Charged, *, started: int, ended: int, hits: Hits
    ) -> Replayed:
        """Take a request from all its limits, or from none; requests come in the order of their starts.

        Times are Unix milliseconds. `hits`: MAYBE for one that was answered from the cache, of which `charged` is the
        charge in full; ONLY for one that wanted nothing else.
        """
        self._end_until(started)
        counts = tuple(count_of(bound, self._keys, lambda unit: self._span(unit, started)) for bound in limits)
        observed = self._without_room([each for each in counts if each.bound.is_observed], started, hits)
        verdict = self._levels.admit(counts, hits=hits, now=started)
        if verdict is Verdict.REFUSED:
            return Replayed(refuse([room for room in self._rooms(counts, started) if room.refuses]))
        take = taken if hits is Hits.NO else taken_by_hit
        amounts = [take(each.bound, charged) for each in counts]
        heappush(self._ends, (max(started, ended), next(self._numbers), counts, verdict, amounts))
        return Replayed(None, observed)

    def _end_until(self, moment: int) -> None:
        while self._ends and self._ends[0][0] <= moment:
            ended, _, counts, verdict, amounts = heappop(self._ends)
            self._levels.end(counts, verdict, amounts, ended)

    def _without_room(self, observed: Sequence[Count], now: int, hits: Hits) -> tuple[BoundLimit, ...]:
        """Return which of some limits that are observed would have refused a request; a hit, only where it counts."""
        rooms = self._rooms([each for each in observed if hits is Hits.NO or each.bound.is_taken_by_hits], now)
        return tuple(room.bound for room in rooms if not room.fits)

    def _rooms(self, counts: Sequence[Count], now: int) -> list[Room]:
        return [Room(each.bound, self._levels.level(each, now), each.bound.tank, each.span) for each in counts]

    def _span(self, unit: Calendar, now: int) -> Span:
        span = self._spans.get(unit)
        if span is None or not span.holds(now):
            span = self._spans[unit] = calendar_span(unit, now, self._zone)
        return span
