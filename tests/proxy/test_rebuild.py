from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from admitting import KEYS, ORGANIZATION, Worker, decision, exchange, served, worker
from stores import StoreServer, eventually
from structlog.testing import capture_logs

from policies.usage import Usage
from proxy import rebuild as module
from proxy.config import Configuration
from proxy.errors import StoreUnavailable
from proxy.rebuild import BATCH_LIMITS, Rebuild
from proxy.recount import Recounted
from proxy.store.dataset import add
from proxy.store.outbox import Drainer
from proxy.store.reservations import Ending, Settlement, share

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from proxy.exchange import Exchange

BY_USER = {"per": "day", "by": ["user"]}
DAY = {**BY_USER, "of": "tokens", "limit": 1_000, "name": "tokens-day"}
MONTH = {"of": "requests", "limit": 100, "per": "month", "by": ["project"], "name": "requests-month"}
YEAR = {"of": "tokens", "limit": 1_000, "per": "365d", "by": ["user"], "name": "tokens-year"}  # hardly refills
AT_ONCE = {"of": "concurrency", "limit": 8, "by": ["key"], "name": "concurrency"}
EACH = {"of": "tokens", "limit": 1_000, "per": "day", "by": ["end_user"], "name": "tokens-each"}
LIMITS = (DAY, MONTH, YEAR, AT_ONCE)


@dataclass
class Site:
    """One gateway on a store: a worker, its usage file, and what rebuilds counts from that."""

    server: StoreServer
    folder: Path
    at: Worker
    limits: tuple[dict[str, Any], ...]

    def rebuilder(self) -> Rebuild:
        """Return what a supervisor that has just started has."""
        plain: dict[str, Any] = {
            "data_dir": str(self.folder),
            "organization": {"id": ORGANIZATION, "time_zone": "Europe/Berlin"},
            "upstreams": {"u": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}},
            "models": {"m": {"deployments": [{"upstream": "u"}]}},
            "policies": {"p": {"limits": self.limits}},
            "projects": [{"id": "proj", "policy": "p"}],
            "keys": [{"id": "key_alice", "project": "proj", "user": "alice", "sha256": "0" * 64}],
        }
        return Rebuild(self.at.state, Configuration.model_validate(plain), self.at.metrics)

    async def ask(self, tokens: int = 10, **fields: Any) -> Exchange:  # noqa: ANN401  members of a request
        """Have a request served, of so many tokens."""
        decided = decision(self.limits, max_tokens=10, **fields)
        told = exchange(decided)
        async with self.at.admissions.admit(decided, told):
            served(told, Usage(tokens, 0))
        return told

    async def drain(self) -> None:
        """Move all records into the file, as the supervisor does every quarter of a second."""
        drainer = Drainer(self.at.state, self.folder / "usage.jsonl", KEYS)
        while await drainer.drain():
            pass
        with self.server.client() as client:
            client.delete(KEYS.drainer)

    def lose_data(self) -> None:
        with self.server.client() as client:
            client.flushall()

    def spent(self) -> dict[str, int]:
        """Return what is spent by the names of limits, over all scopes; what nothing is spent of is left out."""
        sums: dict[str, int] = {}
        with self.server.client() as client:
            for key in client.keys("*:limit:*"):
                name = key.decode().split(":")[4]
                sums[name] = sums.get(name, 0) + int(client.hget(key, "spent") or 0)
        return {name: spent for name, spent in sums.items() if spent}


@asynccontextmanager
async def site(server: StoreServer, folder: Path, *limits: dict[str, Any], **more: Any) -> AsyncIterator[Site]:  # noqa: ANN401
    async with worker(server.url, folder / "spool", **more) as at:
        yield Site(server, folder, at, limits or LIMITS)


async def test_counts_are_what_they_were_after_the_data_are_lost(any_store: StoreServer, tmp_path: Path) -> None:
    async with site(any_store, tmp_path) as gateway:
        assert await gateway.rebuilder().rebuild() == 0
        for tokens in (1, 20, 300):
            await gateway.ask(tokens)
        await gateway.ask(0)
        before = gateway.spent()
        await gateway.drain()
        gateway.lose_data()
        assert gateway.spent() == {}
        with capture_logs() as logs:
            assert await gateway.rebuilder().rebuild() == 4
        assert gateway.spent() == before == {"tokens-day": 321, "requests-month": 4, "tokens-year": 321}
        [line] = [each for each in logs if "counted anew" in each["event"]]
        assert (line["records"], line["limits"], line["unreadable_lines"]) == (4, 3, 0)
        assert gateway.at.metrics.rebuilds_total.value == 1
        with any_store.client() as client:
            lives = {key: client.pttl(key) for key in client.keys("*")}
        assert [key for key, life in lives.items() if life < 0] == [], "every key has an end"


async def test_nothing_is_added_twice(any_store: StoreServer, tmp_path: Path) -> None:
    async with site(any_store, tmp_path) as gateway:
        await gateway.ask()
        await gateway.drain()
        gateway.lose_data()
        assert await gateway.rebuilder().rebuild() == 1
        await gateway.ask(5)
        await gateway.drain()
        for _ in range(2):
            assert await gateway.rebuilder().rebuild() == 0
        assert gateway.spent() == {"tokens-day": 15, "requests-month": 2, "tokens-year": 15}


async def test_requests_that_go_on_meanwhile_are_counted_once(any_store: StoreServer, tmp_path: Path) -> None:
    async with site(any_store, tmp_path) as gateway:
        await gateway.ask()
        await gateway.drain()
        gateway.lose_data()
        await gateway.ask(5)  # before anybody has seen that the data are gone
        await gateway.drain()
        assert await gateway.rebuilder().rebuild() == 1
        assert gateway.spent() == {"tokens-day": 15, "requests-month": 2, "tokens-year": 15}


async def test_one_under_way_when_data_are_lost_is_counted_once(any_store: StoreServer, tmp_path: Path) -> None:
    async with site(any_store, tmp_path) as gateway:
        await gateway.ask()
        await gateway.drain()
        decided = decision(gateway.limits, max_tokens=10)
        under_way = [exchange(decided) for _ in range(2)]
        async with gateway.at.admissions.admit(decided, under_way[0]):
            async with gateway.at.admissions.admit(decided, under_way[1]):
                gateway.lose_data()
                served(under_way[1], Usage(7, 0))
            assert await gateway.rebuilder().rebuild() == 1
            served(under_way[0], Usage(3, 0))
        await gateway.drain()
        assert await gateway.rebuilder().rebuild() == 0
        assert gateway.spent() == {"tokens-day": 20, "requests-month": 3, "tokens-year": 20}


async def test_data_that_are_lost_again_and_again(any_store: StoreServer, tmp_path: Path) -> None:
    async with site(any_store, tmp_path) as gateway:
        for round_number in range(1, 4):
            await gateway.ask()
            await gateway.drain()
            gateway.lose_data()
            assert await gateway.rebuilder().rebuild() == round_number
            assert gateway.spent()["tokens-day"] == 10 * round_number


async def test_records_that_nobody_had_drained_are_lost_with_their_counts(
    any_store: StoreServer, tmp_path: Path
) -> None:
    async with site(any_store, tmp_path) as gateway:
        await gateway.ask()
        await gateway.drain()
        await gateway.ask()
        gateway.lose_data()
        await gateway.rebuilder().rebuild()
        assert gateway.spent() == {"tokens-day": 10, "requests-month": 1, "tokens-year": 10}


@pytest.mark.parametrize("is_told_first", [True, False], ids=["told before", "told after"])
async def test_an_end_that_a_spool_tells_once_more_is_counted_once(
    any_store: StoreServer, tmp_path: Path, *, is_told_first: bool
) -> None:
    async with site(any_store, tmp_path, DAY, MONTH) as gateway:
        told = await gateway.ask()
        await gateway.drain()
        gateway.lose_data()
        reservations = gateway.at.admissions.reservations
        counts = reservations.counts(decision(gateway.limits, max_tokens=10).limits, reservations.now())
        shares = tuple(share(count, amount) for count, amount in zip(counts, (10, 1), strict=True))
        again = Settlement(told.request_id, Ending.SETTLE, "{}", shares, reservations.now(), was_sent=True)
        if is_told_first:
            await reservations.send_spooled(again)
        assert await gateway.rebuilder().rebuild() == 1
        if not is_told_first:
            await reservations.send_spooled(again)
        assert gateway.spent() == {"tokens-day": 10, "requests-month": 1}


async def test_each_gateway_of_a_store_adds_what_its_own_file_holds(any_store: StoreServer, tmp_path: Path) -> None:
    async with site(any_store, tmp_path / "a") as one, site(any_store, tmp_path / "b") as other:
        await one.ask(1)
        await one.drain()
        await other.ask(20)
        await other.drain()
        one.lose_data()
        rebuilt = await asyncio.gather(one.rebuilder().rebuild(), other.rebuilder().rebuild())
        assert rebuilt == [1, 1]
        assert await asyncio.gather(one.rebuilder().rebuild(), other.rebuilder().rebuild()) == [0, 0]
        assert one.spent() == {"tokens-day": 21, "requests-month": 2, "tokens-year": 21}


async def test_a_store_that_kept_its_data_is_not_added_to(own_valkey: StoreServer, tmp_path: Path) -> None:
    async with site(own_valkey, tmp_path) as gateway:
        await gateway.rebuilder().rebuild()
        await gateway.ask()
        await gateway.drain()
        own_valkey.kill()
        own_valkey.start()
        await eventually(lambda: gateway.at.state.is_available)
        assert await gateway.rebuilder().rebuild() == 0
        assert gateway.spent() == {"tokens-day": 10, "requests-month": 1, "tokens-year": 10}


async def test_data_of_an_earlier_build_are_not_added_to(any_store: StoreServer, tmp_path: Path) -> None:
    async with site(any_store, tmp_path) as gateway:
        await gateway.ask()
        await gateway.drain()
        with any_store.client() as client:
            client.delete(KEYS.data)  # which it did not write
        assert await gateway.rebuilder().rebuild() == 0
        assert gateway.spent() == {"tokens-day": 10, "requests-month": 1, "tokens-year": 10}


async def test_a_first_start_leaves_nothing_behind_but_when_it_was(any_store: StoreServer, tmp_path: Path) -> None:
    async with site(any_store, tmp_path) as gateway:
        assert await gateway.rebuilder().rebuild() == 0
        assert gateway.at.metrics.rebuilds_total.value == 0
        assert not (tmp_path / "usage.id").exists()
        with any_store.client() as client:
            assert set(client.keys()) - {KEYS.probe.encode()} == {KEYS.data.encode(), KEYS.cache.encode()}


@pytest.mark.parametrize("is_lost_again", [True, False], ids=["lost again", "away for a moment"])
async def test_a_rebuild_that_is_broken_off_is_begun_again(
    any_store: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_lost_again: bool
) -> None:
    many = BATCH_LIMITS + 9
    async with site(any_store, tmp_path, EACH, YEAR) as gateway:
        for number in range(many):
            await gateway.ask(1, user=f"end-user-{number}")
        await gateway.drain()
        gateway.lose_data()
        monkeypatch.setattr("proxy.recount.IN_DOUBT_RECORDS", 5)
        with monkeypatch.context() as broken:
            broken.setattr(module, "add", _breaking(gateway, is_lost_again=is_lost_again))
            if is_lost_again:
                assert await gateway.rebuilder().rebuild() == 0
            else:
                with pytest.raises(StoreUnavailable):
                    await gateway.rebuilder().rebuild()
        assert sum(gateway.spent().values()) < 2 * many
        assert await gateway.rebuilder().rebuild() == many
        assert gateway.spent() == {"tokens-each": many, "tokens-year": many}


def _breaking(gateway: Site, *, is_lost_again: bool) -> Callable[..., Awaitable[bool]]:
    """Return an `add` before whose second call the data are lost once more, or the store has gone."""
    calls = []

    async def adding(*positional: Any, **named: Any) -> bool:  # noqa: ANN401  handed on
        calls.append(None)
        if len(calls) == 2:
            if not is_lost_again:
                raise StoreUnavailable("gone")
            gateway.lose_data()
        return await add(*positional, **named)

    return adding


async def test_it_is_done_as_soon_as_the_store_is_back_and_requests_go_on(
    valkey_without_data: StoreServer, tmp_path: Path
) -> None:
    server = valkey_without_data
    async with site(server, tmp_path) as gateway, asyncio.timeout(20):
        await gateway.ask()
        await gateway.drain()
        watching = asyncio.create_task(gateway.rebuilder().watch())
        for rebuilds in (1, 2):
            server.kill()
            await eventually(lambda: not gateway.at.state.is_available)
            await gateway.ask(3)  # the store will be told
            server.start()
            await eventually(lambda: gateway.at.metrics.rebuilds_total.value == rebuilds)  # noqa: B023  at once
            await eventually(lambda: not gateway.at.spool)
            await gateway.drain()
            assert gateway.spent()["tokens-day"] == 10 + 3 * rebuilds
        watching.cancel()


@pytest.fixture
def valkey_without_data() -> Any:  # noqa: ANN401  a fixture
    with StoreServer() as server:
        yield server


async def test_a_file_that_cannot_be_read_is_told_once_and_tried_again(
    any_store: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    async with site(any_store, tmp_path) as gateway, asyncio.timeout(20):
        await gateway.ask()
        await gateway.drain()
        gateway.lose_data()
        file, aside = tmp_path / "usage.jsonl", tmp_path / "aside"
        file.rename(aside)
        file.mkdir()
        with capture_logs() as logs:
            watching = asyncio.create_task(gateway.rebuilder().watch())
            await eventually(lambda: bool(logs))
            file.rmdir()
            aside.rename(file)
            await eventually(lambda: gateway.at.metrics.rebuilds_total.value == 1)
        watching.cancel()
        assert [each["event"] for each in logs][:1] == ["limits are not yet counted anew from usage records"]
        assert len(logs) == 2


async def test_a_gateway_that_ends_waits_for_no_file_to_be_read(
    any_store: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def read_for_ever(*arguments: Any) -> Recounted:  # noqa: ANN401  of which only the last is of interest
        begun.set()
        while not arguments[-1]():
            pass
        ended.set()
        return Recounted()

    monkeypatch.setattr(module, "recount", read_for_ever)
    async with site(any_store, tmp_path) as gateway, asyncio.timeout(20):
        (tmp_path / "usage.jsonl").touch()
        watching = asyncio.create_task(gateway.rebuilder().watch())
        await eventually(begun.is_set)
        watching.cancel()
        await eventually(ended.is_set)
