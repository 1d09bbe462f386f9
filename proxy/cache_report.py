"""The state of the cache as an operator asks for it: fingerprints, purges, how full it is, and what came of look-ups.

What stands in the stores is read here; what the running workers have counted comes from their page of metrics, for
whoever has that. Knows no command and no page.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from proxy.metrics_page import read_page
from proxy.store.cache_state import Copy
from proxy.store.keys import Keys
from proxy.store.occupancy import read_occupancy
from proxy.store.sightings import read_fingerprints

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from policies.fingerprints import Sighting
    from proxy.metrics_page import Sample
    from proxy.store.cluster import AnswerStore
    from proxy.store.connection import Store
    from proxy.store.occupancy import Occupancy
    from proxy.store.sightings import Shown

LOOKUPS: Final = "cache_lookups_total"
STORES: Final = "cache_stores_total"
DRIFT_CHECKS: Final = "cache_divergence_total"
MEMORY_BYTES: Final = "cache_memory_bytes"
MEMORY_ENTRIES: Final = "cache_memory_entries"
"""The metrics that are told of, as they are declared."""

_NO_REASON: Final = "none"
_DIFFERENT: Final = "different"
_SAME: Final = "same"
_FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class CacheReport:
    """What the stores tell of a cache: its epoch and purges, fingerprints by deployment, and how full its store is.

    `occupancy` is None for a cluster. Where the store `is_shared`, more than cached answers stand on it.
    """

    state: Copy
    shown: tuple[Shown, ...]
    occupancy: Occupancy | None
    is_shared: bool


async def read_report(state: Store, cache: AnswerStore, organization: str) -> CacheReport:
    """Ask both stores, which may be one, and change nothing. Raises StoreUnavailable."""
    fields, shown, occupancy = await asyncio.gather(
        state.command("HGETALL", Keys(organization).cache),
        read_fingerprints(state, organization),
        read_occupancy(cache),
    )
    return CacheReport(Copy.read(fields), shown, occupancy, is_shared=cache is state)


def describe_report(report: CacheReport, page: bytes | None = None) -> dict[str, Any]:  # a JSON document
    """Tell what is known; of what only the workers have counted, None without a page of their metrics.

    Times are Unix milliseconds of the store.
    """
    return {
        "fingerprints": [_describe_sighting(shown, sighting) for shown in report.shown for sighting in shown.sightings],
        "purges": list(_describe_purges(report.state)),
        "generation": report.state.epoch,
        "store": _describe_store(report),
        "workers": None if page is None else _describe_page(read_page(page)),
    }


def _describe_sighting(shown: Shown, sighting: Sighting) -> dict[str, Any]:
    return {
        "deployment": shown.deployment,
        "model": shown.model,
        "fingerprint": sighting.fingerprint,
        "state": "retired" if sighting.retired else "live",
        "first_seen_milliseconds": sighting.first,
        "last_seen_milliseconds": sighting.last,
        "retired_milliseconds": sighting.retired or None,
    }


def _describe_purges(state: Copy) -> Iterator[dict[str, Any]]:
    """Yield the purges in force, the latest first; what was fetched before is stale."""
    for field, generation in sorted(state.purged.items(), key=lambda item: (-item[1], item[0])):
        _, kind, name = (*field.split(":", 2), "")[:3]
        yield {"kind": kind, "name": name or None, "generation": generation}


def _describe_store(report: CacheReport) -> dict[str, Any] | None:
    occupancy = report.occupancy
    if occupancy is None:
        return None
    return {
        "is_shared": report.is_shared,
        "entries": None if report.is_shared else occupancy.keys,
        "used_bytes": occupancy.used_bytes,
        "max_bytes": occupancy.max_bytes or None,
    }


def _describe_page(page: Mapping[str, Sequence[Sample]]) -> dict[str, Any]:
    lookups = _by(page.get(LOOKUPS, ()), "result")
    return {
        "lookups": {result: int(sum(each.value for each in samples)) for result, samples in lookups.items()},
        "reasons": [
            {"result": sample.labels["result"], "reason": sample.labels["reason"], "requests": int(sample.value)}
            for samples in lookups.values()
            for sample in samples
            if sample.labels.get("reason", _NO_REASON) != _NO_REASON
        ],
        "stored": _total(page, STORES),
        "memory": {"entries": _total(page, MEMORY_ENTRIES), "bytes": _total(page, MEMORY_BYTES)},
        "drift": [_describe_drift(model, each) for model, each in _by(page.get(DRIFT_CHECKS, ()), "model").items()],
    }


def _describe_drift(model: str, samples: Iterable[Sample]) -> dict[str, Any]:
    """Tell how often a model answered as the cache did; `divergence` is the share of others, where one was compared."""
    counts = {sample.labels["result"]: int(sample.value) for sample in samples}
    same, different, failed = (counts.get(result, 0) for result in (_SAME, _DIFFERENT, _FAILED))
    compared = same + different
    divergence = different / compared if compared else None
    return {"model": model, "same": same, "different": different, "failed": failed, "divergence": divergence}


def _by(samples: Iterable[Sample], label: str) -> dict[str, list[Sample]]:
    """Return the samples by a label's value, in alphabetical order."""
    found: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        found[sample.labels.get(label, "")].append(sample)
    return dict(sorted(found.items()))


def _total(page: Mapping[str, Sequence[Sample]], name: str) -> int:
    return int(sum(sample.value for sample in page.get(name, ())))
