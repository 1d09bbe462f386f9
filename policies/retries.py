"""Whether a failed attempt is followed by another one, at which deployment, and after which wait (SPEC §8).

Retries come only before the first byte reached the client. Knows statuses and waits; knows no socket, no clock, and
takes its random number as an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_ATTEMPTS = 3
"""Attempts at a request, all deployments together."""
MAX_WAIT_MILLISECONDS = 1000
"""Longest wait between two attempts; a longer Retry-After means another deployment, or the answer is passed on."""
RETRY_SHARE = 0.1
"""How much load repeating refused requests may add in all."""
MAX_SAVED_RETRIES = 10.0
"""Retries that quiet times may save up, and that a new process begins with."""

_FIRST_WAIT_MILLISECONDS = 100
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
    UNKNOWN = auto()
    """The request was sent and no answer came: the upstream may be at work on it, and billing it."""


@dataclass(frozen=True, slots=True)
class Failed:
    """One failed attempt at the candidate of this index.

    `wait_milliseconds` is what the upstream asked for; `may_repeat` is False where it (or a slow connect) speaks
    against trying the same deployment again.
    """

    candidate: int
    cause: Cause
    wait_milliseconds: int | None = None
    may_repeat: bool = True


@dataclass(frozen=True, slots=True)
class Again:
    """Try the candidate of this index after a wait."""

    candidate: int
    wait_milliseconds: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Make no further attempt: pass on the last answer, or say that there is none."""


def is_retryable(status: int) -> bool:
    """Tell whether an answer of this status may be different at the next attempt."""
    return status in {_REQUEST_TIMEOUT, _TOO_MANY_REQUESTS} or status in _SERVER_ERRORS


def after_failure(history: Sequence[Failed], candidates: int, jitter: float) -> Again | GiveUp:
    """Decide what follows the failed attempts so far (at least one); `jitter` is in [0, 1).

    A candidate that a stale connection did not reach comes first, and at once; then those that were not tried; then
    the one that is soonest ready again.
    """
    if history[-1].cause is Cause.UNKNOWN or len(history) >= MAX_ATTEMPTS:
        return GiveUp()
    if history[-1].cause is Cause.STALE:
        return Again(history[-1].candidate, 0)
    last = {failed.candidate: failed for failed in history}
    for candidate in range(candidates):
        if candidate not in last:
            return Again(candidate, 0)
    waits = [
        Again(candidate, _wait_milliseconds(failed, len(history), jitter))
        for candidate, failed in last.items()
        if failed.may_repeat
    ]
    soonest = min(waits, key=lambda again: again.wait_milliseconds, default=None)
    return soonest if soonest is not None and soonest.wait_milliseconds <= MAX_WAIT_MILLISECONDS else GiveUp()


def _wait_milliseconds(failed: Failed, attempts: int, jitter: float) -> int:
    if failed.wait_milliseconds is not None:
        return failed.wait_milliseconds
    longest: int = min(MAX_WAIT_MILLISECONDS, _FIRST_WAIT_MILLISECONDS << (attempts - 1))
    return round(longest * (1 + jitter) / 2)


def asked_wait_milliseconds(retry_after_ms: str | None, retry_after: str | None) -> int | None:
    """Read the wait that an upstream asked for; a date counts as longer than any wait of ours. None without one."""
    for text, factor in ((retry_after_ms, 1), (retry_after, 1000)):
        if text is None:
            continue
        try:
            wait = float(text) * factor
        except ValueError:
            if text is retry_after:
                return MAX_WAIT_MILLISECONDS + 1
            continue
        if 0 <= wait < float("inf"):
            return round(wait)
    return None


def earn(saved_retries: float) -> float:
    """Return the savings of retries after one more request."""
    return min(MAX_SAVED_RETRIES, saved_retries + RETRY_SHARE)


def can_spend(saved_retries: float) -> bool:
    """Tell whether the savings allow one more repetition of a refused request."""
    return saved_retries >= 1
