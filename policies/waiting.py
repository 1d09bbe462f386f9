"""How a request waits for room: for which limits it may, and when it looks again (SPEC §5).

Knows limits as they stood when somebody looked. Who is first in line is kept by the store, and waiting itself is done
elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.room import Room

LONGEST_PAUSE_MILLISECONDS: Final = 1_000
"""Whoever waits looks again at least so often: the store takes others for dead (`reservations.WAITER_LIFE…`)."""
_SHORTEST_PAUSE_MILLISECONDS: Final = 10
_HANDOVER_MILLISECONDS: Final = 100
"""Pause of the first in line where only what others hold is in the way; those behind pause so much longer each."""


class Place(NamedTuple):
    """A limit that a request waits for, and how many wait before it."""

    room: Room
    waiters_before: int = 0


def may_wait(room: Room, waited_milliseconds: int) -> bool:
    """Tell whether a request that does not fit may wait for a limit: if it would fit in time should all holds end."""
    patience = room.bound.limit.wait_milliseconds - waited_milliseconds
    wait = room.least_wait_milliseconds
    return room.can_ever_fit and wait is not None and patience > 0 and wait <= patience


def pause_milliseconds(places: Sequence[Place], waited_milliseconds: int) -> int:
    """Return how long to pause before looking again, unless one is woken; never beyond what a limit has one wait.

    There is at least one place.
    """
    pause = max(map(_pause_for, places))
    patience = min(place.room.bound.limit.wait_milliseconds for place in places) - waited_milliseconds
    return max(_SHORTEST_PAUSE_MILLISECONDS, min(pause, patience, LONGEST_PAUSE_MILLISECONDS))


def _pause_for(place: Place) -> int:
    return place.room.least_wait_milliseconds or _HANDOVER_MILLISECONDS * (1 + place.waiters_before)
