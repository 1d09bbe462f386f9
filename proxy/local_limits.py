"""Limits while the store is away: counted in this process, for its share among the workers (SPEC §10).

A worker starts from what it last saw left, divided by the workers, rounded down. However long ago that was, no more is
left now, but for what has refilled; of a count that it never saw it knows only that no more than the limit is left,
and divides that. Where all workers saw what was left, no more than that passes. Where some did not, at most the limit
passes in an outage, whatever had been used before it, and what refills; so it is for each gateway that shares the
store. If the store comes and goes, what was counted here stands until it has been told. The arithmetic is
`policies/windows`; this file knows no store, and is told the time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from policies import windows
from policies.limits import Taking
from policies.windows import Level, Tank, Unwindowed
from proxy.store.reservations import Hits, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from policies.limits import BoundLimit
    from proxy.store.reservations import Count

MAX_SEEN: Final = 10_000
"""How many counts are remembered; the one that was not used longest is forgotten first."""


class LocalLimits:
    """What one worker knows of limits without asking the store."""

    def __init__(self, *, workers: int, held_here: Callable[[str], int], remembered: int = MAX_SEEN) -> None:
        """`held_here` tells how many requests under way of this worker count at a key that the store admitted."""
        self._remembered = remembered
        self._workers = workers
        self._held_here = held_here
        self._seen: OrderedDict[str, Level] = OrderedDict()
        self._levels: OrderedDict[str, Level] = OrderedDict()

    def see(self, counts: Sequence[Count], levels: Sequence[Level]) -> None:
        """Remember what the store said last of some counts, and forget what was counted without it: it was told."""
        for count, level in zip(counts, levels, strict=True):
            self._levels.pop(count.key, None)
            self._seen[count.key] = level
            self._seen.move_to_end(count.key)
        while len(self._seen) > self._remembered:
            self._seen.popitem(last=False)

    def admit(self, counts: Sequence[Count], *, hits: Hits, now: int) -> Verdict:
        """Take from all counts or from none, as `admit.lua` does."""
        verdict = Verdict.HIT if hits is Hits.ONLY else Verdict.ADMITTED
        for count in counts:
            is_for_misses = count.bound.taking is Taking.MISS
            if (hits is Hits.ONLY and is_for_misses) or count.bound.is_observed or self._fits(count, now):
                continue
            if hits is Hits.NO or not is_for_misses:
                return Verdict.REFUSED
            verdict = Verdict.HIT
        for count in counts:
            self._take(count, verdict, now)
        return verdict

    def end(self, counts: Sequence[Count], verdict: Verdict, taken: Sequence[int], now: int) -> None:
        """Give back what a request holds and book what it took."""
        for count, amount in zip(counts, taken, strict=True):
            if count.key not in self._levels:  # the store came back in between; it counts from there
                continue
            tank, spent, held = self.tank(count.bound), *_taken(count.bound, verdict)
            level = windows.give_back(self._levels[count.key], tank, now, held=held)
            self._levels[count.key] = windows.take(level, tank, now, spend=max(0, amount - spent))

    def level(self, count: Count, now: int) -> Level:
        """Return a count as this worker has it: of what is given back, what the store admitted before counts too."""
        level = self._own_level(count, now)
        if not isinstance(count.bound.window, Unwindowed):
            return level
        return Level(level.spent, level.carry, level.held + self._held_here(count.key), level.at)

    def _own_level(self, count: Count, now: int) -> Level:
        tank = self.tank(count.bound)
        level = self._levels.get(count.key)
        if level is None:
            level = self._levels[count.key] = self._first_level(count, tank, now)
            while len(self._levels) > self._remembered:
                self._levels.popitem(last=False)
        return windows.leaked(level, tank, now)

    def tank(self, bound: BoundLimit) -> Tank:
        """Return this worker's share of a limit."""
        tank = bound.tank
        return Tank(tank.capacity // self._workers, tank.amount, tank.period * self._workers)

    def _first_level(self, count: Count, tank: Tank, now: int) -> Level:
        if isinstance(count.bound.window, Unwindowed):
            return Level(at=now)
        seen = self._seen.get(count.key)
        if seen is None:
            return Level(at=now)
        left = windows.left(windows.leaked(seen, count.bound.tank, now), count.bound.tank)
        return Level(spent=max(0, tank.capacity - left // self._workers), at=now)

    def _fits(self, count: Count, now: int) -> bool:
        return windows.fits(self.level(count, now), self.tank(count.bound), count.bound.ask, now)

    def _take(self, count: Count, verdict: Verdict, now: int) -> None:
        spent, held = _taken(count.bound, verdict)
        level = self._own_level(count, now)
        self._levels[count.key] = windows.take(level, self.tank(count.bound), now, spend=spent, hold=held)


def _taken(bound: BoundLimit, verdict: Verdict) -> tuple[int, int]:
    """Return what an admission spends of a limit, and what it holds."""
    if verdict is Verdict.ADMITTED and bound.taking is Taking.SPEND:
        return bound.takes, 0
    return 0, bound.takes if verdict is Verdict.ADMITTED or bound.taking is not Taking.MISS else 0
