"""Whether a failed attempt is followed by another one, at which deployment, and after which wait (SPEC §8).

Retries come only before the first byte reached the client. Knows statuses and waits; knows no socket, no clock, and
takes its random number as an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

LONG_WAIT_MILLISECONDS = 86_400_000
"""A wait that nobody makes: what a Retry-After comes to whose date cannot be compared with another one."""
RETRY_SHARE = 0.1
"""How much load repeating refused requests may add in all."""
MAX_SAVED_RETRIES = 10.0
"""Retries that quiet times may save up, and that a new process begins with."""

_FIRST_WAIT_MILLISECONDS = 100
_HTTP_DATE = "%a, %d %b %Y %H:%M:%S GMT"
_REQUEST_TIMEOUT = 408
_TOO_MANY_REQUESTS = 429
_SERVER_ERRORS = range(500, 600)


class Cause(Enum):
    """Why an attempt failed, as far as it matters for the next one."""

    UNREACHABLE = auto()
    """No connection: the request was not sent."""
    STALE = auto()
    """A connection that was kept from before was gone: the request was not read."""
    REFUSED = auto()
    """An answer came, with a status that may be better next time."""
    UNUSABLE = auto()
    """An answer came that only another deployment can mend: a bad credential of ours, a redirect, a page, garbage."""
    BROKEN = auto()
    """The request was sent, and the connection broke before the answer was whole."""
    UNKNOWN = auto()
    """The request was sent and no answer came in time: the upstream may be at work on it, and billing it."""


_REPEATABLE: Final = frozenset({Cause.UNREACHABLE, Cause.STALE, Cause.REFUSED})
"""After these the same deployment may be tried again; after the others another one at most."""


@dataclass(frozen=True, slots=True)
class Failed:
    """One failed attempt at the candidate in this place of the order to try them.

    `wait_milliseconds` is what the upstream asked for; `may_repeat` is False where it (or a slow connect) speaks
    against trying the same deployment again.
    """

    candidate: int
    cause: Cause
    wait_milliseconds: int | None = None
    may_repeat: bool = True


@dataclass(frozen=True, slots=True)
class Again:
    """Try the candidate in this place of the order after a wait."""

    candidate: int
    wait_milliseconds: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Make no further attempt: pass on the last answer, or say that there is none."""


def is_retryable(status: int) -> bool:
    """Tell whether an answer of this status may be different at the next attempt."""
    return status in {_REQUEST_TIMEOUT, _TOO_MANY_REQUESTS} or status in _SERVER_ERRORS


def after_failure(
    history: Sequence[Failed],
    candidates: int,
    jitter: float,
    *,
    max_attempts: int,
    max_wait_milliseconds: int,
) -> Again | GiveUp:
    """Decide what follows the failed attempts so far (at least one); `jitter` is in [0, 1).

    What one connection that was gone did not let through is sent again to the same candidate, at once, and none of
    `max_attempts` is used up. Else those come first that were not tried, in their order; then the one that is soonest
    ready again, if it is within `max_wait_milliseconds`.
    """
    last = history[-1]
    stale = sum(failed.cause is Cause.STALE for failed in history)
    attempts = len(history) - min(stale, 1)
    if last.cause is Cause.STALE and stale == 1:
        return Again(last.candidate, 0)
    if last.cause is Cause.UNKNOWN or attempts >= max_attempts:
        return GiveUp()
    latest = {failed.candidate: failed for failed in history}
    for candidate in range(candidates):
        if candidate not in latest:
            return Again(candidate, 0)
    longest = min(max_wait_milliseconds, _FIRST_WAIT_MILLISECONDS << (attempts - 1))
    own_wait = round(longest * (1 + jitter) / 2)
    waits = [
        Again(candidate, own_wait if failed.wait_milliseconds is None else failed.wait_milliseconds)
        for candidate, failed in latest.items()
        if failed.may_repeat and failed.cause in _REPEATABLE
    ]
    soonest = min(waits, key=lambda again: again.wait_milliseconds, default=None)
    return soonest if soonest is not None and soonest.wait_milliseconds <= max_wait_milliseconds else GiveUp()


def asked_wait_milliseconds(retry_after_ms: str | None, retry_after: str | None, date: str | None = None) -> int | None:
    """Read the wait that an upstream asked for in either field; None without one.

    One that ends at a date is as long as from the answer's own `date`, whatever our clock says; without that it is
    LONG_WAIT_MILLISECONDS.
    """
    wait = _milliseconds(retry_after_ms, 1)
    if wait is None:
        wait = _milliseconds(retry_after, 1000)
    return _until(retry_after, date) if wait is None and retry_after is not None else wait


def _milliseconds(text: str | None, factor: int) -> int | None:
    try:
        wait = float(text or "") * factor
    except ValueError:
        return None
    return round(wait) if 0 <= wait < inf else None


def _until(retry_after: str, date: str | None) -> int | None:
    until, now = _moment(retry_after), _moment(date or "")
    if until is None:
        return None
    if now is None:
        return LONG_WAIT_MILLISECONDS
    wait = (until - now) // timedelta(milliseconds=1)
    return wait if wait >= 0 else None


def _moment(text: str) -> datetime | None:
    """Read a date as HTTP writes it (RFC 9110 §5.6.7, but for the obsolete forms)."""
    try:
        return datetime.strptime(text, _HTTP_DATE).replace(tzinfo=UTC)
    except ValueError:
        return None


def earn(saved_retries: float) -> float:
    """Return the savings of retries after one more request."""
    return min(MAX_SAVED_RETRIES, saved_retries + RETRY_SHARE)


def can_spend(saved_retries: float) -> bool:
    """Tell whether the savings allow one more repetition of a refused request."""
    return saved_retries >= 1
