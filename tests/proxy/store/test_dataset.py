from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from admitting import KEYS, ORGANIZATION, exchange, served, worker
from admitting import decision as decided
from opened import opened

from policies.recounts import Recount
from policies.usage import Usage
from proxy.store.dataset import Addition, DataSet, add, begin
from proxy.store.keys import Keys
from proxy.store.reservations import Count
from proxy.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import redis
    from stores import StoreServer

TIME = b"redis.call('TIME')"
SINCE = 4_000_000_000_000
"""Far ahead of the machine's clock, so that no calendar window ends while the test runs."""
NOW = SINCE + 1_000
GRACE = 90_000
MINUTE = (5, 1, 12_000)  # five a minute: one comes back every 12 s, and that is 12,000 parts
DAY = (5, 0, 1)


# ---------------------------------------------------------------- since when
async def test_data_begin_when_somebody_looks_first(any_store: StoreServer) -> None:
    async with opened(any_store.url) as store:
        first = await begin(store, KEYS)
        again = await begin(store, KEYS)
    assert first.since == first.now <= again.now
    assert again.since == first.since
    with any_store.client() as client:
        assert client.ttl(KEYS.data) > 31 * 86_400
        assert client.exists(KEYS.outbox) == 0


async def test_data_begin_with_their_first_record(any_store: StoreServer) -> None:
    with any_store.client() as client:
        client.xadd(KEYS.outbox, {"record": "{}"}, id="1700000000123-4")
        client.xadd(KEYS.outbox, {"record": "{}"}, id="1700000000125-0")
        async with opened(any_store.url) as store:
            assert (await begin(store, KEYS)).since == 1_700_000_000_123
            client.xdel(KEYS.outbox, "1700000000123-4", "1700000000125-0")
            assert (await begin(store, KEYS)).since == 1_700_000_000_123


@pytest.mark.parametrize("left", [0, 1], ids=["all", "some"])
async def test_nobody_knows_when_data_began_whose_records_were_removed(any_store: StoreServer, left: int) -> None:
    with any_store.client() as client:
        names = [client.xadd(KEYS.outbox, {"record": "{}"}) for _ in range(2)]
        client.xdel(KEYS.outbox, *names[left:])
    async with opened(any_store.url) as store:
        assert (await begin(store, KEYS)).since == 0


async def test_no_record_of_new_data_is_older_than_they_are(any_store: StoreServer, tmp_path: Path) -> None:
    async with opened(any_store.url) as store, worker(any_store.url, tmp_path) as at:
        since = (await begin(store, KEYS)).since
        told = exchange(decided())
        async with at.admissions.admit(decided(), told):
            served(told, Usage(1, 1))
    with any_store.client() as client:
        [(name, _)] = client.xrange(KEYS.outbox)
    assert int(name.partition(b"-")[0]) >= since


# ---------------------------------------------------------------- adding, at a time that the test sets
class Data:
    """Data that began at SINCE, looked at one second later, and the script on a real server."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        source = Script("rebuild").source
        assert source.count(TIME) == 1
        self._script = client.register_script(source.replace(TIME, b"redis.call('HMGET', 'clock', 's', 'u')"))
        client.hset("data", "since", SINCE)
        self.at(NOW)

    def at(self, now: int) -> None:
        self.client.hset("clock", mapping={"s": now // 1000, "u": now % 1000 * 1000})

    def live(self, key: str, spent: int, at: int, held: int = 0) -> None:
        """Tell what requests have left at a key."""
        self.client.hset(key, mapping={"spent": spent, "carry": 0, "at": at, "held": held})

    def add(self, *limits: Sequence[int], by: str = "mine", since: int = SINCE, last: bool = False) -> list[Any]:
        """Add to limits `l0`, `l1`, …, each told as capacity, amount, period, taken, at, until."""
        keys = ["data", *(f"l{number}" for number, _ in enumerate(limits))]
        numbers = [number for limit in limits for number in limit]
        told: list[Any] = self._script(keys, [by, since, GRACE, "last" if last else "more", *numbers])
        return told

    def level(self, key: str = "l0") -> tuple[int, int, int]:
        """Return spent, carry and held at a key."""
        spent, carry, held = self.client.hmget(key, "spent", "carry", "held")
        return int(spent or 0), int(carry or 0), int(held or 0)


@pytest.fixture
def data(valkey: StoreServer) -> Iterator[Data]:
    with valkey.client() as client:
        yield Data(client)


@pytest.mark.parametrize(
    ("live", "added", "level"),
    [
        pytest.param(None, (*DAY, 3, SINCE - 5, NOW + 9), (3, 0, 0), id="a window nobody came to"),
        pytest.param((2, SINCE, 1), (*DAY, 3, SINCE - 5, NOW + 9), (5, 0, 1), id="a window that somebody came to"),
        pytest.param((4, SINCE, 0), (*DAY, 3, SINCE - 5, NOW + 9), (7, 0, 0), id="a window beyond its limit"),
        pytest.param((1, SINCE, 0), (*DAY, 3, SINCE - 5, NOW), (1, 0, 0), id="a window that is over stays as it was"),
        pytest.param(None, (*MINUTE, 36_000, NOW - 12_000, 0), (2, 0, 0), id="a bucket refills until now"),
        pytest.param(None, (*MINUTE, 36_000, NOW - 90_000, 0), (0, 0, 0), id="all of it"),
        # 2 of the old come back until the data begin, nothing from then on to the last taking, 1,000 parts after it
        pytest.param((1, NOW - 1_000, 0), (*MINUTE, 48_000, SINCE - 24_000, 0), (3, 1_000, 0), id="beside live ones"),
        pytest.param((1, SINCE + 500, 2), (*MINUTE, 12_000, SINCE, 0), (2, 500, 2), id="what is held stays"),
        pytest.param((4, NOW, 0), (*MINUTE, 48_000, SINCE, 0), (5, 0, 0), id="no more than a whole bucket"),
        pytest.param((9, NOW, 0), (*MINUTE, 48_000, SINCE, 0), (9, 0, 0), id="unless there is more already"),
        pytest.param(
            (1, SINCE - 5_000, 0), (*MINUTE, 12_000, SINCE - 3_000, 0), (2, 6_000, 0), id="told late meanwhile"
        ),
        pytest.param(None, (*MINUTE, 12_000, NOW + 5_000, 0), (1, 0, 0), id="booked by a clock that was ahead"),
        pytest.param((1, NOW, 0), (2**52, 0, 1, 2**52, SINCE, NOW + 9), (2**52, 0, 0), id="up to what is told apart"),
    ],
)
def test_what_is_added(
    data: Data, live: tuple[int, int, int] | None, added: tuple[int, ...], level: tuple[int, int, int]
) -> None:
    if live is not None:
        data.live("l0", live[0], live[1], live[2])
    assert data.add(added) == [b"added", NOW]
    assert data.level() == level


def test_each_limit_is_added_to_once_for_each_contributor(data: Data) -> None:
    one, other = (*DAY, 1, SINCE - 5, NOW + 9_000), (*DAY, 2, SINCE - 5, NOW + 9_000)
    for by in ("mine", "mine", "theirs", "theirs", "mine"):
        data.add(one, by=by)
    assert data.level() == (2, 0, 0)
    data.add(one, other, last=True)
    assert (data.level("l0"), data.level("l1")) == ((2, 0, 0), (2, 0, 0))


def test_other_data_are_not_added_to(data: Data) -> None:
    assert data.add((*DAY, 1, SINCE - 5, NOW + 9), since=SINCE - 7, last=True) == [b"other", NOW]
    assert data.client.exists("l0") == 0
    assert data.client.hgetall("data") == {b"since": str(SINCE).encode()}


def test_lives_are_those_of_settlements(data: Data) -> None:
    data.add((*DAY, 1, SINCE - 5, NOW + 10**10), (*MINUTE, 24_000, NOW, 0))
    assert data.client.pexpiretime("l0") == NOW + 10**10
    assert 0.99 * (24_000 + GRACE) < data.client.pttl("l1") <= 24_000 + GRACE


# ---------------------------------------------------------------- as typed calls
async def test_a_contributor_is_told_when_all_is_added(any_store: StoreServer) -> None:
    [bound] = decided([{"of": "requests", "limit": 5, "per": "365d", "by": ["user"], "name": "rpy"}]).limits
    count = Count(bound, KEYS.limit(bound), None)
    async with opened(any_store.url) as store:
        data = await begin(store, KEYS, "mine")
        recount = Recount(data.since, data.since, 3 * bound.tank.period, 0, 5 * bound.tank.period)
        for is_last in (False, True):
            assert not (await begin(store, KEYS, "mine")).is_complete
            is_added = await add(
                store,
                KEYS,
                [Addition(count, recount)],
                contributor="mine",
                since=data.since,
                grace_milliseconds=GRACE,
                is_last=is_last,
            )
            assert is_added
        told = [await begin(store, KEYS, by) for by in ("mine", "theirs")]
    assert [each.is_complete for each in told] == [True, False]
    with any_store.client() as client:
        assert int(client.hget(count.key, "spent")) == 3


async def test_other_data_are_told(any_store: StoreServer) -> None:
    keys = Keys(ORGANIZATION)
    async with opened(any_store.url) as store:
        data: DataSet = await begin(store, keys)
        is_added = await add(
            store, keys, [], contributor="mine", since=data.since + 1, grace_milliseconds=GRACE, is_last=True
        )
        assert not is_added
        assert not (await begin(store, keys, "mine")).is_complete
