"""The supervisor's side of its workers, against stand-ins that speak the real channel in processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from proxy import workers as supervised
from proxy.channel import Begin
from proxy.config_values import Address
from proxy.listening import listening
from proxy.metrics import Metrics, Snapshot, add_up
from proxy.workers import FAILURES_AT_START, Workers, WorkersFailed

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = ROOT / "tests" / "support" / "stand_in_worker.py"
ENTRY = (
    "import sys, runpy; sys.path.insert(0, sys.argv[1]); del sys.argv[:2]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)
PATIENCE_SECONDS = 20


def listen(count: int) -> Iterator[list[socket.socket]]:
    with listening(Address("127.0.0.1", 0), setting="listen", count=count) as sockets:
        yield sockets


@pytest.fixture
def ports() -> Iterator[list[socket.socket]]:
    yield from listen(2)


@pytest.fixture
def one_port() -> Iterator[list[socket.socket]]:
    yield from listen(1)


def make_workers(
    ports: list[socket.socket], manner: str = "serve", *, metrics: Metrics | None = None, python: str = sys.executable
) -> Workers:
    begins = [Begin(number, b"{}", "unix:///nowhere", "unix:///nowhere") for number in range(len(ports))]
    return Workers(begins, ports, metrics or Metrics(), (python, "-c", ENTRY, str(ROOT), str(STAND_IN), manner))


def running(pids: set[int]) -> set[int]:
    """Return those of the processes that still exist."""
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}


async def ask(ports: list[socket.socket]) -> int:
    """Return the process id of whichever worker answers."""
    return (await asked(ports))[0]


async def asked(ports: list[socket.socket]) -> tuple[int, bytes]:
    """Return the process id of whichever worker answers, and by which configuration it goes.

    One that ends just then may take a connection with it.
    """
    answer = b""
    while not answer:
        reader, writer = await asyncio.open_connection(*ports[0].getsockname())
        try:
            with suppress(ConnectionError):
                answer = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
        finally:
            writer.close()
    pid, _, configuration = answer.partition(b" ")
    return int(pid), configuration


async def configurations(ports: list[socket.socket], count: int) -> dict[int, bytes]:
    """Ask until so many different workers have answered, and return by which configuration each goes."""
    met: dict[int, bytes] = {}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(met) < count:
            met.update([await asked(ports)])
    return met


async def meet_all(ports: list[socket.socket], count: int) -> set[int]:
    """Ask until so many different workers have answered; the kernel spreads connections over them."""
    met: set[int] = set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(met) < count:
            met.add(await ask(ports))
    return met


def number(snapshots: list[Snapshot], name: str) -> float:
    [(_, data)] = add_up(snapshots)[name]
    assert isinstance(data, float)
    return data


async def test_connections_are_spread_over_all_workers(ports: list[socket.socket]) -> None:
    async with make_workers(ports) as workers:
        await workers.wait_ready()
        assert len(await meet_all(ports, 2)) == 2
        assert workers.missing() == []


async def test_a_killed_worker_comes_back_its_counters_stay_and_its_gauges_vanish(ports: list[socket.socket]) -> None:
    async with make_workers(ports) as workers:
        await workers.wait_ready()
        met = await meet_all(ports, 2)
        before = await workers.snapshots()
        victim = met.pop()
        os.kill(victim, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while victim in await meet_all(ports, 2):
                pass
        after = await workers.snapshots()
        assert number(before, "open_streams") == 2
        assert number(after, "cache_stores_total") >= number(before, "cache_stores_total") + 2
        assert number(after, "open_streams") == 2


async def test_a_dead_workers_counters_are_told_while_it_is_away(one_port: list[socket.socket]) -> None:
    async with make_workers(one_port) as workers:
        await workers.wait_ready()
        victim = await ask(one_port)
        await workers.snapshots()
        os.kill(victim, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not workers.missing():  # noqa: ASYNC110  the kernel tells nobody but the supervisor
                await asyncio.sleep(0)
        snapshots = await workers.snapshots()
        assert number(snapshots, "cache_stores_total") == 1
        assert "open_streams" not in add_up(snapshots)


async def meet_another(ports: list[socket.socket], than: int) -> int:
    """Ask until another worker than this one answers."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (pid := await ask(ports)) == than:
            pass
    return pid


async def test_a_worker_that_hangs_is_killed_and_started_again(
    one_port: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    async with make_workers(one_port, metrics=metrics) as workers:
        await workers.wait_ready()
        monkeypatch.setattr(supervised, "SILENCE_SECONDS", 0.1)
        victim = await ask(one_port)  # tells once more, and from then on nothing
        os.kill(victim, signal.SIGSTOP)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while running({victim}):  # noqa: ASYNC110  the kernel tells nobody but the supervisor
                await asyncio.sleep(0)
        monkeypatch.undo()
        assert await meet_another(one_port, victim)
        assert metrics.worker_restarts_total.labels("0").value >= 1


async def test_a_worker_that_cannot_be_understood_is_told_and_started_again(one_port: list[socket.socket]) -> None:
    metrics = Metrics()
    async with make_workers(one_port, "babble", metrics=metrics) as workers:
        await workers.wait_ready()
        victim = await ask(one_port)
        await workers.snapshots()
        assert await meet_another(one_port, victim)
        assert metrics.unhandled_errors_total.labels("worker").value >= 1


async def test_a_reload_reaches_every_worker_and_its_successors(ports: list[socket.socket]) -> None:
    async with make_workers(ports) as workers:
        await workers.wait_ready()
        before = await configurations(ports, 2)
        assert set(before.values()) == {b"{}"}
        assert await workers.reload(b"new") is None
        after = await configurations(ports, 2)
        assert after == dict.fromkeys(before, b"new")
        victim = next(iter(before))
        os.kill(victim, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while victim in (after := await configurations(ports, 2)):
                pass
        assert set(after.values()) == {b"new"}


async def test_what_one_worker_cannot_prepare_changes_none(one_port: list[socket.socket]) -> None:
    async with make_workers(one_port, "stubborn") as workers:
        await workers.wait_ready()
        assert await workers.reload(b"new") == "it will not"
        victim, configuration = await asked(one_port)
        assert configuration == b"{}"
        os.kill(victim, signal.SIGKILL)
        assert await meet_another(one_port, victim)
        assert (await asked(one_port))[1] == b"{}"


async def test_a_worker_that_dies_of_a_reload_does_not_hold_it_up(one_port: list[socket.socket]) -> None:
    async with make_workers(one_port, "frail") as workers:
        await workers.wait_ready()
        victim = await ask(one_port)
        assert await asyncio.wait_for(workers.reload(b"new"), PATIENCE_SECONDS) is None
        assert await meet_another(one_port, victim)
        assert (await asked(one_port))[1] == b"new"


async def test_a_worker_that_cannot_switch_makes_room_for_one_that_can(one_port: list[socket.socket]) -> None:
    async with make_workers(one_port, "forgetful") as workers:
        await workers.wait_ready()
        victim = await ask(one_port)
        with capture_logs() as logged:
            assert await workers.reload(b"new") is None
        assert [line["reason"] for line in logged if "cannot switch" in line["event"]] == ["it has forgotten"]
        assert await meet_another(one_port, victim)
        assert (await asked(one_port))[1] == b"new"


async def test_a_busy_worker_is_not_waited_for_for_ever(
    one_port: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "RELOADING_SECONDS", 0.05)
    async with make_workers(one_port, "slow") as workers:
        await workers.wait_ready()
        with capture_logs() as logged:
            assert await asyncio.wait_for(workers.reload(b"new"), PATIENCE_SECONDS) is None
        assert [line["worker"] for line in logged if "busy" in line["event"]] == [0, 0]


async def test_a_worker_that_tells_too_late_that_it_cannot_makes_room_for_one_that_can(
    one_port: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "RELOADING_SECONDS", 0.05)
    async with make_workers(one_port, "late") as workers:
        await workers.wait_ready()
        assert await workers.reload(b"new") is None
        victim, configuration = await asked(one_port)
        assert configuration == b"{}"
        with capture_logs() as logged:
            await workers.snapshots()
            assert await meet_another(one_port, victim)
        reasons = [line["reason"] for line in logged if "cannot switch" in line["event"]]
        assert (set(reasons), logged[0]["log_level"]) == ({"it will not"}, "error")
        assert (await asked(one_port))[1] == b"new"


async def test_reloads_while_workers_die_again_and_again_leave_them_all_with_the_last_one(
    ports: list[socket.socket],
) -> None:
    async with make_workers(ports) as workers:
        await workers.wait_ready()
        for turn in range(5):
            victim = await ask(ports)
            reloading = asyncio.create_task(workers.reload(b"%d" % turn))
            os.kill(victim, signal.SIGKILL)
            assert await asyncio.wait_for(reloading, PATIENCE_SECONDS) is None
        await workers.wait_ready()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while set((await configurations(ports, 2)).values()) != {b"4"}:
                pass


async def test_successors_that_die_again_and_again_end_nothing(
    one_port: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "LONGEST_PAUSE_SECONDS", 0.05)
    metrics = Metrics()
    async with make_workers(one_port, metrics=metrics) as workers:
        await workers.wait_ready()
        assert await workers.reload(b"deadly") is None
        os.kill(await ask(one_port), signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while metrics.worker_restarts_total.labels("0").value <= FAILURES_AT_START:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert workers.missing() == [0]
        assert await workers.reload(b"good") is None
        assert (await asked(one_port))[1] == b"good"


async def test_draining_ends_every_worker_and_none_is_started_again(ports: list[socket.socket]) -> None:
    async with make_workers(ports) as workers:
        await workers.wait_ready()
        pids = await meet_all(ports, 2)
        await workers.drain(PATIENCE_SECONDS, asyncio.Event())
        assert workers.missing() == [0, 1]
        assert not running(pids)


async def test_a_second_signal_kills_workers_that_still_have_work(ports: list[socket.socket]) -> None:
    async with make_workers(ports, "deaf") as workers:
        await workers.wait_ready()
        pids = await meet_all(ports, 2)
        hurry = asyncio.Event()
        draining = asyncio.create_task(workers.drain(3600, hurry))
        hurry.set()
        await asyncio.wait_for(draining, PATIENCE_SECONDS)
        assert not running(pids)


async def test_leaving_the_context_kills_the_workers(ports: list[socket.socket]) -> None:
    async with make_workers(ports, "deaf") as workers:
        await workers.wait_ready()
        pids = await meet_all(ports, 2)
    assert not running(pids)


async def test_workers_that_cannot_be_started_end_the_start(ports: list[socket.socket]) -> None:
    metrics = Metrics()
    async with make_workers(ports, metrics=metrics, python="/nowhere/python") as workers:
        with capture_logs() as logged, pytest.raises(WorkersFailed, match="log"):
            await asyncio.wait_for(workers.wait_ready(), PATIENCE_SECONDS)
    assert metrics.unhandled_errors_total.labels("worker").value >= FAILURES_AT_START
    assert any(line.get("exc_info") for line in logged)


async def test_workers_that_die_at_once_end_the_start(ports: list[socket.socket]) -> None:
    async with make_workers(ports, "fail") as workers:
        with pytest.raises(WorkersFailed, match="log"):
            await asyncio.wait_for(workers.wait_ready(), PATIENCE_SECONDS)
