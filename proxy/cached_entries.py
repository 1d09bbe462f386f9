"""What stands in the cache for a request: read from the stores, judged as a worker would, and told as JSON values.

Takes nothing and leaves nothing. Workers' own memory is not looked into: what it has stands in the store, unless that
has made room since. Knows no command and no page.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from policies import freshness
from policies.cacheability import Bypass, Keyed
from policies.errors import Rejection
from policies.freshness import Fit
from proxy.answer_cache import in_form
from proxy.explanation import describe
from proxy.store import keys as store_keys
from proxy.store.cache_state import Copy, Origin
from proxy.store.entries import StoredAnswer
from proxy.store.reservations import store_now
from proxy.store.sightings import cut, read_fingerprints

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policies.decision import Decision
    from proxy.explanation import Explained
    from proxy.store.cluster import AnswerStore
    from proxy.store.connection import Store
    from proxy.store.sightings import Shown

HIT: Final = "hit"
MISS: Final = "miss"
PARTIAL: Final = "partial"
REFUSED: Final = "refused"
BYPASS: Final = "bypass"
UNREADABLE: Final = "unreadable"
NOT_CONVERTIBLE: Final = "not-convertible"
NO_CACHE: Final = "no-cache"

_KEYS_AT_ONCE: Final = 32
"""Of an array's items; their answers may be large, and have to come within the store's bound."""


@dataclass(frozen=True, slots=True)
class CachedEntry:
    """What stands under one cache key: `stored_bytes` in the store, 0 where nothing does.

    `answer` is None for nothing, and for what this build cannot read. `fit` tells whether it may be served, `age` and
    `retired` are milliseconds: how old it is, and since when (Unix time) its fingerprint is retired, 0 if it is not.
    """

    key: str
    stored_bytes: int = 0
    answer: StoredAnswer | None = None
    fit: Fit | None = None
    age: int = 0
    is_purged: bool = False
    retired: int = 0


def plan_of(explained: Explained) -> Keyed | None:
    """Return under which keys the cache is asked for a request; None where it is refused, or not cacheable."""
    outcome = explained.outcome
    if isinstance(outcome, Rejection) or isinstance(outcome.cache, Bypass):
        return None
    return outcome.cache


async def read_cached(state: Store, cache: AnswerStore, organization: str, plan: Keyed) -> tuple[CachedEntry, ...]:
    """Return what stands under the key of a request; of an array that is answered item by item, under each item's.

    Raises StoreUnavailable.
    """
    keys = plan.items or (plan.key,)
    distinct = tuple(dict.fromkeys(keys))
    copy = Copy.read(await state.command("HGETALL", store_keys.Keys(organization).cache))
    shown = await read_fingerprints(state, organization)
    found: dict[str, CachedEntry] = {}
    for start in range(0, len(distinct), _KEYS_AT_ONCE):
        asked = distinct[start : start + _KEYS_AT_ONCE]
        replies = await asyncio.gather(*(cache.send("GET", store_keys.stored(key)) for key in asked))
        now = store_now(state)
        found.update((key, _read(plan, key, raw, copy, shown, now)) for key, raw in zip(asked, replies, strict=True))
    return tuple(found[key] for key in keys)


def _read(  # noqa: PLR0913, PLR0917  what is known of an entry comes from all of them
    plan: Keyed, key: str, raw: bytes | None, copy: Copy, shown: Sequence[Shown], now: int
) -> CachedEntry:
    answer = StoredAnswer.unpack(raw, key)
    if answer is None:
        return CachedEntry(key, len(raw or b""))
    age = freshness.age_milliseconds(answer.created_milliseconds, now)
    is_purged = copy.is_purged(Origin.of(answer, key))
    retired = _retired_since(answer, shown)
    fit = freshness.judge(plan, age, is_purged=is_purged, is_retired=retired > 0)
    return CachedEntry(key, len(raw or b""), answer, fit, age, is_purged, retired)


def _retired_since(answer: StoredAnswer, shown: Sequence[Shown]) -> int:
    """Return since when an answer's fingerprint is retired, in Unix milliseconds; 0 if it is not."""
    if not answer.fingerprint:
        return 0
    of_deployment = (each.sightings for each in shown if each.deployment == answer.deployment)
    named = cut(answer.fingerprint)
    return next((each.retired for each in next(of_deployment, ()) if each.fingerprint == named), 0)


def describe_entries(
    explained: Explained, entries: Sequence[CachedEntry] = (), *, with_body: bool = False
) -> dict[str, Any]:  # a JSON document
    """Tell under which keys the cache is asked for a request, what stands there, and whether it would be served.

    `entries` are those of the request's plan, if it is cacheable. `with_body`: with each stored body, as text.
    """
    told = describe(explained)
    if isinstance(explained.outcome, Rejection):
        return {**told, "verdict": REFUSED, "reason": None, "entries": []}
    plan = explained.outcome.cache
    described = [_describe_entry(each, explained.outcome, with_body=with_body) for each in entries]
    verdict, reason = (BYPASS, plan.reason) if isinstance(plan, Bypass) else _sum_up(plan, described)
    return {
        **{name: told[name] for name in ("path", "principal", "model", "cache")},
        "verdict": verdict,
        "reason": reason,
        "is_array": isinstance(plan, Keyed) and bool(plan.items),
        "entries": described,
    }


def _sum_up(plan: Keyed, entries: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """Return the verdict on a request, and why nothing is served where one reason is all there is."""
    if not plan.look_up:
        return MISS, NO_CACHE
    found = {each["verdict"] for each in entries}
    if found == {HIT}:
        return HIT, None
    reasons = found - {HIT, MISS}
    return PARTIAL if HIT in found else MISS, reasons.pop() if len(reasons) == 1 else None


def _describe_entry(entry: CachedEntry, decision: Decision, *, with_body: bool) -> dict[str, Any]:
    answer, plan = entry.answer, decision.cache
    told: dict[str, Any] = {"key": entry.key, "verdict": _verdict(entry, decision), "stored_bytes": entry.stored_bytes}
    if answer is None or isinstance(plan, Bypass):
        return told
    return {
        **told,
        "form": "stream" if answer.is_stream else "whole",
        "content_type": answer.content_type,
        "body_bytes": len(answer.body),
        "created_milliseconds": answer.created_milliseconds,
        "age_seconds": freshness.age_seconds(entry.age),
        "left_seconds": freshness.left_seconds(plan, entry.age, answer.ttl_seconds),
        "model": answer.model,
        "asked_model": answer.asked_model,
        "deployment": answer.deployment,
        "fingerprint": answer.fingerprint,
        "fingerprint_retired_milliseconds": entry.retired or None,
        "generation": answer.generation,
        "is_purged": entry.is_purged,
        "provider": None if answer.provider is None else structs.asdict(answer.provider),
        "request_id": answer.request_id,
        "usage": None if answer.usage is None else asdict(answer.usage),
        **({"body": answer.body.decode(errors="replace")} if with_body else {}),
    }


def _verdict(entry: CachedEntry, decision: Decision) -> str:
    """Say whether an entry would be served in the form that was asked for, or why not."""
    if entry.answer is None:
        return UNREADABLE if entry.stored_bytes else MISS
    if entry.fit is not None and entry.fit is not Fit.GOOD:
        return entry.fit.value
    effective = decision.effective
    is_item = isinstance(decision.cache, Keyed) and bool(decision.cache.items)
    is_stream = effective.view.is_stream and not is_item
    return NOT_CONVERTIBLE if in_form(entry.answer, effective.endpoint, is_stream=is_stream) is None else HIT
