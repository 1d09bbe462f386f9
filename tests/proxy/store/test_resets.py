from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch
from zoneinfo import ZoneInfo

import pytest
from admitting import KEYS, ORGANIZATION, decision, exchange, served, worker
from opened import opened
from stores import ScriptedStore

from policies.usage import Usage
from proxy.errors import StoreUnavailable
from proxy.store.audit import Actor, Event, Stretch, read_entries
from proxy.store.reservations import Ending, Hits, Reservations, Settlement, share
from proxy.store.resets import reset
from proxy.store.rooms import look

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stores import StoreServer

    from policies.limits import BoundLimit
    from policies.room import Room
    from proxy.store.audit import Entry
    from proxy.store.connection import Store
    from proxy.store.resets import Reset

ZONE = ZoneInfo("Europe/Berlin")
REQUESTS = {"of": "requests", "limit": 5, "per": "365d", "by": ["user"]}  # nothing of it refills while a test runs
TOKENS = {"of": "tokens", "limit": 1_000, "per": "month", "by": ["user"]}
AT_ONCE = {"of": "concurrency", "limit": 8, "by": ["key"]}
LIMITS = (REQUESTS, TOKENS, AT_ONCE)
EVENT = Event("limits.reset", Actor("session", "root"), "proj", {"reason": "ünfair", "limits": []})


async def done(store: Store, limits: Sequence[BoundLimit]) -> Reset:
    return await reset(store, ORGANIZATION, ZONE, limits, EVENT)


async def looked(store: Store, limits: Sequence[BoundLimit]) -> list[tuple[int, int]]:
    return levels(await look(store, ORGANIZATION, ZONE, limits))


def levels(rooms: Sequence[Room]) -> list[tuple[int, int]]:
    """Return what is used and held of each."""
    return [(room.level.spent, room.level.held) for room in rooms]


async def audited(store: Store) -> list[Entry]:
    return [entry async for entry in read_entries(store, KEYS.audit, Stretch(), oldest_first=False)]


async def test_what_is_used_is_forgotten_and_what_is_held_is_settled_as_ever(
    any_store: StoreServer, tmp_path: Path
) -> None:
    decided = decision(LIMITS, max_tokens=10)  # 26 + 10 tokens at worst
    async with worker(any_store.url, tmp_path) as at, opened(any_store.url) as store:
        finished = exchange(decided)
        async with at.admissions.admit(decided, finished):
            served(finished, Usage(3, 4))
        told = exchange(decided)
        async with at.admissions.admit(decided, told) as admission:
            result = await done(store, decided.limits)
            assert levels(result.before) == [(2, 0), (7, 36), (0, 1)]
            assert levels(result.after) == await looked(store, decided.limits) == [(0, 0), (0, 36), (0, 1)]
            served(told, Usage(5, 6))
            await admission.settle()
        assert await looked(store, decided.limits) == [(0, 0), (11, 0), (0, 0)]
        [entry] = await audited(store)
    assert (entry.id, entry.event.actor, entry.event.project) == (result.record, EVENT.actor, "proj")
    assert entry.event.details == EVENT.details
    assert entry.event.before == ((2, 0), (7, 36), (0, 1))
    assert entry.at_milliseconds == result.before[0].level.at


@pytest.mark.parametrize("limit", [REQUESTS, {**REQUESTS, "per": "month"}], ids=["a bucket", "a calendar window"])
async def test_what_a_reset_forgot_is_not_given_back_a_second_time(
    any_store: StoreServer, limit: dict[str, object]
) -> None:
    """A request that is released gives back what it took; was that forgotten, it would be what others took since."""
    [bound] = limits = decision([limit]).limits
    async with opened(any_store.url) as store:
        reservations = Reservations(store, KEYS, ZONE, lease_seconds=0)

        async def admit(name: str) -> Settlement:
            counts = reservations.counts(limits, reservations.now())
            deadline = reservations.now() + 60_000
            await reservations.send_admit(name, counts, hits=Hits.NO, deadline=deadline, record=b"")
            shares = tuple(share(count, bound.ask) for count in counts)
            return Settlement(name, Ending.RELEASE, "", shares, reservations.now())

        before = await admit("before")
        await done(store, limits)
        after = await admit("after")
        await reservations.send(before)
        assert await looked(store, limits) == [(1, 0)]
        with any_store.client() as client:  # as if a reset in the same millisecond had not come before it
            client.hincrby(KEYS.hold("after"), "at", 1)
        await reservations.send(after)
        assert await looked(store, limits) == [(0, 0)]


async def test_a_call_that_is_sent_again_answers_alike_and_leaves_one_record(
    any_store: StoreServer, tmp_path: Path
) -> None:
    decided = decision(LIMITS, max_tokens=10)
    async with worker(any_store.url, tmp_path) as at, opened(any_store.url) as store:
        for _ in range(2):
            told = exchange(decided)
            async with at.admissions.admit(decided, told):
                served(told, Usage(3, 4))
        with patch("proxy.store.resets.secrets.token_hex", return_value="the same call"):
            first = await done(store, decided.limits)
            told = exchange(decided)
            async with at.admissions.admit(decided, told):
                served(told, Usage(3, 4))
            again = await done(store, decided.limits)
        assert levels(first.before) == [(2, 0), (14, 0), (0, 0)]
        assert again == first
        assert await looked(store, decided.limits) == [(1, 0), (7, 0), (0, 0)]
        assert len(await audited(store)) == 1
        other = await done(store, decided.limits)
        assert [entry.id for entry in await audited(store)] == [other.record, first.record]


async def test_a_count_that_does_not_exist_is_not_made(any_store: StoreServer) -> None:
    limits = decision(LIMITS).limits
    async with opened(any_store.url) as store:
        result = await done(store, limits)
    assert levels(result.before) == levels(result.after) == [(0, 0)] * 3
    with any_store.client() as client:
        assert client.dbsize() == 2  # the record, and that the call was made
        assert client.keys("*:limit:*") == []


async def test_lives_are_left_as_they_are(any_store: StoreServer, tmp_path: Path) -> None:
    """So the mark of the reset stands as long as anything may be given back."""
    decided = decision(LIMITS)
    async with worker(any_store.url, tmp_path) as at, opened(any_store.url) as store:
        told = exchange(decided)
        async with at.admissions.admit(decided, told):
            served(told, Usage(3, 4))
        with any_store.client() as client:
            lives = {key: client.pexpiretime(key) for key in client.keys("*:limit:*")}
            await done(store, decided.limits)
            assert {key: client.pexpiretime(key) for key in client.keys("*:limit:*")} == lives
            assert client.pttl(KEYS.audit) == -1
            [call] = client.keys("*:audited:*")
            assert 0 < client.pttl(call) <= 600_000


@pytest.mark.parametrize("junk", ["limit", "audit"])
async def test_a_key_of_the_wrong_type_changes_nothing(any_store: StoreServer, tmp_path: Path, junk: str) -> None:
    decided = decision([REQUESTS, {**REQUESTS, "by": ["project"]}])
    async with worker(any_store.url, tmp_path) as at, opened(any_store.url) as store:
        told = exchange(decided)
        async with at.admissions.admit(decided, told):
            served(told, Usage(3, 4))
        with any_store.client() as client:
            client.set(KEYS.limit(decided.limits[1]) if junk == "limit" else KEYS.audit, "junk")
            with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
                await done(store, decided.limits)
            assert client.hget(KEYS.limit(decided.limits[0]), "spent") == b"1"
            assert client.keys("*:audited:*") == []
            assert client.exists(KEYS.audit) == (junk == "audit")


async def test_so_many_records_are_kept_the_latest(valkey: StoreServer) -> None:
    limits = decision([REQUESTS]).limits
    with patch("proxy.store.resets.KEPT_RECORDS", 100):
        async with opened(valkey.url) as store:
            ids = [(await done(store, limits)).record for _ in range(300)]
            kept = [entry.id for entry in await audited(store)]
    assert 100 <= len(kept) < 300  # the store takes off whole nodes of its own size
    assert kept == ids[::-1][: len(kept)]


def in_another_window(command: list[bytes]) -> bytes:
    """Answer as a store does whose clock is in 2033 while ours is not, and stands still."""
    if command[0] != b"EVALSHA":
        return b"+OK\r\n"
    start, end = int(command[-2]), int(command[-1])
    now = 2_000_000_000_000
    if start <= now < end:
        return b"*6\r\n$5\r\nreset\r\n:%d\r\n:7\r\n:0\r\n:2\r\n$3\r\n9-1\r\n" % now
    return b"*2\r\n$5\r\nmoved\r\n:%d\r\n" % now


async def test_the_store_s_clock_tells_the_calendar_window() -> None:
    limits = decision([TOKENS]).limits
    async with ScriptedStore(in_another_window) as server, opened(server.url) as store:
        result = await done(store, limits)
        calls = [command[4] for command in server.commands if command[0] == b"EVALSHA"]
    assert (levels(result.before), levels(result.after)) == ([(7, 2)], [(0, 2)])
    assert result.record == "audit_log-9-1"
    assert len(calls) == 2
    assert len(set(calls)) == 1  # it is one call, told apart from all others


async def test_a_store_that_is_away_is_told() -> None:
    async with opened("unix:///nowhere") as store:
        with pytest.raises(StoreUnavailable):
            await done(store, decision(LIMITS).limits)
