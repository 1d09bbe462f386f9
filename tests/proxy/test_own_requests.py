from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from proxy.metrics import Metrics
from proxy.own_requests import UnderWay


async def hold() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise RuntimeError("nothing foresaw this")


async def test_so_many_of_an_origin_are_under_way_at_most() -> None:
    under_way = UnderWay(Metrics())
    assert [under_way.begin("shadow", hold, most=2) is not None for _ in range(3)] == [True, True, False]
    assert under_way.begin("drift_check", hold, most=1) is not None, "each origin has places of its own"
    await under_way.close()


async def test_who_has_ended_makes_room() -> None:
    under_way = UnderWay(Metrics())
    task = under_way.begin("shadow", hold, most=1)
    assert task is not None
    task.cancel()
    await asyncio.wait([task])
    assert under_way.begin("shadow", hold, most=1) is not None
    await under_way.close()


async def test_what_is_under_way_ends_with_the_process() -> None:
    under_way = UnderWay(Metrics())
    tasks = [under_way.begin("shadow", hold, most=2) for _ in range(2)]
    await asyncio.sleep(0)  # they are at it
    await under_way.close()
    assert [task is not None and task.cancelled() for task in tasks] == [True, True]


async def test_a_fault_of_ours_is_logged_and_ends_nothing_else() -> None:
    under_way = UnderWay(Metrics())
    with capture_logs() as logged:
        task = under_way.begin("shadow", fail, most=1)
        assert task is not None
        await task
    assert [(each["log_level"], each["origin"]) for each in logged] == [("error", "shadow")]
