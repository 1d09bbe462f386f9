from __future__ import annotations

from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from admitting import KEYS, ORGANIZATION, decision, exchange, served, worker
from opened import opened
from stores import ScriptedStore

from policies.usage import Usage
from proxy.errors import StoreUnavailable
from proxy.store.rooms import look

if TYPE_CHECKING:
    from pathlib import Path

    from stores import StoreServer

ZONE = ZoneInfo("Europe/Berlin")
REQUESTS = {"of": "requests", "limit": 5, "per": "365d", "by": ["user"]}  # nothing of it refills while a test runs
TOKENS = {"of": "tokens", "limit": 1_000, "per": "month", "by": ["user"]}
AT_ONCE = {"of": "concurrency", "limit": 8, "by": ["key"]}
USD = {"of": "usd", "limit": 0.5, "per": "month", "by": ["project"]}
PRICED = {"price": {"input": 1_000.0, "output": 1_000.0}}
LIMITS = (REQUESTS, TOKENS, AT_ONCE, USD)


async def test_room_is_read_as_admissions_left_it(any_store: StoreServer, tmp_path: Path) -> None:
    decided = decision(LIMITS, model=PRICED, max_tokens=10)  # 26 + 10 tokens at worst, 1,000 micro-dollars each
    async with worker(any_store.url, tmp_path) as at, opened(any_store.url) as store:
        untouched = await look(store, ORGANIZATION, ZONE, decided.limits)
        told = exchange(decided)
        async with at.admissions.admit(decided, told) as admission:
            held = await look(store, ORGANIZATION, ZONE, decided.limits)
            served(told, Usage(3, 4))
            await admission.settle()
        settled = await look(store, ORGANIZATION, ZONE, decided.limits)
    assert [room.left for room in untouched] == [5, 1_000, 8, 500_000]
    assert [room.left for room in held] == [4, 964, 7, 464_000]
    assert [room.left for room in settled] == [4, 993, 8, 493_000]
    assert [room.bound for room in settled] == list(decided.limits)


async def test_room_tells_when_it_ends_and_when_there_is_more(any_store: StoreServer, tmp_path: Path) -> None:
    limits = ({**REQUESTS, "limit": 1}, {**TOKENS, "limit": 40})
    decided = decision(limits, max_tokens=10)
    async with worker(any_store.url, tmp_path) as at, opened(any_store.url) as store:
        told = exchange(decided)
        async with at.admissions.admit(decided, told):
            served(told, Usage(20, 20))
        requests, tokens = await look(store, ORGANIZATION, ZONE, decided.limits)
    year = 365 * 86_400_000
    assert requests.wait_milliseconds == requests.reset_milliseconds
    assert 0.99 * year < requests.reset_milliseconds <= year
    assert tokens.span is not None
    assert tokens.wait_milliseconds == tokens.reset_milliseconds == tokens.span.end - tokens.level.at


async def test_looking_writes_nothing(any_store: StoreServer) -> None:
    async with opened(any_store.url) as store:
        await look(store, ORGANIZATION, ZONE, decision(LIMITS, model=PRICED).limits)
    with any_store.client() as client:
        assert client.dbsize() == 0


async def test_without_limits_the_store_is_not_asked() -> None:
    async with opened("unix:///nowhere") as store:
        assert await look(store, ORGANIZATION, ZONE, ()) == ()


async def test_a_store_that_is_away_is_told() -> None:
    async with opened("unix:///nowhere") as store:
        with pytest.raises(StoreUnavailable):
            await look(store, ORGANIZATION, ZONE, decision(LIMITS, model=PRICED).limits)


async def test_a_key_of_the_wrong_type_is_told(valkey: StoreServer) -> None:
    limits = decision([REQUESTS]).limits
    with valkey.client() as client:
        client.set(KEYS.limit(limits[0]), "junk")
    async with opened(valkey.url) as store:
        with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
            await look(store, ORGANIZATION, ZONE, limits)


def in_another_window(command: list[bytes]) -> bytes:
    """Answer as a store does whose clock is in 2033 while ours is not, and stands still."""
    if command[0] != b"EVALSHA":
        return b"+OK\r\n"
    start, end = int(command[-2]), int(command[-1])
    now = 2_000_000_000_000
    if start <= now < end:
        return b"*5\r\n$4\r\nseen\r\n:%d\r\n:7\r\n:0\r\n:0\r\n" % now
    return b"*2\r\n$5\r\nmoved\r\n:%d\r\n" % now


async def test_the_store_s_clock_tells_the_calendar_window() -> None:
    limits = decision([TOKENS]).limits
    async with ScriptedStore(in_another_window) as server, opened(server.url) as store:
        [room] = await look(store, ORGANIZATION, ZONE, limits)
        keys = [command[3] for command in server.commands if command[0] == b"EVALSHA"]
    assert (room.left, room.level.at) == (993, 2_000_000_000_000)
    assert room.span is not None
    assert room.span.holds(2_000_000_000_000)
    assert len(set(keys)) == 2


async def test_a_clock_that_does_not_stand_still_is_given_up() -> None:
    moved = b"*2\r\n$5\r\nmoved\r\n:2000000000000\r\n"
    async with ScriptedStore(lambda _command: moved) as server, opened(server.url) as store:
        with pytest.raises(StoreUnavailable, match="clock"):
            await look(store, ORGANIZATION, ZONE, decision([TOKENS]).limits)
