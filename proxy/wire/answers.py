"""The gateway's own fields on an answer: what the cache did, how old the answer is, what policy changed (SPEC §4, §6).

Reads the facts in an `Exchange` and writes header fields; decides nothing, and knows neither the answer's own headers
nor the limits'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from policies.cacheability import Bypass, Keyed
from policies.freshness import Fit, age_milliseconds, age_seconds, left_seconds
from proxy.exchange import CacheResult
from proxy.wire.fields import bare_item, member, members

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policies.cacheability import CachePlan
    from policies.requests.asked import Adjustment
    from proxy.exchange import Exchange, Headers
    from proxy.wire.fields import Bare

CACHE_NAME: Final = "tidegate"
"""How this cache calls itself in `Cache-Status`."""

_MAX_VALUE_CHARACTERS: Final = 64
_LONG_INTEGER: Final = 10**_MAX_VALUE_CHARACTERS


class Stored(Protocol):
    """What is asked of an entry that is replayed."""

    @property
    def created_milliseconds(self) -> int:
        """When it was stored, in Unix time."""

    @property
    def ttl_seconds(self) -> int | None:
        """For how long it was stored, where that is known."""


def answer_headers(exchange: Exchange, stored: Stored | None = None) -> Headers:
    """Return `Cache-Status`, on hits `Age`, and `x-tidegate-adjusted` where policy changed the request.

    `stored` is the entry that is replayed, None for an answer that was fetched. Nothing goes out before there is a
    decision.
    """
    decision = exchange.decision
    if decision is None:
        return []
    headers: Headers = [("Cache-Status", cache_status(exchange, stored))]
    if stored is not None:
        headers.append(("Age", str(age_seconds(_age_milliseconds(exchange, stored)))))
    if decision.adjustments:
        headers.append(("x-tidegate-adjusted", adjusted(decision.adjustments)))
    return headers


def _age_milliseconds(exchange: Exchange, stored: Stored) -> int:
    return age_milliseconds(stored.created_milliseconds, int(exchange.started_at * 1000))


def cache_status(exchange: Exchange, stored: Stored | None = None) -> str:
    """Write the value of `Cache-Status` (RFC 9211); `stored` is the entry of a hit.

    The parameter `stored` is left out on streams, whose head leaves before it is known.
    """
    decision = exchange.decision
    plan = None if decision is None else decision.cache
    if exchange.is_collapsed:
        return member(CACHE_NAME, {"fwd": CacheResult.MISS.value, "collapsed": True})
    if exchange.cache is CacheResult.HIT:
        left = None
        if isinstance(plan, Keyed) and stored is not None:
            left = left_seconds(plan, _age_milliseconds(exchange, stored), stored.ttl_seconds)
        return member(CACHE_NAME, {"hit": True, "ttl": left})
    is_stream = decision is not None and decision.effective.view.is_stream
    return member(
        CACHE_NAME,
        {
            "fwd": _why_forwarded(exchange),
            "stored": True if exchange.is_stored and not is_stream else None,
            "detail": _detail(exchange, plan),
        },
    )


def _detail(exchange: Exchange, plan: CachePlan | None) -> str | None:
    if exchange.items_known is not None:
        known, asked = exchange.items_known
        return f"{known} of {asked} items hit"
    return exchange.cache_reason or (plan.reason if isinstance(plan, Bypass) else None)


def _why_forwarded(exchange: Exchange) -> str:
    """Name the reason in RFC 9211's words; a client that wants no stored answer asked for it itself: `request`."""
    plan = None if exchange.decision is None else exchange.decision.cache
    if (isinstance(plan, Keyed) and not plan.look_up) or exchange.cache_reason == Fit.TOO_OLD:
        return "request"
    return exchange.cache.value


def adjusted(adjustments: Iterable[Adjustment]) -> str:
    """Write adjustments as a structured field: `n;from=8;to=4;rule=clamp`, in the order they were made."""
    return members(
        member(
            bare_item(_shown_text(each.parameter)),
            {"from": _shown(each.before), "to": _shown(each.after), "rule": each.action.value},
        )
        for each in adjustments
    )


def _shown(value: object) -> Bare | None:
    """Return what can stand in a header: numbers as they are where the syntax has room, anything long by its size."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < _LONG_INTEGER else _shown_text(str(value))
    if isinstance(value, str):
        return _shown_text(value)
    return f"{len(value)} items" if isinstance(value, list | dict) else None


def _shown_text(text: str) -> str:
    if len(text) <= _MAX_VALUE_CHARACTERS:
        return text
    return f"{text[: _MAX_VALUE_CHARACTERS - 3]}..."
