from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import pytest
from admitting import KEYS, decision, exchange, records, served, spent, worker
from msgspec.structs import replace
from stores import eventually

from policies.usage import Usage
from proxy.errors import StoreUnavailable
from proxy.store.reservations import Ending, Settlement, share

if TYPE_CHECKING:
    from pathlib import Path

    from stores import StoreServer

LIMITS = [{"of": "tokens", "limit": 100_000, "per": "minute", "by": ["user"]}]


async def test_more_holds_than_one_batch_are_renewed(valkey: StoreServer, tmp_path: Path) -> None:
    decided = decision(LIMITS, max_tokens=1)
    async with worker(valkey.url, tmp_path) as at:
        frames = [at.admissions.admit(decided, exchange(decided)) for _ in range(230)]
        await asyncio.gather(*(frame.__aenter__() for frame in frames))
        with valkey.client() as client:
            client.zadd(KEYS.leases, dict.fromkeys(client.zrange(KEYS.leases, 0, -1), 1))
            await at.admissions._upkeep.renew()  # noqa: SLF001  what its loop does
            assert client.zcard(KEYS.leases) == 230
            assert client.zcount(KEYS.leases, 0, 1) == 0
        await asyncio.gather(*(frame.__aexit__(None, None, None) for frame in frames))


async def test_more_orphans_than_one_batch_are_booked_once_whoever_sweeps(valkey: StoreServer, tmp_path: Path) -> None:
    decided = decision(LIMITS, max_tokens=1)
    async with (
        worker(valkey.url, tmp_path / "a") as one,
        worker(valkey.url, tmp_path / "b") as other,
        worker(valkey.url, tmp_path / "c") as third,
    ):
        frames = [one.admissions.admit(decided, exchange(decided)) for _ in range(130)]
        await asyncio.gather(*(frame.__aenter__() for frame in frames))
        with valkey.client() as client:
            client.zadd(KEYS.leases, dict.fromkeys(client.zrange(KEYS.leases, 0, -1), 1))
            await asyncio.gather(*(at.admissions._upkeep.sweep() for at in (other, third)))  # noqa: SLF001
            booked = [json.loads(record)["request_id"] for record in records(client)]
        assert len(booked) == len(set(booked)) == 130
        assert sum(at.metrics.reservations_expired_total.value for at in (other, third)) == 130


async def test_a_sweep_keeps_what_lives_here_however_many_have_expired(valkey: StoreServer, tmp_path: Path) -> None:
    decided = decision(LIMITS, max_tokens=1)
    async with worker(valkey.url, tmp_path) as at, asyncio.timeout(10):
        frames = [at.admissions.admit(decided, exchange(decided)) for _ in range(130)]
        await asyncio.gather(*(frame.__aenter__() for frame in frames))
        frames[0].is_local = True  # the store admitted it though its answer was lost
        with valkey.client() as client:
            client.zadd(KEYS.leases, dict.fromkeys(client.zrange(KEYS.leases, 0, -1), 1))
            await at.admissions._upkeep.sweep()  # noqa: SLF001  what its loop does
            assert (client.zcount(KEYS.leases, 0, 1), client.zcard(KEYS.leases)) == (0, 130)
        assert at.metrics.reservations_expired_total.value == 0


async def test_holds_that_stay_expired_do_not_hold_up_a_sweep(
    valkey: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def renew_nothing() -> None:
        pass

    decided = decision(LIMITS, max_tokens=1)
    async with worker(valkey.url, tmp_path) as at, asyncio.timeout(10):
        frames = [at.admissions.admit(decided, exchange(decided)) for _ in range(130)]
        await asyncio.gather(*(frame.__aenter__() for frame in frames))
        with valkey.client() as client:
            client.zadd(KEYS.leases, dict.fromkeys(client.zrange(KEYS.leases, 0, -1), 1))
            monkeypatch.setattr(at.admissions._upkeep, "renew", renew_nothing)  # noqa: SLF001
            await at.admissions._upkeep.sweep()  # noqa: SLF001  what its loop does
            assert client.zcount(KEYS.leases, 0, 1) == 130


async def test_a_hold_that_the_store_refuses_to_book_does_not_hold_up_the_others(
    valkey: StoreServer, tmp_path: Path
) -> None:
    odd_key = KEYS.leases.replace("leases", "limit:odd")
    async with worker(valkey.url, tmp_path) as at:
        with valkey.client() as client:
            client.set(odd_key, "no hash")
            for name, limits in (("odd", f'[["{odd_key}",1,1,1,1,0]]'), ("even", "[]")):
                client.hset(KEYS.hold(name), mapping={"state": "held", "limits": limits, "record": "{}"})
            client.zadd(KEYS.leases, {"odd": 1, "even": 2})
            await at.admissions._upkeep.sweep()  # noqa: SLF001  what its loop does
            assert client.zrange(KEYS.leases, 0, -1) == [b"odd"]


async def test_nobody_sweeps_before_the_store_has_been_here_for_a_lease(
    own_valkey: StoreServer, tmp_path: Path
) -> None:
    decided = decision([{"of": "concurrency", "limit": 1, "by": ["user"]}])
    async with (
        worker(own_valkey.url, tmp_path / "a", lease_seconds=1.0) as one,
        worker(own_valkey.url, tmp_path / "b", lease_seconds=1.0) as other,
    ):
        told = exchange(decided)
        async with one.admissions.admit(decided, told):
            own_valkey.kill()
            await asyncio.sleep(1.2)  # the outage outlasts the lease
            own_valkey.start()
            await eventually(lambda: other.state.is_available)
            await other.admissions._upkeep._sweep_when_steady()  # noqa: SLF001  what its loop does
            with own_valkey.client() as client:
                started = time.time() * 1000
                await eventually(lambda: client.zscore(KEYS.leases, told.request_id) > started)
        assert other.metrics.reservations_expired_total.value == 0


async def test_a_lease_without_a_hold_is_forgotten(valkey: StoreServer, tmp_path: Path) -> None:
    async with worker(valkey.url, tmp_path) as at:
        with valkey.client() as client:
            client.zadd(KEYS.leases, {"nobody": 1})
            await at.admissions._upkeep.sweep()  # noqa: SLF001  what its loop does
            assert client.exists(KEYS.leases) == 0
        assert at.metrics.reservations_expired_total.value == 0


async def test_a_hold_that_another_build_wrote_is_given_up_without_harm(valkey: StoreServer, tmp_path: Path) -> None:
    async with worker(valkey.url, tmp_path) as at:
        with valkey.client() as client:
            client.hset(KEYS.hold("odd"), mapping={"state": "held", "limits": '{"unknown":1}', "record": "{}"})
            client.zadd(KEYS.leases, {"odd": 1})
            await at.admissions._upkeep.sweep()  # noqa: SLF001  what its loop does
            assert (client.exists(KEYS.leases), records(client)) == (0, [b"{}"])


async def test_what_the_spool_holds_and_nobody_can_read_is_set_aside(valkey: StoreServer, tmp_path: Path) -> None:
    async with worker(valkey.url, tmp_path) as at:
        at.spool.append("settlement", "no json")
        await eventually(lambda: len(at.spool) == 0)
    assert (tmp_path / "refused.jsonl").exists()


@pytest.mark.parametrize("odd", ["outbox", "leases", "limit"])
async def test_a_settlement_that_is_refused_waits_until_its_key_is_mended(
    valkey: StoreServer, tmp_path: Path, odd: str
) -> None:
    decided = decision([{"of": "tokens", "limit": 1_000, "per": "day", "by": ["user"]}])
    told = exchange(decided)
    async with worker(valkey.url, tmp_path) as at:
        with valkey.client() as client:
            async with at.admissions.admit(decided, told) as admission:
                key = {"outbox": KEYS.outbox, "leases": KEYS.leases, "limit": admission.counts[0].key}[odd]
                client.delete(key)
                client.set(key, "junk")
                served(told, Usage(4, 6))
            with pytest.raises(StoreUnavailable):
                await at.admissions._upkeep.deliver()  # noqa: SLF001  what its loop does
            assert len(at.spool) == 1
            client.delete(key)
            await eventually(lambda: len(at.spool) == 0)
            assert (len(records(client)), spent(client, "tokens")) == (1, 10)
    assert not list(tmp_path.glob("refused*"))  # noqa: ASYNC240  a test waits for its disk


async def test_a_spool_whose_disk_fails_does_not_keep_the_worker_from_closing(
    valkey: StoreServer, tmp_path: Path
) -> None:
    (tmp_path / "refused.jsonl").mkdir()
    async with worker(valkey.url, tmp_path) as at:
        at.spool.append("settlement", "no json")
        await at.admissions.close()
        assert (len(at.spool), at.metrics.unhandled_errors_total.labels("upkeep").value) == (1, 1)


async def test_many_ends_are_delivered_in_order_and_once(valkey: StoreServer, tmp_path: Path) -> None:
    async with worker(valkey.url, tmp_path) as at:
        for number in range(150):
            at.admissions._upkeep.keep(Settlement(f"r{number}", Ending.SETTLE, f"{number}", (), 0))  # noqa: SLF001
        at.admissions._upkeep.keep(Settlement("r0", Ending.SETTLE, "again", (), 0))  # noqa: SLF001
        await eventually(lambda: len(at.spool) == 0)
    with valkey.client() as client:
        assert records(client) == [b"%d" % number for number in range(150)]


@pytest.mark.parametrize(
    ("was_sent", "minutes", "booked"),
    [
        pytest.param(True, 1, [10, 20], id="sent, and its tombstone would be there: it did not arrive"),
        pytest.param(True, 20, [10, 10], id="sent, and its tombstone may be gone: it may have arrived"),
        pytest.param(False, 20, [10, 20], id="never sent before"),
        pytest.param(False, 2_000, [10, 10], id="a day later nobody knows"),
    ],
)
async def test_a_settlement_whose_tombstone_is_gone(
    valkey: StoreServer,
    tmp_path: Path,
    was_sent: bool,  # noqa: FBT001
    minutes: int,
    booked: list[int],
) -> None:
    month = {"of": "tokens", "limit": 1_000, "per": "month", "by": ["user"]}
    async with worker(valkey.url, tmp_path) as at, asyncio.timeout(10):
        now = at.admissions.now()
        counts = at.admissions.reservations.counts(decision([month]).limits, now)
        shares = tuple(share(count, 10) for count in counts)
        settlement = Settlement("r", Ending.SETTLE, "{}", shares, now)
        await at.admissions.reservations.send(settlement)
        spent_so_far = []
        with valkey.client() as client:
            spent_so_far.append(spent(client, "tokens"))
            client.delete(KEYS.hold("r"))
            late = replace(settlement, was_sent=was_sent, ended_milliseconds=now - minutes * 60_000)
            at.admissions._upkeep.keep(late)  # noqa: SLF001  as if its answer had been lost
            await eventually(lambda: len(at.spool) == 0)
            spent_so_far.append(spent(client, "tokens"))
            assert client.pttl(KEYS.hold("r")) > 86_400_000
    assert spent_so_far == booked


async def test_a_spool_that_cannot_be_delivered_at_the_end_is_kept(tmp_path: Path) -> None:
    async with worker("unix:///nowhere", tmp_path) as at:
        decided = decision(LIMITS)
        async with at.admissions.admit(decided, exchange(decided)):
            pass
    assert list(tmp_path.glob("*.spool"))  # noqa: ASYNC240  a test waits for its disk
