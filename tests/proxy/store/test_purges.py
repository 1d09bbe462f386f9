from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from clockwork import Clockwork
from opened import opened

from proxy.errors import StoreUnavailable
from proxy.store.audit import Actor, Event, Stretch, read_entries
from proxy.store.cache_state import LIFE_MILLISECONDS
from proxy.store.keys import Keys
from proxy.store.purges import KEPT_PURGES, Scope, purge

if TYPE_CHECKING:
    from typing import Any

    from stores import StoreServer

    from proxy.store.audit import Entry
    from proxy.store.connection import Store

KEYS = Keys("org")
EVENT = Event("cache.purged", Actor("session", "root"), "", {"scopes": ["model smollm2"], "reason": "ünfair"})
START = 4_000_000_000_000


def state_of(server: StoreServer) -> dict[str, int]:
    """Return the fields of the cache's state."""
    with server.client() as client:
        return {name.decode(): int(value) for name, value in client.hgetall(KEYS.cache).items()}


async def audited(store: Store) -> list[Entry]:
    return [entry async for entry in read_entries(store, KEYS.audit, Stretch(), oldest_first=False)]


def purge_at(lua: Clockwork, *fields: str, call: str = "call", kept: int = 1_000) -> Any:  # noqa: ANN401  a reply
    return lua.run("purge", [KEYS.cache, KEYS.audit, KEYS.audited(call)], ["{}", 100, 60_000, kept, *fields])


async def test_a_purge_raises_the_epoch_and_leaves_a_record_of_who_did_it(any_store: StoreServer) -> None:
    async with opened(any_store.url) as store:
        first = await purge(store, "org", [Scope("model", "smollm2:135m"), Scope("project", "proj")], EVENT)
        second = await purge(store, "org", [Scope("key", "key_1")], EVENT)
        entries = await audited(store)
    assert second.generation > first.generation
    assert state_of(any_store) == {
        "epoch": second.generation,
        "purged:all": first.generation,  # nobody knows what was purged before
        "purged:model:smollm2:135m": first.generation,
        "purged:project:proj": first.generation,
        "purged:key:key_1": second.generation,
    }
    assert [(entry.id, entry.event) for entry in entries] == [(second.record, EVENT), (first.record, EVENT)]


@pytest.mark.parametrize(
    ("scope", "field"),
    [
        pytest.param(Scope("all"), "purged:all", id="everything"),
        pytest.param(Scope("model", "all"), "purged:model:all", id="a model of that name"),
        pytest.param(Scope("entry", "0af3"), "purged:entry:0af3", id="one answer"),
    ],
)
def test_each_scope_has_a_field(scope: Scope, field: str) -> None:
    assert scope.field == field


def test_purging_all_takes_the_place_of_narrower_purges_and_of_nothing_else(any_store: StoreServer) -> None:
    with any_store.client() as client:
        lua = Clockwork(client)
        lua.at(START)
        client.hset(KEYS.cache, mapping={"retired:u/m:F": START - 5, "purged:deployment:u/m": START - 9})
        purge_at(lua, "purged:model:m", "purged:key:k", call="first")
        lua.at(START + 7)
        assert purge_at(lua, "purged:all", "purged:model:n", call="second")[0] == START + 7
    assert state_of(any_store) == {"epoch": START + 7, "purged:all": START + 7, "retired:u/m:F": START - 5}


@pytest.mark.parametrize(
    ("before", "at", "expected"),
    [
        pytest.param({}, START, START, id="it is the time of the store"),
        pytest.param({"epoch": START}, START, START + 1, id="two in one millisecond are told apart"),
        pytest.param({"epoch": START + 500}, START, START + 501, id="a clock that was set back"),
        pytest.param({"epoch": 0}, START, START, id="where there was none"),
        pytest.param({"epoch": "junk"}, START, START, id="where another put something else"),
        pytest.param({"epoch": "9" * 40}, START, START, id="or more than any number"),
    ],
)
def test_the_epoch_only_grows(any_store: StoreServer, before: dict[str, object], at: int, expected: int) -> None:
    with any_store.client() as client:
        lua = Clockwork(client)
        lua.at(at)
        if before:
            client.hset(KEYS.cache, mapping=before)
        assert purge_at(lua, "purged:model:m")[0] == expected
    begins_anew = len(str(before.get("epoch", 0))) != len(str(START))
    fields = {"epoch": expected, "purged:model:m": expected, **({"purged:all": expected} if begins_anew else {})}
    assert state_of(any_store) == fields


def test_of_too_many_purges_the_oldest_become_one_of_all_that_is_older(any_store: StoreServer) -> None:
    with any_store.client() as client:
        lua = Clockwork(client)
        for number in range(6):
            lua.at(START + number)
            purge_at(lua, f"purged:entry:{number}", call=str(number), kept=3)
    narrow = {f"purged:entry:{number}": START + number for number in (3, 4, 5)}
    assert state_of(any_store) == {"epoch": START + 5, "purged:all": START + 2, **narrow}


def test_as_many_as_are_kept_cost_little(valkey: StoreServer) -> None:
    """A purge looks at all of them, and so does every worker after it: there is an end to them."""
    with valkey.client() as client:
        lua = Clockwork(client)
        lua.at(START)
        client.hset(KEYS.cache, mapping={f"purged:entry:{number:064}": number for number in range(KEPT_PURGES)})
        purge_at(lua, "purged:model:m", kept=KEPT_PURGES)
        assert client.hlen(KEYS.cache) == KEPT_PURGES + 2  # and `epoch` and `purged:all`


async def test_a_call_that_is_sent_again_answers_alike_and_leaves_one_record(any_store: StoreServer) -> None:
    async with opened(any_store.url) as store:
        with patch("proxy.store.purges.secrets.token_hex", return_value="the same call"):
            first = await purge(store, "org", [Scope("all")], EVENT)
            assert await purge(store, "org", [Scope("all")], EVENT) == first
        assert state_of(any_store)["epoch"] == first.generation
        assert len(await audited(store)) == 1
    with any_store.client() as client:
        [call] = client.keys("*:audited:*")
        assert 0 < client.pttl(call) <= 600_000
        assert client.pttl(KEYS.audit) == -1
        assert 0.9 * LIFE_MILLISECONDS < client.pttl(KEYS.cache) <= LIFE_MILLISECONDS


@pytest.mark.parametrize("odd", [KEYS.cache, KEYS.audit], ids=["state", "audit tail"])
async def test_a_key_of_the_wrong_type_changes_nothing(any_store: StoreServer, odd: str) -> None:
    async with opened(any_store.url) as store:
        with any_store.client() as client:
            client.set(odd, "junk")
            with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
                await purge(store, "org", [Scope("all")], EVENT)
            assert client.keys() == [odd.encode()]


async def test_a_store_that_is_away_is_told() -> None:
    async with opened("unix:///nowhere") as store:
        with pytest.raises(StoreUnavailable):
            await purge(store, "org", [Scope("all")], EVENT)
