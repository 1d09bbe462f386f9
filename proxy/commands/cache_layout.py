"""How `tidegate cache` lays out for people what was purged, what stands in the cache, and how that does.

Knows the JSON values that `proxy/purges`, `proxy/cached_entries` and `proxy/cache_report` make. Keys and fingerprints
are never cut: whoever reads them may want to copy one.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from policies.freshness import Fit
from proxy.cached_entries import BYPASS, HIT, MISS, NO_CACHE, NOT_CONVERTIBLE, PARTIAL, REFUSED, UNREADABLE
from proxy.commands.table import LABEL_WIDTH, WIDTH, cut, labelled, printable, section
from proxy.commands.wording import duration_words, principal_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_NONE: Final = "–"
_LAST_MILLISECONDS: Final = 253_402_300_799_000
"""The end of the year 9999: what another may have written into the store is later, and cannot be written as a date."""
_MEBIBYTE: Final = 1024 * 1024
_KIBIBYTE: Final = 1024
_PURGED: Final = (("models", "model"), ("projects", "project"), ("keys", "key"), ("entries", "entry"))
_VERDICTS: Final = {
    HIT: "it would be served",
    MISS: "nothing stands there",
    UNREADABLE: "what stands there is of another version of Tidegate: it is fetched anew",
    NOT_CONVERTIBLE: "it cannot be had exactly in the form that is asked for: it is fetched anew",
    Fit.STALE: "older than its time to live: it is fetched anew",
    Fit.TOO_OLD: "older than the request's max-age: it is fetched anew",
    Fit.RETIRED: "its deployment shows another fingerprint by now: it is fetched anew",
    Fit.PURGED: "it was purged: it is fetched anew",
}


def purge_lines(told: dict[str, Any]) -> Iterator[str]:
    """Write for people what `describe_purge` returns."""
    named = [f"{word} {name}" for member, word in _PURGED for name in told[member]]
    yield from labelled("purged", ["everything" if told["all"] else ", ".join(named)])
    if told["reason"] is not None:
        yield from labelled("reason", [told["reason"]])
    yield from labelled("audit log", [told["audit_log"]])
    yield ""
    yield "Answers that were fetched before, or are being fetched, are served no more."


def entry_lines(told: dict[str, Any]) -> Iterator[str]:
    """Write for people what `describe_entries` returns."""
    yield from labelled("request", [cut(f"POST {printable(told['path'])}", WIDTH - LABEL_WIDTH)])
    yield from labelled("sender", [principal_words(told["principal"])])
    if told["verdict"] == REFUSED:
        error = told["error"]
        yield from labelled(
            "verdict", [f"refused: {told['status']} {error['code'] or error['type']}", error["message"]]
        )
        return
    yield from labelled("model", [told["model"]["name"]])
    yield from labelled("verdict", [_verdict(told)])
    if told["is_array"]:
        yield from section("items", _items(told["entries"]), right=(0, 3, 4, 5), width=sys.maxsize)
    else:
        for entry in told["entries"]:
            yield from _entry(entry)


def _verdict(told: Mapping[str, Any]) -> str:
    verdict, reason = told["verdict"], told["reason"]
    if verdict == BYPASS:
        return f"not cacheable: {reason}"
    if verdict == HIT:
        return "hit: it would be served from the cache"
    if verdict == PARTIAL:
        return "partial: some items would be served from the cache, the others fetched"
    if reason == NO_CACHE:
        return "miss: the request says no-cache"
    return f"miss: {_VERDICTS[reason or MISS]}"


def _entry(entry: Mapping[str, Any]) -> Iterator[str]:
    yield from labelled("key", [entry["key"]])
    if "form" not in entry:
        return
    size = f"{bytes_words(entry['body_bytes'])}, {bytes_words(entry['stored_bytes'])} in the store"
    yield from labelled("entry", [f"{entry['form']}, {entry['content_type']}, {size}"])
    left = duration_words(entry["left_seconds"]) if entry["left_seconds"] else "none"
    made = time_words(entry["created_milliseconds"])
    yield from labelled("age", [f"{duration_words(entry['age_seconds'])}, of {made}; left {left}"])
    yield from labelled("answered by", [f"{entry['deployment'] or _NONE}, model {entry['model'] or _NONE}"])
    yield from labelled("fingerprint", [_fingerprint(entry)])
    purged = " (purged)" if entry["is_purged"] else ""
    yield from labelled("generation", [f"{entry['generation']}{purged}"])
    yield from labelled("paid by", [_provider(entry["provider"]), f"request {entry['request_id'] or _NONE}"])
    yield from labelled("usage", [_usage(entry["usage"])])


def _fingerprint(entry: Mapping[str, Any]) -> str:
    if not entry["fingerprint"]:
        return "none"
    since = entry["fingerprint_retired_milliseconds"]
    return f"{entry['fingerprint']}, " + ("live" if since is None else f"retired since {time_words(since)}")


def _provider(provider: Mapping[str, Any] | None) -> str:
    if provider is None:
        return "unknown"
    kind = "service account" if provider["is_service_account"] else "user"
    return f"key {provider['key'] or _NONE} of {kind} {provider['owner'] or _NONE}, project {provider['project']}"


def _usage(usage: Mapping[str, int] | None) -> str:
    if usage is None:
        return "not reported"
    return f"{usage['input_tokens']} input tokens, {usage['output_tokens']} output tokens"


def _items(entries: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    yield "item", "key", "verdict", "bytes", "age", "left"
    for position, each in enumerate(entries):
        if "form" in each:
            ends = (str(each["body_bytes"]), *(duration_words(each[f"{name}_seconds"]) for name in ("age", "left")))
        else:
            ends = (_NONE, _NONE, _NONE)
        yield str(position), each["key"], each["verdict"], *ends


def bodies(told: dict[str, Any], *, is_for_people: bool) -> Iterator[str]:
    """Yield the stored bodies in order, one after another; for people without what could steer their terminal."""
    for entry in told["entries"]:
        if "body" not in entry:
            continue
        body = entry["body"]
        if is_for_people:
            body = "\n".join(map(printable, body.split("\n")))
        yield body if body.endswith("\n") else f"{body}\n"


def status_lines(told: dict[str, Any]) -> Iterator[str]:
    """Write for people what `describe_report` returns."""
    yield from labelled("store", [_store(told["store"])])
    workers = told["workers"]
    if workers is None:
        yield from labelled("workers", [f"not told: {told['workers_unknown']}"])
    else:
        memory = workers["memory"]
        yield from labelled("memory", [f"{memory['entries']} entries, {bytes_words(memory['bytes'])}, of all workers"])
        yield from labelled("stored", [f"{workers['stored']} since the start"])
    yield from section("fingerprints", _fingerprints(told["fingerprints"]), width=sys.maxsize)
    yield from section("purges", _purges(told["purges"]), width=sys.maxsize)
    if workers is not None:
        yield from section("look-ups", _lookups(workers), right=(2,))
        yield from section("drift", _drift(workers["drift"]), right=(1, 2, 3, 4))


def _store(store: Mapping[str, Any] | None) -> str:
    if store is None:
        return "a cluster, whose servers are not asked"
    most = "" if store["max_bytes"] is None else f" of {bytes_words(store['max_bytes'])}"
    used = f"{bytes_words(store['used_bytes'])}{most}"
    if store["is_shared"]:
        return f"{used}, limits and records included: cache_state is the server of state"
    return f"{store['entries']} entries, {used}"


def _fingerprints(fingerprints: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    if fingerprints:
        yield "deployment", "model", "fingerprint", "first seen", "last seen", "state"
    for each in fingerprints:
        since = each["retired_milliseconds"]
        state = "live" if since is None else f"retired since {time_words(since)}"
        seen = (time_words(each[f"{name}_seen_milliseconds"]) for name in ("first", "last"))
        yield each["deployment"], each["model"], each["fingerprint"], *seen, state


def _purges(purges: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    if purges:
        yield "purged", "what was fetched before"
    for each in purges:
        what = "everything" if each["kind"] == "all" else f"{each['kind']} {each['name']}"
        yield what, time_words(each["generation"])


def _lookups(workers: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    if workers["lookups"]:
        yield "result", "reason", "requests"
    for result, requests in workers["lookups"].items():
        yield result, "", str(requests)
        for each in workers["reasons"]:
            if each["result"] == result:
                yield "", each["reason"], str(each["requests"])


def _drift(drift: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    if drift:
        yield "model", "same", "different", "failed", "divergence"
    for each in drift:
        share = _NONE if each["divergence"] is None else f"{each['divergence']:.2%}"
        yield each["model"], *(str(each[name]) for name in ("same", "different", "failed")), share


def time_words(milliseconds: int) -> str:
    """Write a moment, in Unix milliseconds, as people do, in UTC."""
    moment = datetime.fromtimestamp(min(milliseconds, _LAST_MILLISECONDS) / 1000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"


def bytes_words(count: int) -> str:
    """Write a size in the unit that gives it few digits."""
    if count < _KIBIBYTE:
        return f"{count} bytes"
    unit, name = (_MEBIBYTE, "MiB") if count >= _MEBIBYTE else (_KIBIBYTE, "KiB")
    return f"{count / unit:.1f} {name}"
