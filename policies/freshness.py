"""Is a stored answer still good for this request: age, time to live, the client's bound, and form (SPEC §6).

Arithmetic on numbers that it is given; it knows no clock, no entry and no store.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from policies.cacheability import Keyed

_MILLISECONDS: Final = 1000


class Fit(StrEnum):
    """How a stored answer fits a request; the value is a reason for metrics and `Cache-Status`."""

    GOOD = "good"
    STALE = "stale"
    """Older than its time to live."""
    TOO_OLD = "max-age"
    """Fresh, and older than the client takes."""
    OTHER_FORM = "other-form"
    """A stream where a whole answer is asked for, or the reverse."""


def judge(plan: Keyed, *, age_milliseconds: int, is_stored_stream: bool, wants_stream: bool) -> Fit:
    """Tell whether a stored answer may be served under a plan."""
    if is_stored_stream is not wants_stream:
        return Fit.OTHER_FORM
    if age_milliseconds >= plan.ttl_seconds * _MILLISECONDS:
        return Fit.STALE
    if plan.max_age_seconds is not None and age_milliseconds >= plan.max_age_seconds * _MILLISECONDS:
        return Fit.TOO_OLD
    return Fit.GOOD


def age_milliseconds(created_milliseconds: int, now_milliseconds: int) -> int:
    """Return how old an answer is; never negative, though its writer's clock may be ahead of the reader's."""
    return max(0, now_milliseconds - created_milliseconds)


def age_seconds(age: int) -> int:
    """Return what the `Age` field says of an age in milliseconds: whole seconds that have passed."""
    return age // _MILLISECONDS


def left_seconds(plan: Keyed, age: int) -> int:
    """Return for how long an answer of this age in milliseconds stays fresh: `ttl` of `Cache-Status`."""
    return plan.ttl_seconds - age // _MILLISECONDS
