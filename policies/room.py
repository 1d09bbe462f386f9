"""What room limits have for a request: how much is left, when it fits, and what a refusal says (SPEC §5).

Knows levels and windows as values that somebody else read; how they go out as headers is in `proxy/wire/limit_fields`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from policies import windows
from policies.limits import MORE_THAN_ANY, level_words, quota_words
from policies.requests.asked import Action, Adjustment
from policies.windows import MAX_COUNT, Rolling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.limits import BoundLimit
    from policies.windows import Level, Span, Tank

_MILLISECONDS: Final = 1_000
_HELD_WAIT_MILLISECONDS: Final = 5_000
"""Wait to advise where only what others hold is in the way: they settle when their answers end."""
_RETURNED_WAIT_MILLISECONDS: Final = 1_000
"""Likewise for concurrency."""
_AWAY_WAIT_MILLISECONDS: Final = 5_000
"""Likewise where the ask is within the limit and above a worker's share of it: until the store is back."""


class Room(msgspec.Struct, frozen=True):
    """One limit as it stood at `level.at`.

    `tank` is the limit in numbers, or a worker's share of it; `span` the calendar window that counts, None for others;
    `ahead` what is asked for by requests that wait for the limit and came before.
    """

    bound: BoundLimit
    level: Level
    tank: Tank
    span: Span | None = None
    ahead: int = 0

    @property
    def claimed(self) -> Level:
        """The level with what is asked for ahead as if it were held."""
        return replace(self.level, held=self.level.held + self.ahead) if self.ahead else self.level

    @property
    def left(self) -> int:
        """How much more fits."""
        return windows.left(self.claimed, self.tank)

    @property
    def fits(self) -> bool:
        """Whether the request's ask fits beside what is spent, held, and asked for ahead."""
        return windows.fits(self.claimed, self.tank, self.bound.ask, self.level.at)

    @property
    def refuses(self) -> bool:
        """Whether the limit is in the request's way: it does not fit, and more is done about it than to observe it."""
        return not (self.bound.is_observed or self.fits)

    @property
    def can_ever_fit(self) -> bool:
        """Whether the ask is within the limit at all, whatever a worker's share of it is."""
        return self.bound.ask <= self.bound.tank.capacity

    @property
    def window_seconds(self) -> int | None:
        """Length of the window, at least 1; None where there is none."""
        if self.span is not None:
            return (self.span.end - self.span.start) // _MILLISECONDS
        window = self.bound.window
        return max(1, window.milliseconds // _MILLISECONDS) if isinstance(window, Rolling) else None

    @property
    def reset_milliseconds(self) -> int:
        """Time until nothing of the limit is spent any more, nor held in a calendar window; 0 if that is so now."""
        if self.span is not None:
            return self._until_span_ends() if self.level.spent or self.level.held else 0
        return windows.empty_in(self.level, self.tank)

    @property
    def more_milliseconds(self) -> int:
        """Time until there is more room than now; 0 if nothing is spent."""
        if self.span is not None:
            return self.reset_milliseconds
        return windows.next_in(self.level, self.tank)

    @property
    def wait_milliseconds(self) -> int | None:
        """Time until the ask fits; 0 if it does now, None if it never will."""
        if not self.can_ever_fit:
            return None
        if self.fits:
            return 0
        if self.bound.ask > self.tank.capacity:
            return _AWAY_WAIT_MILLISECONDS
        wait = self._until_span_ends() if self.span is not None else self._refilled_in()
        if windows.is_blocked_by_holds(self.claimed, self.tank, self.bound.ask):
            return min(wait, _HELD_WAIT_MILLISECONDS)
        return wait

    @property
    def least_wait_milliseconds(self) -> int | None:
        """Time until the ask fits should all holds end now and nobody be ahead; None if time cannot do it."""
        level = replace(self.level, held=0)
        if windows.fits(level, self.tank, self.bound.ask, level.at):
            return 0
        if self.span is not None and self.can_ever_fit:
            return self._until_span_ends()
        return windows.fits_in(level, self.tank, self.bound.ask)

    def _refilled_in(self) -> int:
        wait = windows.fits_in(self.claimed, self.tank, self.bound.ask)
        return _RETURNED_WAIT_MILLISECONDS if wait is None else wait

    def _until_span_ends(self) -> int:
        return 0 if self.span is None else max(0, self.span.end - self.level.at)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused: the limit that is in its way longest, and what to tell.

    `retry_after_seconds` is rounded up and at least 1; None if the request can never fit.
    """

    room: Room
    message: str
    code: str
    retry_after_seconds: int | None


def refuse(blocking: Sequence[Room]) -> Refusal:
    """Say no for the limits that have no room, of which there is at least one."""
    never = [room for room in blocking if room.wait_milliseconds is None]
    room = never[0] if never else max(blocking, key=lambda room: room.wait_milliseconds or 0)
    wait = room.wait_milliseconds
    seconds = None if wait is None else max(1, ceil_seconds(wait))
    code = "insufficient_quota" if room.bound.named.is_budget else "rate_limit_exceeded"
    return Refusal(room, _message(room, seconds), code, seconds)


def would_refuse(bound: BoundLimit, left: int) -> Adjustment:
    """Tell of a limit that is observed that it would have refused a request, with so much left before it."""
    return Adjustment(parameter=bound.name, before=bound.ask, after=left, action=Action.REJECT, policy=bound.policy)


def ceil_seconds(milliseconds: int) -> int:
    """Return whole seconds, rounded up."""
    return -(-milliseconds // _MILLISECONDS)


def _message(room: Room, seconds: int | None) -> str:
    bound, write = room.bound, room.bound.named.quantity.write
    per = "" if bound.limit.per is None else f" per {bound.limit.per}"
    never = "ask for less, or have the limit raised" if bound.named.holds else "have the limit raised"
    when = f"it can never fit: {never}" if seconds is None else f"it fits in {_duration_words(seconds)}"
    return (
        f"Limit {bound.name!r} of policy {bound.policy!r} ({quota_words(bound)}{per} for {level_words(bound)}) "
        f"has no room for this request: {_asked(bound)}{write(room.left)} left; {when}."
    )


def _asked(bound: BoundLimit) -> str:
    """Say how much a request asks for; nothing where any room would do."""
    if not bound.named.holds:
        return ""
    write = bound.named.quantity.write
    return f"it asks for {write(bound.ask) if bound.ask < MORE_THAN_ANY else f'more than {write(MAX_COUNT)}'}, "


def _duration_words(seconds: int) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds} s (about {round(seconds / size)} {unit})"
    return f"{seconds} s"
