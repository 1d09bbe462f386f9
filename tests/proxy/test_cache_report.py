"""How a cache does, read from a real store and from a page of metrics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from stores import StoreServer

from policies.fingerprints import Sighting
from proxy.cache_report import CacheReport, describe_report, read_report
from proxy.errors import StoreUnavailable
from proxy.metrics import DECLARED, Metrics, render
from proxy.store.audit import Actor, Event
from proxy.store.cache_state import Copy
from proxy.store.connection import Store
from proxy.store.keys import Keys
from proxy.store.occupancy import Occupancy
from proxy.store.purges import Scope, purge
from proxy.store.scripts import Script
from proxy.store.sightings import Shown

if TYPE_CHECKING:
    from proxy.store.cluster import AnswerStore

EVENT = Event("cache.purged", Actor("session", "root"), "", {})
MEBIBYTE = 1024 * 1024


async def report_of(state: Store, cache: AnswerStore | None = None) -> CacheReport:
    return await read_report(state, cache or state, "org")


async def test_fingerprints_and_purges_are_read_from_the_store(valkey: StoreServer) -> None:
    store = Store(valkey.url, name="state", metrics=Metrics())
    await store.start()
    keys = Keys("org")
    for fingerprint, at in (("fp_1", 1_000), ("fp_2", 2_000), ("fp_2", 2_500)):
        arguments = ["u/m", "smollm2", fingerprint, at, 500, 32]
        await store.run(Script("see_fingerprint"), [keys.cache, keys.fingerprints], arguments)
    await purge(store, "org", [Scope("model", "smollm2:135m"), Scope("key", "key_a")], EVENT)
    told = describe_report(await report_of(store))
    await store.close()

    assert [
        (each["deployment"], each["model"], each["fingerprint"], each["state"]) for each in told["fingerprints"]
    ] == [
        ("u/m", "smollm2", "fp_1", "retired"),
        ("u/m", "smollm2", "fp_2", "live"),
    ]
    retired, live = told["fingerprints"]
    names = ("first_seen_milliseconds", "last_seen_milliseconds", "retired_milliseconds")
    assert [retired[name] for name in names] == [1_000, 1_000, 2_500]
    assert [live[name] for name in names] == [2_000, 2_500, None]
    # The first purge there is also makes stale whatever was fetched before anybody kept count.
    assert [(each["kind"], each["name"]) for each in told["purges"]] == [
        ("key", "key_a"),
        ("model", "smollm2:135m"),
        ("all", None),
    ]
    assert told["generation"] == told["purges"][0]["generation"] > told["purges"][2]["generation"]
    assert told["workers"] is None
    assert json.loads(json.dumps(told)) == told


async def test_how_full_the_cache_store_is(valkey: StoreServer) -> None:
    with StoreServer(settings={"maxmemory": 64 * MEBIBYTE}) as other:
        state, cache = (Store(each.url, name="s", metrics=Metrics()) for each in (valkey, other))
        await state.start()
        await cache.start()
        with other.client() as client:
            client.mset({"a": "1", "b": "2", "c": "3"})
        apart = describe_report(await report_of(state, cache))["store"]
        shared = describe_report(await report_of(state))["store"]
        await state.close()
        await cache.close()
    assert (apart["is_shared"], apart["entries"], apart["max_bytes"]) == (False, 3, 64 * MEBIBYTE)
    assert 0 < apart["used_bytes"] < 64 * MEBIBYTE
    # What else stands on the server is no entry.
    assert (shared["is_shared"], shared["entries"], shared["max_bytes"]) == (True, None, None)


async def test_a_store_that_is_away_cannot_be_asked() -> None:
    store = Store("unix:///nowhere/store.sock", name="state", metrics=Metrics())
    await store.start()
    with pytest.raises(StoreUnavailable):
        await report_of(store)
    await store.close()


def page() -> bytes:
    metrics = Metrics()
    for result, reason, count in (
        ("hit", "none", 6),
        ("miss", "none", 3),
        ("bypass", "off", 2),
        ("miss", "max-age", 1),
    ):
        metrics.cache_lookups_total.labels(result, reason).inc(count)
    for model, result, count in (("m", "same", 3), ("m", "different", 1), ("m", "failed", 7), ("o", "failed", 2)):
        metrics.cache_divergence_total.labels(model, result).inc(count)
    metrics.cache_stores_total.inc(4)
    metrics.cache_memory_bytes.inc(5_000)
    metrics.cache_memory_entries.inc(3)
    return render(metrics.snapshot())


def test_what_the_workers_counted_comes_from_their_metrics() -> None:
    quiet = CacheReport(Copy.read(()), (), None, is_shared=False)
    told = describe_report(quiet, page())
    assert told["workers"] == {
        "lookups": {"bypass": 2, "hit": 6, "miss": 4},
        "reasons": [
            {"result": "bypass", "reason": "off", "requests": 2},
            {"result": "miss", "reason": "max-age", "requests": 1},
        ],
        "stored": 4,
        "memory": {"entries": 3, "bytes": 5_000},
        "drift": [
            {"model": "m", "same": 3, "different": 1, "failed": 7, "divergence": 0.25},
            {"model": "o", "same": 0, "different": 0, "failed": 2, "divergence": None},
        ],
    }
    assert (told["store"], told["purges"], told["fingerprints"]) == (None, [], [])


def test_the_metrics_that_are_told_are_declared() -> None:
    declared = {
        "cache_lookups_total": ("result", "reason"),
        "cache_stores_total": (),
        "cache_divergence_total": ("model", "result"),
        "cache_memory_bytes": (),
        "cache_memory_entries": (),
    }
    assert {name: DECLARED[name].label_names for name in declared} == declared


def test_a_gateway_that_just_started_has_counted_nothing() -> None:
    quiet = CacheReport(Copy.read(()), (), Occupancy(0, 10, 0), is_shared=False)
    told = describe_report(quiet, render(Metrics().snapshot()))
    assert told["workers"] == {
        "lookups": {},
        "reasons": [],
        "stored": 0,
        "memory": {"entries": 0, "bytes": 0},
        "drift": [],
    }


def test_a_fingerprint_that_lives_again_is_live() -> None:
    shown = Shown("u/m", "m", (Sighting("fp_1", 1_000, 5_000, 0, 0), Sighting("fp_2", 2_000, 3_000, 4_000, 4_500)))
    told = describe_report(CacheReport(Copy.read(()), (shown,), None, is_shared=False))
    assert [
        (each["state"], each["last_seen_milliseconds"], each["retired_milliseconds"]) for each in told["fingerprints"]
    ] == [
        ("live", 5_000, None),
        ("retired", 3_000, 4_500),
    ]
