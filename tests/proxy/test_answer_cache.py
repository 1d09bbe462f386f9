from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from admitting import KEYS, MEMORY_BYTES, ORGANIZATION, WINDOW_SECONDS
from msgspec.structs import replace
from stores import eventually

from policies.cacheability import Keyed
from policies.freshness import Fit
from policies.requests.asked import Endpoint
from policies.usage import Provider, Usage
from proxy.answer_cache import LEASE_MILLISECONDS, AnswerCache, Found, in_form
from proxy.memory_level import MemoryLevel
from proxy.metrics import Metrics
from proxy.store import keys as store_keys
from proxy.store.audit import Actor, Event
from proxy.store.cache_state import CacheState
from proxy.store.connection import Store
from proxy.store.entries import StoredAnswer
from proxy.store.purges import Scope, purge
from proxy.store.reservations import probe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stores import StoreServer

KEY = "k" * 64
NOW = 1_800_000_000_000
PLAN = Keyed(KEY, ttl_seconds=60)
PAYER = Provider(project="proj", owner="alice", is_service_account=False, key="key_alice")
EVENT = Event("cache.purged", Actor("session", "root"), "", {})
WHOLE = json.dumps(
    {
        "id": "x",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [{"text": "hello", "index": 0, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
    }
).encode()


@dataclass
class World:
    """One worker's cache, with its stores and a clock that the test sets (Unix milliseconds)."""

    cache: AnswerCache
    state: CacheState
    store: Store
    now: list[int] = field(default_factory=lambda: [NOW])

    def answer(self, **facts: Any) -> StoredAnswer:  # noqa: ANN401  facts of an answer
        """Return an answer that was fetched just now."""
        facts = {
            "is_stream": False,
            "content_type": "application/json",
            "body": WHOLE,
            "created_milliseconds": self.now[0],
            "usage": Usage(1, 2),
            "ttl_seconds": 60,
            "generation": self.state.epoch,
            "deployment": "u/m",
            "asked_model": "m",
            "provider": PAYER,
            **facts,
        }
        return StoredAnswer(**facts)

    async def look_up(self, owner: str | None = None, *, plan: Keyed = PLAN, is_stream: bool = False) -> Found:
        """Look the answer up, and read what was found."""
        return await self.cache.look_up(KEY, owner).read(plan, Endpoint.COMPLETIONS, is_stream=is_stream)

    async def purge(self, *scopes: Scope) -> None:
        """Purge, and tell the worker no more of it than an admission does: that there is another epoch."""
        purged = await purge(self.store, ORGANIZATION, scopes, EVENT)
        self.state.note(purged.generation, time.monotonic())


@asynccontextmanager
async def opened(server: StoreServer, *, memory_bytes: int = MEMORY_BYTES) -> AsyncIterator[World]:
    metrics = Metrics()
    store = Store(server.url, name="state", metrics=metrics, probe=probe(KEYS))
    await store.start()
    state = CacheState(store, ORGANIZATION, window_seconds=WINDOW_SECONDS)
    await state.start()
    now = [NOW]
    cache = AnswerCache(store, state, MemoryLevel(memory_bytes), now=lambda: now[0], metrics=metrics)
    await cache.start()
    try:
        yield World(cache, state, store, now)
    finally:
        await cache.close()
        await state.close()
        await store.close()


def holder(server: StoreServer) -> bytes | None:
    """Return who has the lease of the fetch."""
    with server.client() as client:
        return client.get(store_keys.flight(KEY))


# ---------------------------------------------------------------- what may be served


@pytest.mark.parametrize(
    ("facts", "plan", "age_milliseconds", "fit"),
    [
        pytest.param({}, PLAN, 0, Fit.GOOD, id="a new one"),
        pytest.param({}, PLAN, 59_999, Fit.GOOD, id="the last millisecond of its life"),
        pytest.param({}, PLAN, 60_000, Fit.STALE, id="one that is too old"),
        pytest.param({}, replace(PLAN, ttl_seconds=30), 30_000, Fit.STALE, id="one whose model lets it live shorter"),
        pytest.param({}, replace(PLAN, max_age_seconds=5), 5_000, Fit.TOO_OLD, id="older than the client takes"),
        pytest.param({}, PLAN, -5_000, Fit.GOOD, id="one from a clock that is ahead"),
        pytest.param({"fingerprint": "fp_a"}, PLAN, 0, Fit.RETIRED, id="a retired fingerprint"),
        pytest.param({"fingerprint": "fp_b"}, PLAN, 0, Fit.GOOD, id="a fingerprint that lives"),
        pytest.param({"fingerprint": "fp_a", "deployment": "u/o"}, PLAN, 0, Fit.GOOD, id="the same of another server"),
        pytest.param(
            {"fingerprint": "fp_a"}, replace(PLAN, checks_fingerprint=False), 0, Fit.GOOD, id="fingerprint: ignore"
        ),
        pytest.param({"generation": 1}, PLAN, 0, Fit.PURGED, id="fetched before all was purged"),
        pytest.param({"generation": 1, "fingerprint": "fp_a"}, PLAN, 60_000, Fit.PURGED, id="a purge counts first"),
        pytest.param({"generation": 2**52}, PLAN, 0, Fit.PURGED, id="of an epoch that nobody knows"),
        pytest.param({"provider": None}, PLAN, 0, Fit.GOOD, id="whose payer is not known, after a purge of all"),
    ],
)
async def test_whether_an_answer_may_be_served(
    valkey: StoreServer, facts: dict[str, Any], plan: Keyed, age_milliseconds: int, fit: Fit
) -> None:
    with valkey.client() as client:
        client.hset(KEYS.cache, mapping={"epoch": 1000, "purged:all": 500, "retired:u/m:fp_a": 900})
    async with opened(valkey) as world:
        answer = world.answer(**facts)
        world.now[0] += age_milliseconds
        assert world.cache.judge(plan, KEY, answer) is fit
        await world.cache.put(KEY, answer)
        found = await world.look_up(plan=plan)
    assert found.fit is fit
    assert (found.answer is not None) is (fit is Fit.GOOD)


@pytest.mark.parametrize(
    ("scope", "fit"),
    [
        (Scope("all"), Fit.PURGED),
        (Scope("model", "m"), Fit.PURGED),
        (Scope("project", "proj"), Fit.PURGED),
        (Scope("key", "key_alice"), Fit.PURGED),
        (Scope("entry", KEY), Fit.PURGED),
        (Scope("model", "n"), Fit.GOOD),
        (Scope("entry", "l" * 64), Fit.GOOD),
    ],
    ids=str,
)
@pytest.mark.parametrize("memory_bytes", [MEMORY_BYTES, 0], ids=["in memory", "in the store"])
async def test_a_purge_holds_from_the_next_admission_on(
    valkey: StoreServer, scope: Scope, fit: Fit, memory_bytes: int
) -> None:
    async with opened(valkey, memory_bytes=memory_bytes) as world:
        await world.cache.put(KEY, world.answer())
        await world.purge(scope)
        assert (await world.look_up()).fit is fit
        await world.cache.put(KEY, world.answer())
        assert (await world.look_up()).fit is Fit.GOOD


# ---------------------------------------------------------------- two levels


async def test_what_is_in_memory_is_not_asked_of_the_store(valkey: StoreServer) -> None:
    async with opened(valkey) as world:
        await world.cache.put(KEY, world.answer())
        before = valkey.calls().get("get", 0)
        found = [await world.look_up("req_1"), await world.look_up()]
        assert valkey.calls().get("get", 0) == before
    assert [each.answer is not None for each in found] == [True, True]
    assert holder(valkey) is None


async def test_what_is_in_the_store_is_in_memory_from_then_on(valkey: StoreServer) -> None:
    async with opened(valkey) as one:
        await one.cache.put(KEY, one.answer())
        async with opened(valkey) as other:
            first = await other.look_up("req_1")
            valkey.ask("DEL", store_keys.stored(KEY))
            second = await other.look_up("req_2")
    assert first.answer == second.answer is not None


async def test_what_another_worker_fetched_anew_takes_the_place_of_what_is_stale_here(valkey: StoreServer) -> None:
    async with opened(valkey) as here, opened(valkey) as there:
        await here.cache.put(KEY, here.answer())
        here.now[0] = there.now[0] = NOW + 60_000
        await there.cache.put(KEY, there.answer(request_id="there"))
        found = await here.look_up("req_1")
    assert found.answer is not None
    assert found.answer.request_id == "there"
    assert holder(valkey) is None


async def test_nothing_is_kept_in_memory_where_there_is_none(valkey: StoreServer) -> None:
    async with opened(valkey, memory_bytes=0) as world:
        await world.cache.put(KEY, world.answer())
        assert (await world.look_up()).answer is not None
        assert len(world.cache.memory) == 0


async def test_an_entry_lives_no_longer_than_its_time_to_live(valkey: StoreServer) -> None:
    async with opened(valkey) as world:
        await world.cache.put(KEY, world.answer(ttl_seconds=7))
    assert 0 < valkey.ask("PTTL", store_keys.stored(KEY)) <= 7_000


# ---------------------------------------------------------------- forms


async def test_the_other_form_is_made_once(valkey: StoreServer) -> None:
    async with opened(valkey) as world:
        await world.cache.put(KEY, world.answer())
        streams = [(await world.look_up(is_stream=True)).answer for _ in range(2)]
        whole = (await world.look_up()).answer
    assert streams[0] is streams[1]
    assert streams[0] is not None
    assert (streams[0].is_stream, streams[0].content_type) == (True, "text/event-stream")
    assert in_form(streams[0], Endpoint.COMPLETIONS, is_stream=False) is not None
    assert whole is not None
    assert whole.body == WHOLE


@pytest.mark.parametrize(
    ("facts", "is_stream"),
    [
        pytest.param({"body": b'{"choices": []}'}, True, id="an answer that is no stream's"),
        pytest.param({"is_stream": True, "body": b"data: {}\n\n"}, False, id="a stream that is no answer's"),
        pytest.param({"is_stream": True, "usage": None}, False, id="a stream that tells no usage"),
    ],
)
async def test_what_cannot_be_had_in_the_form_that_is_asked_for_is_a_miss(
    valkey: StoreServer, facts: dict[str, Any], *, is_stream: bool
) -> None:
    async with opened(valkey) as world:
        await world.cache.put(KEY, world.answer(**facts))
        found = await world.look_up("req_1", is_stream=is_stream)
        other = await world.look_up(is_stream=not is_stream)
    assert (found.answer, found.fit, found.has_lease, found.has_failed) == (None, None, True, False)
    assert other.answer is not None


# ---------------------------------------------------------------- leases


async def test_one_of_all_who_find_nothing_has_the_lease(valkey: StoreServer) -> None:
    async with opened(valkey) as one, opened(valkey) as other:
        nobody = await one.look_up()
        first, second = await one.look_up("req_1"), await other.look_up("req_2")
        again = await one.look_up("req_1")
        one.cache.take_lease(KEY, "req_1")
        one.cache.give_up(KEY, "req_1")
        await eventually(lambda: holder(valkey) is None)
        third = await other.look_up("req_2")
    assert (nobody.has_lease, nobody.is_elsewhere) == (False, False)
    assert [(each.has_lease, each.is_elsewhere) for each in (first, second)] == [(True, False), (False, True)]
    assert again.has_lease
    assert third.has_lease


async def test_who_finds_what_cannot_be_served_asks_for_the_lease(valkey: StoreServer) -> None:
    async with opened(valkey) as world:
        await world.cache.put(KEY, world.answer())
        world.now[0] += 60_000
        found = [await world.look_up(owner) for owner in (None, "req_1", "req_2")]
    assert [each.fit for each in found] == [Fit.STALE] * 3
    assert [(each.has_lease, each.is_elsewhere) for each in found] == [(False, False), (True, False), (False, True)]


async def test_a_lease_is_not_given_up_by_another(valkey: StoreServer) -> None:
    async with opened(valkey) as world:
        await world.look_up("req_1")
        world.cache.give_up(KEY, "req_2")
        found = await world.look_up("req_3")
    assert found.is_elsewhere
    assert holder(valkey) == b"req_1"


async def test_leases_are_renewed_and_given_back_at_the_end(valkey: StoreServer) -> None:
    async with opened(valkey) as world:
        await world.look_up("req_1")
        world.cache.take_lease(KEY, "req_1")
        valkey.ask("PEXPIRE", store_keys.flight(KEY), LEASE_MILLISECONDS // 2)
        await eventually(lambda: valkey.ask("PTTL", store_keys.flight(KEY)) > LEASE_MILLISECONDS // 2)
    assert holder(valkey) is None


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize("packed", [b"", b"hello", b"tidegate-entry-2\n\x90", b"tidegate-entry-3\n", b"\x80"])
async def test_what_cannot_be_read_is_a_miss(valkey: StoreServer, packed: bytes) -> None:
    async with opened(valkey) as world:
        with valkey.client() as client:
            client.set(store_keys.stored(KEY), packed)
        found = await world.look_up("req_1")
    assert (found.answer, found.fit, found.has_lease, found.has_failed) == (None, None, True, False)


async def test_a_store_that_refuses_is_a_miss(valkey: StoreServer) -> None:
    async with opened(valkey) as world:
        valkey.ask("RPUSH", store_keys.stored(KEY), "x")
        found = [await world.look_up(owner) for owner in ("req_1", None)]
    assert [(each.answer, each.has_failed, each.is_elsewhere) for each in found] == [(None, True, False)] * 2


async def test_a_worker_that_has_lost_contact_serves_nothing_though_it_remembers(own_valkey: StoreServer) -> None:
    async with opened(own_valkey) as world:
        await world.cache.put(KEY, world.answer())
        own_valkey.kill()
        await eventually(lambda: not world.state.is_current)
        found = await world.look_up()
        assert (found.answer, found.has_failed) == (None, True)
        own_valkey.start()
        await eventually(lambda: world.state.is_current)
        assert (await world.look_up()).answer is not None
