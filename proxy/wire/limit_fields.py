"""Limits as header fields: OpenAI's six `x-ratelimit-…`, and the IETF's `RateLimit` and `RateLimit-Policy` (SPEC §5).

Writes what `policies/room.py` says; the draft's syntax stands here and nowhere else. Requests and concurrent requests
have registered units, the others are named by ourselves; amounts of usd are whole micro-dollars, as all numbers there
are integers.
"""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from policies.room import ceil_seconds
from proxy.wire.fields import bare_item, member, members, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policies.quantities import Counted
    from policies.room import Room
    from proxy.exchange import Headers

_UNITS: Final[Mapping[Counted, str | None]] = {
    "requests": None,  # the draft's default
    "tokens": "tidegate-tokens",
    "input_tokens": "tidegate-input-tokens",
    "output_tokens": "tidegate-output-tokens",
    "completions": "tidegate-completions",
    "usd": "tidegate-microdollars",
    "concurrency": "concurrent-requests",
}
_REPORTED: Final = ("requests", "tokens")
_LEFT_AND_RESET: Final = itemgetter(0, 1)
_MILLISECONDS: Final = 1_000
_SECONDS_PER_MINUTE: Final = 60
_SECONDS_PER_HOUR: Final = 3_600


def limit_headers(rooms: Sequence[Room], *, retry_after_seconds: int | None = None) -> Headers:
    """Return the limit headers of an answer; on a refusal no reset is shorter than its Retry-After.

    What is held resets as if it were spent now: a stream's head leaves before it is settled. Limits that are only
    observed are no client's business, and are left out.
    """
    rooms = [_used_up(room) for room in rooms if not room.bound.is_observed]
    if not rooms:
        return []
    headers: Headers = []
    for quantity in _REPORTED:
        headers += _openai_fields(rooms, quantity, (retry_after_seconds or 0) * _MILLISECONDS)
    headers.append(("RateLimit-Policy", members(_policy_member(room) for room in rooms)))
    headers.append(("RateLimit", members(_state_member(room) for room in rooms)))
    return headers


def _used_up(room: Room) -> Room:
    level = room.level
    return replace(room, level=replace(level, spent=level.spent + level.held, held=0)) if level.held else room


def _openai_fields(rooms: Sequence[Room], quantity: str, least_reset_milliseconds: int) -> Headers:
    """Tell the tightest limit of a quantity: the one with the least left, of those the one that resets last.

    As a limit these fields mean what fits into one that nothing is taken from: its burst, where it has one.
    """
    candidates = [
        (room.left, -room.reset_milliseconds, room.bound.tank.capacity)
        for room in rooms
        if room.bound.limit.of == quantity
    ]
    if not candidates:
        return []
    left, reset, capacity = min(candidates, key=_LEFT_AND_RESET)
    return [
        (f"x-ratelimit-limit-{quantity}", str(capacity)),
        (f"x-ratelimit-remaining-{quantity}", str(left)),
        (f"x-ratelimit-reset-{quantity}", duration(max(-reset, least_reset_milliseconds))),
    ]


def _policy_member(room: Room) -> str:
    bound = room.bound
    return _quota(bound.name, bound.named.quota, bound.limit.of, room.window_seconds)


@lru_cache(maxsize=4096)
def _quota(name: str, quota: int, quantity: Counted, window_seconds: int | None) -> str:
    """Write a quota; there are few, and each is told with every answer."""
    unit = _UNITS[quantity]
    parts = (
        member(quoted(name), {"q": quota}),
        unit and f"qu={quoted(unit)}",
        window_seconds and f"w={window_seconds}",
    )
    return ";".join(part for part in parts if part)


def _state_member(room: Room) -> str:
    more = room.more_milliseconds
    state = f"{_item(room.bound.name)};r={bare_item(room.left)}"
    return f"{state};t={bare_item(ceil_seconds(more))}" if more else state


_item: Final = lru_cache(maxsize=4096)(quoted)


def duration(milliseconds: int) -> str:
    """Write a time as OpenAI does: `17ms`, `1s`, `6m0s`, `1h0m0s`; from a second on rounded up to whole seconds."""
    if milliseconds < _MILLISECONDS:
        return f"{milliseconds}ms" if milliseconds else "0s"
    seconds = ceil_seconds(milliseconds)
    hours, rest = divmod(seconds, _SECONDS_PER_HOUR)
    minutes, seconds = divmod(rest, _SECONDS_PER_MINUTE)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
