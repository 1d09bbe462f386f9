from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from admitting import KEYS, decision, exchange, records, worker

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
            await asyncio.gather(*(at.admissions._upkeep.sweep() for at in (one, other, third)))  # noqa: SLF001
            booked = [json.loads(record)["request_id"] for record in records(client)]
        assert len(booked) == len(set(booked)) == 130
        assert one.metrics.reservations_expired_total.value == 0
        assert sum(at.metrics.reservations_expired_total.value for at in (other, third)) == 130


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
        await at.admissions._upkeep.deliver()  # noqa: SLF001  what its loop does
        assert len(at.spool) == 0
    assert (tmp_path / "refused.jsonl").exists()


async def test_a_spool_that_cannot_be_delivered_at_the_end_is_kept(tmp_path: Path) -> None:
    async with worker("unix:///nowhere", tmp_path) as at:
        decided = decision(LIMITS)
        async with at.admissions.admit(decided, exchange(decided)):
            pass
    assert list(tmp_path.glob("*.spool"))  # noqa: ASYNC240  a test waits for its disk
