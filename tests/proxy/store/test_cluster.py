from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from stores import StoreCluster, eventually

from proxy.errors import StoreUnavailable
from proxy.metrics import Metrics
from proxy.store.cluster import ClusterCache, answer_store
from proxy.store.connection import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

NAMES = [f"entry:{number}" for number in range(64)]
"""Keys that spread over all slots, so that every primary has some."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[StoreCluster]:
    with StoreCluster() as running:
        yield running


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[ClusterCache]:
    cache = ClusterCache(url, name="cache_state", metrics=Metrics())
    await cache.start()
    try:
        yield cache
    finally:
        await cache.close()


async def found(cache: ClusterCache) -> list[object]:
    replies: list[object] = await asyncio.gather(*(cache.send("GET", name) for name in NAMES), return_exceptions=True)
    return replies


async def said(cache: ClusterCache, *command: str) -> object:
    """Return a reply, or the error in its place."""
    return (await asyncio.gather(cache.send(*command), return_exceptions=True))[0]


async def test_entries_spread_over_all_primaries_and_are_found_again(cluster: StoreCluster) -> None:
    cluster.flush()
    async with opened(cluster.url) as cache:
        await asyncio.gather(*(cache.send("SET", name, name) for name in NAMES))
        assert await found(cache) == [name.encode() for name in NAMES]
    assert all(primary.ask("DBSIZE") > 0 for primary in cluster.primaries)
    assert not cluster.errors().keys() & {"MOVED", "CROSSSLOT"}


async def test_a_slot_that_moves_is_followed(cluster: StoreCluster) -> None:
    cluster.flush()
    async with opened(cluster.url) as cache:
        await cache.send("SET", NAMES[0], "kept")
        source = cluster.owner(NAMES[0])
        await cluster.migrate(NAMES[0], next(each for each in cluster.primaries if each is not source))

        async def is_found() -> bool:
            return (await found(cache))[0] == b"kept"

        async with asyncio.timeout(10):
            while not await is_found():  # noqa: ASYNC110  a cluster sends us no event
                await asyncio.sleep(0.01)
        await cluster.migrate(NAMES[0], source)


async def test_a_primary_that_is_away_fails_its_own_entries_alone(cluster: StoreCluster) -> None:
    await cluster.whole()
    cluster.flush()
    async with opened(cluster.url) as cache:
        await asyncio.gather(*(cache.send("SET", name, name) for name in NAMES))
        lost = cluster.primaries[1]
        theirs = [cluster.owner(name) is lost for name in NAMES]
        for node in cluster.nodes:
            node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
        lost.kill()
        replies = await found(cache)
        assert [isinstance(reply, StoreUnavailable) for reply in replies] == theirs
        assert not cache.is_available
        lost.start()
        await cluster.whole()
        await eventually(lambda: cache.is_available)
        assert await found(cache) == [name.encode() for name in NAMES]


async def test_a_primary_that_is_nearly_full_is_given_nothing_more_and_the_others_are(cluster: StoreCluster) -> None:
    cluster.flush()
    full = cluster.owner(NAMES[0])
    used = int(full.ask("INFO", "memory").partition("used_memory:")[2].split()[0])
    full.ask("CONFIG", "SET", "maxmemory", used * 9 // 8)  # it is filled to about 89 %
    async with opened(cluster.url) as cache:
        async with asyncio.timeout(10):
            while not isinstance(await said(cache, "SET", NAMES[0], "v"), StoreUnavailable):  # noqa: ASYNC110  it is asked once a second
                await asyncio.sleep(0.01)
        refused = [isinstance(await said(cache, "SET", name, "v"), StoreUnavailable) for name in NAMES]
        assert refused == [cluster.owner(name) is full for name in NAMES]
        assert not any(isinstance(reply, StoreUnavailable) for reply in await found(cache))
        full.ask("CONFIG", "SET", "maxmemory", 0)


async def test_a_replica_that_takes_over_has_the_entries() -> None:
    with StoreCluster(replicas=1) as guarded:
        async with opened(guarded.url) as cache:
            primary = guarded.owner(NAMES[0])
            with primary.client() as client:
                client.set(NAMES[0], "kept")
                assert client.wait(1, 5_000) == 1
            primary.kill()
            assert isinstance(await said(cache, "GET", NAMES[0]), StoreUnavailable)
            await guarded.promote(primary)
            await eventually(lambda: cache.is_available)
            assert await said(cache, "GET", NAMES[0]) == b"kept"


async def test_a_cluster_that_is_away_at_the_start_is_found_later() -> None:
    with StoreCluster(primaries=1) as late:
        late.primaries[0].kill()
        async with opened(late.url) as cache:
            reply = await said(cache, "GET", "k")
            assert isinstance(reply, StoreUnavailable)
            assert reply.message == "The cache_state store is not available: nobody is known to have the key's slot."
            assert not cache.is_available
            late.primaries[0].start()
            await late.whole()
            await eventually(lambda: cache.is_available)
            assert await said(cache, "GET", "k") is None
        assert isinstance(await said(cache, "GET", "k"), StoreUnavailable)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        pytest.param("redis+cluster://127.0.0.1:1", ClusterCache, id="a cluster's entries spread, beside state too"),
        pytest.param("redis://127.0.0.1:1", Store, id="another server has a store of its own"),
    ],
)
def test_who_keeps_cached_answers(url: str, kind: type) -> None:
    state = Store("redis://127.0.0.1:2", name="state", metrics=Metrics())
    kept = answer_store(url, state_url="redis://127.0.0.1:2", state=state, name="cache_state", metrics=Metrics())
    assert isinstance(kept, kind)
    assert kept is not state
    assert answer_store("redis://a", state_url="redis://a", state=state, name="c", metrics=Metrics()) is state
