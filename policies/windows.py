"""Time windows as arithmetic: what a `per` means, when calendar windows begin, and how a bucket refills (SPEC §5).

All of it is integers: counts of the limited quantity, milliseconds of the store's clock, and nothing above 2^53, so
that the store's Lua computes the same numbers: `proxy/store/scripts/_level.lua` and those that include it. A property
test runs both against each other. This file knows no limit, no scope and no key, and is told what time it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from datetime import date, tzinfo

MAX_COUNT: Final = 10**13
"""Largest count that is told apart: asks and charges above it are taken as this, and limits go up to it."""
MAX_LEVEL: Final = 2**52
"""Largest scaled level of a tank; one more addition stays below 2^53, where doubles stop being exact."""

_DAY: Final = timedelta(days=1)
_MAX_WINDOW_MILLISECONDS: Final = 10 * 366 * 86_400_000
_ROLLING: Final = {"second": 1_000, "minute": 60_000, "hour": 3_600_000}
_DURATION: Final = re.compile(r"([0-9]{1,12})(ms|s|m|h|d|w)", re.ASCII)
_UNIT_MILLISECONDS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


class Calendar(StrEnum):
    """A window that begins at midnight of the organization's time zone; weeks begin on Monday."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Rolling:
    """A bucket that refills smoothly: the limit's amount in so many milliseconds."""

    milliseconds: int


@dataclass(frozen=True, slots=True)
class Unwindowed:
    """No window: what is taken is given back, as with concurrency."""


Window = Calendar | Rolling | Unwindowed


def parse_window(per: str | None) -> Window:
    """Read the `per` of a limit; None is no window. Raises ValueError saying what can be written."""
    if per is None:
        return Unwindowed()
    if per in _ROLLING:
        return Rolling(_ROLLING[per])
    if per in tuple(Calendar):
        return Calendar(per)
    found = _DURATION.fullmatch(per)
    milliseconds = int(found[1]) * _UNIT_MILLISECONDS[found[2]] if found else 0
    if not 0 < milliseconds <= _MAX_WINDOW_MILLISECONDS:
        raise ValueError(
            f"{per!r} is no window: write second, minute, hour, day, week, month, "
            "or a duration above 0 and up to ten years, such as 90s"
        )
    return Rolling(milliseconds)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time: Unix milliseconds, the end not included."""

    start: int
    end: int

    def holds(self, now: int) -> bool:
        """Tell whether `now` lies within."""
        return self.start <= now < self.end


def calendar_span(unit: Calendar, now: int, zone: tzinfo) -> Span:
    """Return the calendar window that holds `now` (Unix milliseconds) in a time zone.

    Windows follow each other without a gap and without meeting twice: one begins when its first midnight is reached,
    or where that is left out the moment after it, and stays when clocks are set back over that midnight afterwards.
    """
    today = datetime.fromtimestamp(now / 1000, UTC).astimezone(zone).date()
    spans = (_span_of_date(unit, day, zone) for day in (today, today + _DAY, today - _DAY))
    return next(span for span in spans if span.holds(now))


def _span_of_date(unit: Calendar, day: date, zone: tzinfo) -> Span:
    if unit is Calendar.DAY:
        first, following = day, day + _DAY
    elif unit is Calendar.WEEK:
        first = day - timedelta(days=day.weekday())
        following = first + timedelta(days=7)
    else:
        first = day.replace(day=1)
        following = (first + timedelta(days=31)).replace(day=1)
    midnights = [datetime(day.year, day.month, day.day, tzinfo=zone) for day in (first, following)]
    return Span(*(int(midnight.timestamp()) * 1000 for midnight in midnights))


@dataclass(frozen=True, slots=True)
class Tank:
    """What a window lets pass: `capacity` at once, and `amount` of it comes back every `period` milliseconds.

    A tank with amount 0 does not refill: calendar windows and standing limits.
    """

    capacity: int
    amount: int = 0
    period: int = 1


@lru_cache(maxsize=4096)
def make_tank(window: Window, limit: int, burst: int | None) -> Tank:
    """Return the tank of a limit. Its rate is exact, or lower by what keeps all products exact (below one in 10^6).

    `burst` is the room of a refilling bucket, the limit when None; other windows have no use for it.
    """
    if not isinstance(window, Rolling) or limit == 0:
        return Tank(limit)
    shared = gcd(limit, window.milliseconds)
    amount, period = limit // shared, window.milliseconds // shared
    capacity = limit if burst is None else burst
    coarser = -(-capacity * period // MAX_LEVEL)
    if coarser > 1:
        amount, period = _coarsen(amount, period, coarser)
    return Tank(min(capacity, MAX_LEVEL // period), amount, period)


def _coarsen(amount: int, period: int, divisor: int) -> tuple[int, int]:
    """Write a rate in smaller numbers, never a higher one."""
    divisor = min(divisor, amount)
    return amount // divisor, -(-period // divisor)


class Level(msgspec.Struct, frozen=True, gc=False):
    """What a tank is filled with.

    `spent` refills with time, less `carry` parts of `period` of one that has refilled already; `held` does not, until
    it is settled. `at` is when `spent` was right, in milliseconds.
    """

    spent: int = 0
    carry: int = 0
    held: int = 0
    at: int = 0


def _scaled(level: Level, tank: Tank, now: int) -> int:
    """Return what is spent at `now`, in parts of `period`."""
    carry = min(level.carry, tank.period - 1)
    elapsed = max(0, now - level.at)
    return max(0, min(level.spent * tank.period - carry, MAX_LEVEL) - elapsed * tank.amount)


def _unscaled(scaled: int, tank: Tank, held: int, now: int) -> Level:
    spent = -(-scaled // tank.period)
    return Level(spent, spent * tank.period - scaled, held, now)


def leaked(level: Level, tank: Tank, now: int) -> Level:
    """Return the level as time has left it."""
    return _unscaled(_scaled(level, tank, now), tank, level.held, now)


def fits(level: Level, tank: Tank, ask: int, now: int) -> bool:
    """Tell whether `ask` fits beside what is spent and held."""
    return _scaled(level, tank, now) + (level.held + ask) * tank.period <= tank.capacity * tank.period


def take(level: Level, tank: Tank, now: int, *, spend: int = 0, hold: int = 0) -> Level:
    """Spend or hold; whether it fits is asked before. Where it does not, the tank takes it up to what is told apart."""
    scaled = min(_scaled(level, tank, now) + spend * tank.period, MAX_LEVEL)
    held = min(level.held + hold, max(level.held, MAX_LEVEL // tank.period))
    return _unscaled(scaled, tank, held, now)


def take_late(level: Level, tank: Tank, now: int, spend: int) -> Level:
    """Spend what nothing was held for. A tank that refills is not filled above its capacity by it.

    So whoever used more than the limit while nobody counted waits for one whole refill at most.
    """
    scaled = _scaled(level, tank, now)
    most = max(scaled, tank.capacity * tank.period) if tank.amount else MAX_LEVEL
    return _unscaled(min(scaled + spend * tank.period, most), tank, level.held, now)


def booking_time(level: Level, now: int, age: int) -> int:
    """Return when a request is booked that ended `age` milliseconds ago: then, but not before what is booked already.

    The level refills up to that moment and no further, so that time refills it once, however many are told late.
    """
    return max(min(level.at, now), now - age)


def give_back(  # noqa: PLR0913  the state, then what is done to it
    level: Level, tank: Tank, now: int, *, spent: int = 0, since: int = 0, held: int = 0
) -> Level:
    """Take back what was spent at `since`, less what has refilled since then, and what was held.

    Room that has refilled is not given a second time (SPEC §5).
    """
    refilled = max(0, now - since) * tank.amount
    scaled = max(0, _scaled(level, tank, now) - max(0, spent * tank.period - refilled))
    return _unscaled(scaled, tank, max(0, level.held - held), now)


def left(level: Level, tank: Tank) -> int:
    """Return how much more fits, in whole units; never negative."""
    scaled = tank.capacity * tank.period - (level.spent * tank.period - level.carry) - level.held * tank.period
    return max(0, scaled // tank.period)


def empty_in(level: Level, tank: Tank) -> int:
    """Return in how many milliseconds all that is spent has refilled; 0 for a tank that does not refill."""
    return _time_for(level.spent * tank.period - level.carry, tank)


def next_in(level: Level, tank: Tank) -> int:
    """Return in how many milliseconds the next unit comes back; 0 for a tank that does not refill or is full."""
    if level.spent == 0:
        return 0
    return _time_for(tank.period - level.carry, tank)


def fits_in(level: Level, tank: Tank, ask: int) -> int | None:
    """Return in how many milliseconds `ask` fits, as if all that is held were spent now; None if time cannot do it."""
    missing = level.spent * tank.period - level.carry + (level.held + ask - tank.capacity) * tank.period
    if missing <= 0:
        return 0
    if ask > tank.capacity or tank.amount == 0:
        return None
    return _time_for(missing, tank)


def is_blocked_by_holds(level: Level, tank: Tank, ask: int) -> bool:
    """Tell whether `ask` would fit if nothing were held."""
    return fits(replace(level, held=0), tank, ask, level.at)


def _time_for(scaled: int, tank: Tank) -> int:
    return -(-scaled // tank.amount) if tank.amount and scaled > 0 else 0
