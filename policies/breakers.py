"""When a deployment that fails is avoided: its circuit breaker, and the cool-downs that it asks for (SPEC §8).

Knows outcomes of attempts, and a monotonic clock in seconds that it is told. What counts as a failure, and what becomes
of a request for which no deployment is available, is known elsewhere: as a rule it is sent all the same, so attempts
begin here whatever the state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import Final

_SLICES: Final = 10
"""In so many parts a window is forgotten: it reaches back by all of its length, or by up to a tenth less."""


class BreakerState(IntEnum):
    """What a breaker makes of its deployment; the value is the metric's."""

    CLOSED = 0
    """Attempts go there."""
    HALF_OPEN = 1
    """It has been avoided for long enough: the next attempt probes, and others are kept away until it has ended."""
    OPEN = 2
    """It is avoided."""


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """When a breaker opens, and for how long.

    It takes at least `failures` failed attempts in the last `window_seconds`, and that they are at least `share` (above
    0, up to 1) of those that ended. It stays open for `open_seconds`, twice as long after each probe that fails, but
    never longer than `longest_open_seconds`.
    """

    failures: int
    share: float
    window_seconds: float
    open_seconds: float
    longest_open_seconds: float


class Begun:
    """An attempt as the breaker saw it begin, to be handed back with what became of it."""

    __slots__ = ("has_failed", "has_succeeded", "is_probe", "period")

    def __init__(self, period: int, *, is_probe: bool = False) -> None:
        self.period = period
        """How often the breaker had been closed before; for a probe, as if it had closed it already."""
        self.is_probe = is_probe
        self.has_succeeded = False
        self.has_failed = False


class Breaker:
    """The breaker of one deployment in one worker.

    Tell it when each attempt begins, and then its outcome. What counts are attempts that began since it was last
    closed, and the probe: whatever began before it opened, or went there while it was open since nothing else was left,
    neither closes it, nor keeps it open, nor opens it again later. Memory does not grow with traffic.
    """

    __slots__ = ("_cool_until", "_open_seconds", "_opened_at", "_period", "_probe", "_rules", "_seen")

    def __init__(self, rules: BreakerRules) -> None:
        self._rules = rules
        self._seen = _Window(rules.window_seconds)
        self._period = 0
        self._opened_at: float | None = None
        self._open_seconds = 0.0
        self._probe: Begun | None = None
        self._cool_until = -inf

    def state(self, now: float) -> BreakerState:
        """Return the state; a cool-down does not show in it."""
        if self._opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._open_until else BreakerState.HALF_OPEN

    def is_available(self, now: float) -> bool:
        """Tell whether attempts should go there: closed, or half-open without a probe, and in no cool-down."""
        return now >= self._cool_until and now >= self._open_until and self._probe is None

    def ready_at(self, now: float) -> float:
        """Return when it is available again, as far as time alone decides it: `now` too while a probe is under way."""
        return max(now, self._cool_until, self._open_until)

    def begin(self, now: float) -> Begun:
        """Note that an attempt begins, because it is available or although it is not.

        The first one that finds it half-open is the probe, be it in a cool-down.
        """
        if self._probe is None and self.state(now) is BreakerState.HALF_OPEN:
            self._probe = Begun(self._period + 1, is_probe=True)
            return self._probe
        return Begun(self._period)

    def succeeded(self, now: float, begun: Begun) -> None:
        """Note that a good answer came or began, once; an attempt that breaks off after that has `failed` as well.

        A probe closes the breaker, and is the first to count after that: what was seen before is forgotten.
        """
        begun.has_succeeded = True
        if begun is self._probe:
            self._close()
        if self._counts(begun):
            self._seen.add(now, ended=1)

    def failed(self, now: float, begun: Begun) -> None:
        """Note that an attempt failed, which may open the breaker; when a probe does, it is open for twice as long.

        One that had succeeded counts as failed in place of that; one that had failed before does not count again.
        """
        if begun.has_failed:
            return
        begun.has_failed = True
        if begun is self._probe:
            self._open(now, min(2 * self._open_seconds, self._rules.longest_open_seconds))
        elif self._counts(begun):
            self._seen.add(now, ended=0 if begun.has_succeeded else 1, failed=1)
            if self._seen.is_bad(now, self._rules):
                self._open(now, self._rules.open_seconds)

    def ended(self, begun: Begun) -> None:
        """Note that an attempt ended: one of which no outcome was told says nothing, and another may be the probe."""
        if begun is self._probe:
            self._probe = None

    def cool_down(self, until: float) -> None:
        """Keep attempts away until then; an earlier cool-down that ends later still does."""
        self._cool_until = max(self._cool_until, until)

    def adopt(self, rules: BreakerRules) -> None:
        """Take other rules and keep what was seen; who is open for longer than they allow is half-open at once."""
        self._rules = rules
        self._seen.stretch(rules.window_seconds)

    @property
    def _open_until(self) -> float:
        if self._opened_at is None:
            return -inf
        return self._opened_at + min(self._open_seconds, self._rules.longest_open_seconds)

    def _counts(self, begun: Begun) -> bool:
        return self._opened_at is None and begun.period == self._period

    def _open(self, now: float, seconds: float) -> None:
        self._opened_at = now
        self._open_seconds = seconds
        self._probe = None

    def _close(self) -> None:
        self._period += 1
        self._opened_at = None
        self._probe = None
        self._seen.forget()


@dataclass(slots=True)
class _Slice:
    """What was seen in one part of a window, which is the `number`th since the clock's zero."""

    number: int
    ended: int = 0
    failed: int = 0


class _Window:
    """How many attempts ended, and how many failed, in the last so many seconds."""

    __slots__ = ("_slice_seconds", "_slices")

    def __init__(self, seconds: float) -> None:
        self._slice_seconds = seconds / _SLICES
        self._slices: deque[_Slice] = deque(maxlen=_SLICES)

    def add(self, now: float, *, ended: int = 0, failed: int = 0) -> None:
        number = self._number(now)
        if not self._slices or self._slices[-1].number < number:
            self._slices.append(_Slice(number))
        self._slices[-1].ended += ended
        self._slices[-1].failed += failed

    def is_bad(self, now: float, rules: BreakerRules) -> bool:
        """Tell whether what failed is enough, in number and as a share.

        Of an attempt that broke off, the good beginning may be out of the window already: it counts as ended then too.
        """
        oldest = self._number(now) - _SLICES
        recent = [part for part in self._slices if part.number > oldest]
        failed = sum(part.failed for part in recent)
        ended = max(failed, sum(part.ended for part in recent))
        return failed >= rules.failures and failed / ended >= rules.share

    def forget(self) -> None:
        self._slices.clear()

    def stretch(self, seconds: float) -> None:
        """Be as long as this from now on; what was seen stays where it was in time."""
        was, self._slice_seconds = self._slice_seconds, seconds / _SLICES
        slices = list(self._slices)
        self._slices.clear()
        for part in slices:
            self.add(part.number * was, ended=part.ended, failed=part.failed)

    def _number(self, now: float) -> int:
        return int(now // self._slice_seconds)
