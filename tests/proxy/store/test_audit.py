from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from opened import opened

from proxy.errors import StoreUnavailable
from proxy.store.audit import Actor, Event, Stretch, entry_id, is_entry_id, read_entries

if TYPE_CHECKING:
    from stores import StoreServer

KEY = "tidegate:{org}:audit"
PLACES = ("5000-0", "5000-1", "6500-0", "7000-0", "7999-3", "8000-0")


def record(number: int) -> bytes:
    return msgspec.json.encode(Event("limits.reset", Actor("api_key", "ops"), "proj", {"number": number}))


@pytest.fixture
def tail(valkey: StoreServer) -> StoreServer:
    """Return a store whose audit tail has a record at each of PLACES."""
    with valkey.client() as client:
        for number, place in enumerate(PLACES):
            client.xadd(KEY, {"record": record(number)}, id=place)
    return valkey


async def read(server: StoreServer, *, oldest_first: bool = False, **bounds: Any) -> list[int]:  # noqa: ANN401
    """Return the numbers of the records in a stretch, by their places."""
    async with opened(server.url) as store:
        entries = read_entries(store, KEY, Stretch(**bounds), oldest_first=oldest_first)
        return [entry.event.details["number"] async for entry in entries]


@pytest.mark.parametrize(
    ("bounds", "numbers"),
    [
        pytest.param({}, [0, 1, 2, 3, 4, 5], id="all"),
        pytest.param({"older_than": entry_id("7000-0")}, [0, 1, 2], id="before a record"),
        pytest.param({"newer_than": entry_id("5000-1")}, [2, 3, 4, 5], id="after a record"),
        pytest.param({"newer_than": entry_id("5500-7")}, [2, 3, 4, 5], id="after one that is no more"),
        pytest.param({"since_seconds": 6}, [2, 3, 4, 5], id="from a second on"),
        pytest.param({"until_seconds": 8}, [0, 1, 2, 3, 4], id="up to the beginning of a second"),
        pytest.param({"since_seconds": 7, "until_seconds": 8}, [3, 4], id="within a second"),
        pytest.param({"since_seconds": 5, "newer_than": entry_id("5000-0")}, [1, 2, 3, 4, 5], id="both: the record"),
        pytest.param({"since_seconds": 6, "newer_than": entry_id("5000-0")}, [2, 3, 4, 5], id="both: the second"),
        pytest.param({"until_seconds": 7, "older_than": entry_id("6500-0")}, [0, 1], id="both ends: the record"),
        pytest.param({"until_seconds": 6, "older_than": entry_id("7999-3")}, [0, 1], id="both ends: the second"),
        pytest.param({"until_seconds": 0}, [], id="before all time"),
        pytest.param({"older_than": entry_id("0-0")}, [], id="before the first place"),
        pytest.param({"since_seconds": 9, "until_seconds": 7}, [], id="ends the wrong way round"),
        pytest.param({"since_seconds": 10**12}, [], id="far ahead"),
    ],
)
async def test_a_stretch_is_read_both_ways(tail: StoreServer, bounds: dict[str, Any], numbers: list[int]) -> None:
    assert await read(tail, **bounds) == numbers[::-1]
    assert await read(tail, oldest_first=True, **bounds) == numbers


async def test_a_record_has_the_id_and_the_time_of_its_place(tail: StoreServer) -> None:
    async with opened(tail.url) as store:
        entry = await anext(read_entries(store, KEY, Stretch(), oldest_first=False))
    assert (entry.id, entry.at_milliseconds) == ("audit_log-8000-0", 8_000)
    assert entry.event == Event("limits.reset", Actor("api_key", "ops"), "proj", {"number": 5})


@pytest.mark.parametrize("oldest_first", [False, True])
async def test_a_long_tail_is_read_piece_by_piece_as_far_as_it_is_wanted(
    valkey: StoreServer, *, oldest_first: bool
) -> None:
    with valkey.client() as client, client.pipeline() as pipeline:
        for number in range(1_000):
            pipeline.xadd(KEY, {"record": record(number)}, id=f"1-{number + 1}")
        pipeline.execute()
    expected = list(range(1_000)) if oldest_first else list(range(999, -1, -1))
    assert await read(valkey, oldest_first=oldest_first) == expected
    before = valkey.calls()
    async with opened(valkey.url) as store:
        entries = read_entries(store, KEY, Stretch(), oldest_first=oldest_first)
        first = [(await anext(entries)).event.details["number"] for _ in range(3)]
    assert first == list(islice(expected, 3))
    name = "xrange" if oldest_first else "xrevrange"
    assert valkey.calls()[name] - before[name] == 1


async def test_without_any_records_there_are_none(valkey: StoreServer) -> None:
    assert await read(valkey) == []


async def test_a_store_that_is_away_is_told() -> None:
    async with opened("unix:///nowhere") as store:
        with pytest.raises(StoreUnavailable):
            await anext(read_entries(store, KEY, Stretch(), oldest_first=False))


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        pytest.param("audit_log-1764480000000-0", True, id="an id"),
        pytest.param("1764480000000-0", False, id="the place alone"),
        pytest.param("audit_log-", False, id="no place"),
        pytest.param("audit_log-1764480000000", False, id="half a place"),
        pytest.param("audit_log-1-2-3", False, id="too much of a place"),
        pytest.param("audit_log-\u0661-0", False, id="other digits"),
        pytest.param("audit_log-" + "9" * 20 + "-0", False, id="more than there are"),
        pytest.param("", False, id="nothing"),
    ],
)
def test_what_may_be_an_id(text: str, *, is_one: bool) -> None:
    assert is_entry_id(text) is is_one
