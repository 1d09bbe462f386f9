"""Is a stored answer still good for this request: age, time to live, and the client's bound (SPEC §6).

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
    RETIRED = "fingerprint"
    """Made by a configuration of the model that its deployment has left."""
    PURGED = "purged"
    """Fetched before it was purged."""


def judge(plan: Keyed, age_milliseconds: int, *, is_purged: bool = False, is_retired: bool = False) -> Fit:
    """Tell whether a stored answer may be served under a plan.

    `is_retired` says that its deployment no longer shows its fingerprint.
    """
    if is_purged:
        return Fit.PURGED
    if is_retired and plan.checks_fingerprint:
        return Fit.RETIRED
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


def left_seconds(plan: Keyed, age: int, stored_for_seconds: int | None = None) -> int:
    """Return for how long an answer of this age in milliseconds can be served: `ttl` of `Cache-Status`.

    `stored_for_seconds` is the life that the plan of its fetch gave it, after which it is gone whatever this plan says.
    """
    life = plan.ttl_seconds if stored_for_seconds is None else min(plan.ttl_seconds, stored_for_seconds)
    return max(0, life - age // _MILLISECONDS)
