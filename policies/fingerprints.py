"""Which fingerprints of a deployment live, and which are retired (SPEC §6), as arithmetic.

A fingerprint is retired when the deployment has answered with another one and has not shown this one for the window
since; it lives again when it is shown again. Only answers count: silence retires nothing. The script
`see_fingerprint.lua` does the same. This file knows no clock, no store and no stored answer; times are Unix
milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_KEPT: Final = 32
"""So many fingerprints of a deployment are followed. Of more, the one goes that was unseen for longest, which is a
retired one if any is."""


class Sighting(msgspec.Struct, frozen=True, array_like=True):
    """One fingerprint of a deployment: when it was shown first and last.

    `other` is when another one was shown first since, 0 if none was; `retired` since when it is retired, 0 if it lives.
    """

    fingerprint: str
    first: int
    last: int
    other: int = 0
    retired: int = 0


def observe(
    known: Sequence[Sighting], fingerprint: str, at: int, window: int, *, most: int = MOST_KEPT
) -> tuple[Sighting, ...]:
    """Return what is known of a deployment's fingerprints after it answered with this one at `at`.

    Answers may be told in another order than they came: one that is older than what is known changes only what it can.
    """
    others = [each for each in known if each.fingerprint != fingerprint]
    before = next((each for each in known if each.fingerprint == fingerprint), None)
    since = min((each.last for each in others if each.last > at), default=0)
    shown = _shown(before, Sighting(fingerprint, at, at, since))
    seen = [shown if each is before else _beside(each, at, window) for each in known]
    if before is None:
        seen.append(shown)
    while len(seen) > most:
        seen.remove(min((each for each in seen if each is not shown), key=lambda each: each.last))
    return tuple(seen)


def retired(known: Sequence[Sighting]) -> frozenset[str]:
    """Return the fingerprints that are retired."""
    return frozenset(each.fingerprint for each in known if each.retired)


def _shown(before: Sighting | None, now: Sighting) -> Sighting:
    """Return what is known of a fingerprint after it was shown once more."""
    if before is None:
        return now
    if now.last <= before.last:
        return replace(before, first=min(before.first, now.first))
    return replace(now, first=before.first)


def _beside(sighting: Sighting, at: int, window: int) -> Sighting:
    """Return a fingerprint after another one was shown."""
    if at <= sighting.last:
        return sighting
    other = min(sighting.other or at, at)
    is_over = not sighting.retired and at - other >= window
    return replace(sighting, other=other, retired=at if is_over else sighting.retired)
