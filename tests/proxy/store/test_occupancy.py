from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from stores import StoreCluster

from proxy.errors import StoreUnavailable
from proxy.metrics import Metrics
from proxy.store.cluster import ClusterCache
from proxy.store.connection import Store
from proxy.store.occupancy import read_occupancy

if TYPE_CHECKING:
    from stores import StoreServer


async def test_a_server_tells_what_it_holds_and_how_much_it_may(own_valkey: StoreServer) -> None:
    with own_valkey.client() as client:
        client.mset({"a": "x" * 100_000, "b": "y"})
        client.config_set("maxmemory", 50_000_000)
    store = Store(own_valkey.url, name="cache_state", metrics=Metrics())
    await store.start()
    found = await read_occupancy(store)
    await store.close()
    assert found is not None
    assert (found.keys, found.max_bytes) == (2, 50_000_000)
    assert 100_000 < found.used_bytes < 50_000_000


async def test_a_store_that_is_away_does_not_tell() -> None:
    store = Store("unix:///nowhere/store.sock", name="cache_state", metrics=Metrics())
    await store.start()
    with pytest.raises(StoreUnavailable):
        await read_occupancy(store)
    await store.close()


async def test_a_cluster_is_many_and_tells_nothing() -> None:
    with StoreCluster() as cluster:
        cache = ClusterCache(cluster.url, name="cache_state", metrics=Metrics())
        await cache.start()
        assert await read_occupancy(cache) is None
        await cache.close()
