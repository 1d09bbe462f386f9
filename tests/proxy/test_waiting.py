from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from admitting import KEYS, decision, exchange, held, records, served, worker
from stores import eventually

from policies.errors import LimitExceeded
from policies.usage import Usage
from proxy.errors import StoreUnavailable
from proxy.exchange import CacheResult, Outcome
from proxy.store import reservations
from proxy.store.entries import StoredAnswer
from proxy.waiting import Sleepers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from admitting import Worker
    from stores import StoreServer

    from policies.decision import Decision

WAIT = {"on_exceed": "wait"}
ONE_AT_ONCE = {"of": "concurrency", "limit": 1, "by": ["user"], **WAIT}
TWO_AT_ONCE = {**ONE_AT_ONCE, "limit": 2}
HUNDRED = {"of": "tokens", "limit": 100, "per": "day", "by": ["user"], **WAIT}
TWO_REQUESTS = {"of": "requests", "limit": 2, "per": "100ms", "by": ["user"], **WAIT}


def in_line(server: StoreServer) -> int:
    with server.client() as client:
        return sum(client.zcard(key) for key in client.keys("*:queue:*"))


def waiting(at: Worker) -> float:
    return sum(value for _, value in at.metrics.limit_waiting.series())


def stored(usage: Usage) -> StoredAnswer:
    """Return an answer to be kept, made in 2109, so that it is never too old."""
    return StoredAnswer(
        is_stream=False, content_type="application/json", body=b"{}", created_milliseconds=2**42, usage=usage
    )


class Request:
    """One request that holds its room until it is told to end, or to leave."""

    def __init__(self, at: Worker, decided: Decision, usage: Usage | None = None) -> None:
        self.told = exchange(decided)
        self.entered = asyncio.Event()
        self.may_end = asyncio.Event()
        self._usage = usage or Usage(2, 3)
        self.task = asyncio.create_task(self._run(at, decided))

    async def _run(self, at: Worker, decided: Decision) -> None:
        async with at.admissions.admit(decided, self.told) as admission:
            self.entered.set()
            await self.may_end.wait()
            served(self.told, self._usage)
            await admission.settle()

    async def end(self) -> None:
        self.may_end.set()
        async with asyncio.timeout(5):
            await self.task


@asynccontextmanager
async def running(at: Worker, decided: Decision) -> AsyncIterator[Request]:
    """Run a request that has been admitted inside, and ends afterwards."""
    request = Request(at, decided)
    await asyncio.wait_for(request.entered.wait(), 5)
    yield request
    await request.end()


async def test_whoever_waits_is_admitted_when_room_comes_back(any_store: StoreServer, tmp_path: Path) -> None:
    async with worker(any_store.url, tmp_path) as at:
        async with running(at, decision([ONE_AT_ONCE])):
            second = Request(at, decision([ONE_AT_ONCE]))
            await eventually(lambda: in_line(any_store) == 1)
            assert not second.entered.is_set()
            assert waiting(at) == 1
        await asyncio.wait_for(second.entered.wait(), 5)
        assert (in_line(any_store), waiting(at)) == (0, 0)
        assert second.told.waited_seconds > 0
        await second.end()
    with any_store.client() as client:
        assert (held(client), len(records(client))) == (0, 2)


async def test_first_come_first_served_whatever_worker_they_ask(any_store: StoreServer, tmp_path: Path) -> None:
    order: list[int] = []
    async with worker(any_store.url, tmp_path / "a") as one, worker(any_store.url, tmp_path / "b") as other:
        async with running(one, decision([ONE_AT_ONCE])):
            waiters = []
            for number in range(6):
                waiters.append(Request((one, other)[number % 2], decision([ONE_AT_ONCE])))
                await eventually(lambda: in_line(any_store) == len(waiters))

        async def follow(number: int, request: Request) -> None:
            await request.entered.wait()
            order.append(number)
            await request.end()

        async with asyncio.timeout(10):
            await asyncio.gather(*(follow(number, request) for number, request in enumerate(waiters)))
    assert order == [0, 1, 2, 3, 4, 5]


async def test_a_large_request_is_not_passed_by_small_ones(valkey: StoreServer, tmp_path: Path) -> None:
    small, large = (decision([HUNDRED], prompt=[1] * 10, max_tokens=tokens) for tokens in (20, 80))
    async with worker(valkey.url, tmp_path) as at:
        async with running(at, small):
            first = Request(at, large)
            await eventually(lambda: in_line(valkey) == 1)
            behind = Request(at, small)  # there would be room for it
            await eventually(lambda: in_line(valkey) == 2)
            assert not behind.entered.is_set()
        await asyncio.wait_for(first.entered.wait(), 5)
        assert not behind.entered.is_set()
        await first.end()
        await asyncio.wait_for(behind.entered.wait(), 5)
        await behind.end()


async def test_those_who_fit_beside_what_is_asked_for_ahead_need_not_wait_for_it(
    valkey: StoreServer, tmp_path: Path
) -> None:
    """Of three in line two fit when both places become free at once, in whatever order they look."""
    async with worker(valkey.url, tmp_path) as at:
        async with running(at, decision([TWO_AT_ONCE])), running(at, decision([TWO_AT_ONCE])):
            waiters = [Request(at, decision([TWO_AT_ONCE])) for _ in range(3)]
            await eventually(lambda: in_line(valkey) == 3)
        await eventually(lambda: sum(each.entered.is_set() for each in waiters) == 2)
        assert in_line(valkey) == 1
        for each in sorted(waiters, key=lambda each: not each.entered.is_set()):
            await each.end()


async def test_whoever_leaves_leaves_the_line(any_store: StoreServer, tmp_path: Path) -> None:
    async with worker(any_store.url, tmp_path) as at:
        async with running(at, decision([ONE_AT_ONCE])):
            gone, behind = Request(at, decision([ONE_AT_ONCE])), None
            await eventually(lambda: in_line(any_store) == 1)
            behind = Request(at, decision([ONE_AT_ONCE]))
            await eventually(lambda: in_line(any_store) == 2)
            gone.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone.task
            await eventually(lambda: in_line(any_store) == 1)
            assert waiting(at) == 1
        await asyncio.wait_for(behind.entered.wait(), 5)
        await behind.end()
    with any_store.client() as client:
        assert held(client) == 0


async def test_those_behind_a_worker_that_died_do_not_wait_for_it(valkey: StoreServer, tmp_path: Path) -> None:
    async with worker(valkey.url, tmp_path / "a") as dead, worker(valkey.url, tmp_path / "b") as alive:
        async with running(alive, decision([ONE_AT_ONCE])):
            lost = Request(dead, decision([ONE_AT_ONCE]))
            await eventually(lambda: in_line(valkey) == 1)
            for call in ("send_admit", "send_leave", "send"):  # from here on nothing of it reaches the store
                setattr(dead.admissions.reservations, call, _never)
            waiter = Request(alive, decision([ONE_AT_ONCE]))
            await eventually(lambda: in_line(valkey) == 2)
        await asyncio.wait_for(waiter.entered.wait(), 5)
        await waiter.end()
        lost.task.cancel()


def _never(*_arguments: Any, **_named: Any) -> asyncio.Future[Any]:  # noqa: ANN401  whatever it is called with
    return asyncio.get_running_loop().create_future()


async def test_who_has_waited_long_enough_is_refused(valkey: StoreServer, tmp_path: Path) -> None:
    limit = {**ONE_AT_ONCE, "max_wait": "50ms"}
    async with worker(valkey.url, tmp_path) as at, running(at, decision([limit])):
        request = Request(at, decision([limit]))
        with pytest.raises(LimitExceeded, match="0 left"):
            await asyncio.wait_for(request.task, 5)
        assert request.told.waited_seconds >= 0.05
        assert (in_line(valkey), waiting(at)) == (0, 0)


@pytest.mark.parametrize(
    ("limits", "fields"),
    [
        pytest.param([{**HUNDRED, "limit": 10}], {"max_tokens": 40}, id="what can never fit"),
        pytest.param([HUNDRED], {"prompt": [1] * 60, "max_tokens": 40}, id="what fits tomorrow"),
        pytest.param(
            [TWO_AT_ONCE, {**HUNDRED, "on_exceed": "refuse"}],
            {"prompt": [1] * 60, "max_tokens": 40},
            id="what another limit refuses",
        ),
    ],
)
async def test_nobody_waits_for_what_cannot_come(
    valkey: StoreServer, tmp_path: Path, limits: list[dict[str, Any]], fields: dict[str, Any]
) -> None:
    async with worker(valkey.url, tmp_path) as at:
        for limit in limits:
            await _use(at, limit, 60)
        request = Request(at, decision(limits, **fields))
        with pytest.raises(LimitExceeded):
            await asyncio.wait_for(request.task, 5)
        assert request.told.waited_seconds == 0


async def _use(at: Worker, limit: dict[str, Any], tokens: int) -> None:
    if limit["of"] == "tokens" and limit["limit"] >= tokens:
        async with running(at, decision([limit], prompt=[1] * 10, max_tokens=tokens - 10)) as request:
            request._usage = Usage(10, tokens - 10)  # noqa: SLF001  what it takes in the end


async def test_a_bucket_admits_as_it_refills(valkey: StoreServer, tmp_path: Path) -> None:
    """Two at once and twenty a second after: ten requests take at least (10 - 2) / 20 s."""
    async with worker(valkey.url, tmp_path) as at:
        began = asyncio.get_running_loop().time()
        requests = [Request(at, decision([TWO_REQUESTS])) for _ in range(10)]
        for each in requests:
            each.may_end.set()
        async with asyncio.timeout(5):
            await asyncio.gather(*(each.task for each in requests))
        assert asyncio.get_running_loop().time() - began >= 0.4


async def test_an_answer_from_the_cache_need_not_wait_for_tokens(valkey: StoreServer, tmp_path: Path) -> None:
    limits = [{**HUNDRED, "per": "2s"}]
    asked = decision(limits, prompt=[1] * 10, max_tokens=50, temperature=0)
    async with worker(valkey.url, tmp_path) as at:
        told = exchange(asked)
        async with at.admissions.admit(asked, told) as admission:
            served(told, Usage(10, 50))
            await admission.settle(stored(Usage(10, 50)))
        async with running(at, decision(limits, prompt=[1] * 10, max_tokens=30)):
            again = exchange(asked)
            async with at.admissions.admit(asked, again) as admission:
                again.outcome, again.status = Outcome.COMPLETED, 200
                assert admission.cache.answer is not None
            assert again.waited_seconds == 0


async def test_an_answer_that_is_stored_meanwhile_is_found(valkey: StoreServer, tmp_path: Path) -> None:
    asked = decision([HUNDRED], prompt=[1] * 10, max_tokens=60, temperature=0)
    async with worker(valkey.url, tmp_path) as at:
        first, second = exchange(asked), exchange(asked)
        async with at.admissions.admit(asked, first) as admission:
            waits = asyncio.create_task(_cached(at, asked, second))
            await eventually(lambda: in_line(valkey) == 1)
            served(first, Usage(10, 60))
            await admission.settle(stored(Usage(10, 60)))
        assert await asyncio.wait_for(waits, 5) is True


async def test_who_found_an_answer_and_no_room_was_not_served_with_it(valkey: StoreServer, tmp_path: Path) -> None:
    limits = [{**ONE_AT_ONCE, "max_wait": "50ms"}]
    asked = decision(limits, prompt=[1], max_tokens=5, temperature=0)
    async with worker(valkey.url, tmp_path) as at:
        told = exchange(asked)
        async with at.admissions.admit(asked, told) as admission:
            served(told, Usage(1, 5))
            await admission.settle(stored(Usage(1, 5)))
        async with running(at, decision(limits)):
            refused = Request(at, asked)
            with pytest.raises(LimitExceeded):
                await asyncio.wait_for(refused.task, 5)
            assert (refused.told.cache, refused.told.answer.usage) == (CacheResult.MISS, None)


async def _cached(at: Worker, asked: Decision, told: Any) -> bool:  # noqa: ANN401  an exchange
    async with at.admissions.admit(asked, told) as admission:
        told.outcome, told.status = Outcome.COMPLETED, 200
        return admission.cache.answer is not None


@pytest.mark.parametrize(
    ("on_failure", "becomes"),
    [
        pytest.param("allow", "admitted", id="allow lets it through"),
        pytest.param("deny", "unavailable", id="deny says so"),
        pytest.param("local", "waits", id="local goes on waiting for what this worker gives back"),
    ],
)
async def test_the_store_goes_away_while_they_wait(
    own_valkey: StoreServer, tmp_path: Path, on_failure: str, becomes: str
) -> None:
    limit = {**ONE_AT_ONCE, "on_store_failure": on_failure}
    async with worker(own_valkey.url, tmp_path) as at:
        async with running(at, decision([limit])):
            request = Request(at, decision([limit]))
            await eventually(lambda: in_line(own_valkey) == 1)
            own_valkey.kill()
            await eventually(lambda: not at.state.is_available)
            if becomes == "unavailable":
                with pytest.raises(StoreUnavailable):
                    await asyncio.wait_for(request.task, 5)
            elif becomes == "admitted":
                await asyncio.wait_for(request.entered.wait(), 5)
            else:
                assert not request.entered.is_set()
        if becomes != "unavailable":
            await asyncio.wait_for(request.entered.wait(), 5)
            await request.end()


async def test_whoever_cannot_be_counted_while_the_store_is_away_leaves_the_line_when_it_is_back(
    own_valkey: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservations, "WAITER_LIFE_MILLISECONDS", 600_000)  # so that nobody is taken for dead
    denying = {**ONE_AT_ONCE, "on_store_failure": "deny"}
    async with worker(own_valkey.url, tmp_path) as at, running(at, decision([denying])):
        waiting_one = Request(at, decision([denying]))
        await eventually(lambda: in_line(own_valkey) == 1)
        own_valkey.kill()
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(waiting_one.task, 5)
        own_valkey.start()
        await eventually(lambda: at.state.is_available)
        await eventually(lambda: in_line(own_valkey) == 0)


async def test_a_line_has_an_end(valkey: StoreServer, tmp_path: Path) -> None:
    async with worker(valkey.url, tmp_path) as at, running(at, decision([ONE_AT_ONCE])):
        waiter = Request(at, decision([ONE_AT_ONCE]))
        await eventually(lambda: in_line(valkey) == 1)
        with valkey.client() as client:
            [line] = client.keys("*:queue:*")
            client.zadd(line, {f"other-{number}": 1 for number in range(999)})
        with pytest.raises(LimitExceeded):
            await asyncio.wait_for(Request(at, decision([ONE_AT_ONCE])).task, 5)
        waiter.task.cancel()


def test_lines_share_the_organizations_hash_tag() -> None:
    [bound] = decision([HUNDRED]).limits
    line, waiters = KEYS.line(bound)
    assert line.startswith("tidegate:{org_acme}:queue:p:")
    assert waiters.startswith("tidegate:{org_acme}:waiters:p:")


async def test_sleepers_are_woken_in_the_order_in_which_they_came() -> None:
    sleepers = Sleepers()
    with sleepers.place("a", ["k"]) as first, sleepers.place("b", ["k", "other"]) as second:
        sleepers.wake(["k"])
        assert (first.is_awake, second.is_awake) == (True, False)
        sleepers.wake(["k"])
        assert second.is_awake
        await first.sleep(60)
        assert not first.is_awake
        sleepers.wake(["unknown"])


async def test_who_is_done_wakes_the_next() -> None:
    sleepers = Sleepers()
    with sleepers.place("a", ["k"]):
        with sleepers.place("b", ["k"]) as behind:
            pass
        with sleepers.place("c", ["k"]) as last:
            assert not last.is_awake
        assert not behind.is_awake
    with sleepers.place("d", ["k"]) as first:
        with sleepers.place("e", ["k"]):
            pass
        assert first.is_awake
