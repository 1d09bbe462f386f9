"""Gateways and workers come and go under load: no stream is broken but those of a worker that is killed (SPEC §10)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from fake_upstream import DONE, FakeUpstream, ev, sse_reply, tchunk, usage
from gateway import ADMIN_KEY, Gateway, Settings, bearer, eventually, settings
from harness import call, joined, uniq
from swarm import Connection, read_head, read_pieces, request_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from fake_upstream import Ops, Req
    from stores import StoreServer

    StartGateway = Callable[[Settings], Gateway]

STREAMS = 200
FIRST, LAST = "first ", "last"
PATIENCE_SECONDS = 60


class Held:
    """An upstream whose streams send their first event, and the rest once `released` is set."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def __call__(self, req: Req) -> Ops:
        if not req.json().get("stream"):
            return sse_reply([])
        begin = sse_reply([ev(tchunk(FIRST))], gap=0)[:-1]
        end = sse_reply(
            [ev(tchunk(LAST, finish="stop")), ev({**tchunk(""), "choices": [], "usage": usage(9)}), DONE], gap=0
        )
        return [*begin, ("until", self.released.is_set), *end[1:]]


class Client:
    """One stream: `begin` returns with its first event, `rest` with all of it."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self.body = b""
        self._pieces: Any = None

    async def begin(self) -> Self:
        """Ask, and wait for the first event."""
        where = urlsplit(self.base_url)
        reader, self._writer = await asyncio.open_connection(where.hostname, where.port)
        asked = {"model": "m", "prompt": uniq(), "temperature": 1, "max_tokens": 30, "stream": True}
        self._writer.write(request_bytes("/v1/completions", bearer("alice"), json.dumps(asked).encode()))
        status, headers = await read_head(reader)
        assert status == 200
        self._pieces = read_pieces(reader, headers)
        while FIRST.encode() not in self.body:
            self.body += await anext(self._pieces)
        return self

    async def rest(self) -> bytes:
        """Return the whole stream. Raises IncompleteReadError for one that is cut."""
        async for piece in self._pieces:
            self.body += piece
        self._writer.close()
        return self.body

    async def is_broken(self) -> bool:
        """Wait for the end, and tell whether it is none."""
        try:
            await self.rest()
        except (asyncio.IncompleteReadError, ConnectionError):
            self._writer.close()
            return True
        return False


async def begin(base_urls: Iterable[str]) -> list[Client]:
    """Begin a stream at each of these addresses, and wait for all their first events."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await asyncio.gather(*(Client(base_url).begin() for base_url in base_urls))


async def in_time(condition: Callable[[], Any]) -> Any:  # noqa: ANN401  whatever it returns
    """Wait for a condition, beside the streams that are under way."""
    return await asyncio.to_thread(eventually, condition, seconds=PATIENCE_SECONDS)


def is_whole(body: bytes) -> bool:
    return joined(body) == {0: FIRST + LAST} and body.endswith(DONE)


async def test_a_gateway_of_two_is_ended_under_200_streams_and_none_is_broken(
    tmp_path: Path, upstream: FakeUpstream, own_valkey_on_tcp: StoreServer
) -> None:
    upstream.default = held = Held()
    made = settings(
        f"{upstream.url}/v1", users={"alice": {}}, state=own_valkey_on_tcp.url, workers=2, drain_timeout="60s"
    )
    with ExitStack() as running:
        going, staying = (running.enter_context(Gateway(tmp_path / name, made)) for name in ("going", "staying"))
        clients = await begin((going.base_url, staying.base_url) * (STREAMS // 2))
        kept = Connection(going.base_url)
        assert [answer.status for answer in await kept.ask(MODELS)] == [200]

        going.process.terminate()
        assert await in_time(lambda: not accepts(going.base_url))
        assert call(going.admin_url, "GET", "/readyz").status == 503
        [last] = await kept.ask(MODELS)
        assert (last.status, last.headers["connection"]) == (200, "close")
        other = Connection(staying.base_url)
        assert [answer.status for answer in await other.ask(MODELS)] == [200]
        other.close()
        assert going.process.poll() is None

        held.released.set()
        bodies = await asyncio.gather(*(client.rest() for client in clients))
        assert [body for body in bodies if not is_whole(body)] == []
        assert await asyncio.to_thread(going.process.wait, PATIENCE_SECONDS) == 0
        assert staying.process.poll() is None

        def booked() -> list[dict[str, Any]]:
            return [each for each in going.records() + staying.records() if each["endpoint"] == "completions"]

        assert await in_time(lambda: len(booked()) == STREAMS)
        assert {(each["outcome"], each["known"], each["output_tokens"]) for each in booked()} == {
            ("completed", "reported", 2)
        }
        assert len({each["request_id"] for each in booked()}) == STREAMS


MODELS = request_bytes("/v1/models", bearer("alice"), b"").replace(b"POST", b"GET", 1)


def accepts(base_url: str) -> bool:
    """Tell whether somebody listens at an address."""
    where = urlsplit(base_url)
    try:
        socket.create_connection((where.hostname, where.port)).close()
    except ConnectionRefusedError:
        return False
    return True


async def test_who_connected_before_the_end_is_served_though_nobody_had_accepted(
    start_gateway: StartGateway, upstream: FakeUpstream
) -> None:
    gateway = start_gateway(settings(f"{upstream.url}/v1", users={"alice": {}}))
    [worker] = gateway.worker_pids
    os.kill(worker, signal.SIGSTOP)  # what comes now waits in the kernel's queue
    where = urlsplit(gateway.base_url)
    waiting = [await asyncio.open_connection(where.hostname, where.port) for _ in range(20)]
    for _, writer in waiting[::2]:
        writer.write(MODELS)
    gateway.process.terminate()
    assert await in_time(lambda: call(gateway.admin_url, "GET", "/readyz").status == 503)
    os.kill(worker, signal.SIGCONT)
    for reader, writer in waiting:
        if (reader, writer) not in waiting[::2]:
            writer.write(MODELS)
        assert (await asyncio.wait_for(read_head(reader), PATIENCE_SECONDS))[0] == 200
        writer.close()
    assert await asyncio.to_thread(gateway.process.wait, PATIENCE_SECONDS) == 0


async def test_a_killed_worker_loses_its_own_streams_and_no_others(
    start_gateway: StartGateway, upstream: FakeUpstream
) -> None:
    upstream.default = held = Held()
    limits = [
        {"of": "concurrency", "limit": STREAMS, "by": ["user"]},
        {"of": "tokens", "limit": 1_000_000, "per": "day", "by": ["user"]},
    ]
    gateway = start_gateway(settings(f"{upstream.url}/v1", users={"alice": {"limits": limits}}, workers=2, lease="3s"))
    clients = await begin([gateway.base_url] * STREAMS)
    ends = [asyncio.create_task(client.is_broken()) for client in clients]
    victim, survivor = gateway.worker_pids
    os.kill(victim, signal.SIGKILL)
    assert await in_time(lambda: has_successor(gateway, victim, survivor))
    lost = sum(end.done() for end in ends)
    assert 0 < lost < STREAMS
    assert await in_time(lambda: sum(each.aborted_at is not None for each in upstream.log) == lost)

    held.released.set()
    broken = await asyncio.gather(*ends)
    assert sum(broken) == lost
    assert all(is_broken or is_whole(client.body) for client, is_broken in zip(clients, broken, strict=True))
    records = await asyncio.to_thread(gateway.wait_for_records, STREAMS, seconds=30)
    outcomes = [record["outcome"] for record in records]
    assert (outcomes.count("orphaned"), outcomes.count("completed")) == (lost, STREAMS - lost)
    orphans = [record for record in records if record["outcome"] == "orphaned"]
    assert {(each["known"], each["output_tokens"]) for each in orphans} == {("worst_case", 30)}
    booked = sum(each["input_tokens"] + each["output_tokens"] for each in records)
    assert left(gateway) == {"concurrency": STREAMS, "tokens": 1_000_000 - booked}
    [again] = await begin([gateway.base_url])
    assert is_whole(await again.rest())


def has_successor(gateway: Gateway, victim: int, survivor: int) -> bool:
    pids = set(gateway.worker_pids)
    is_ready = call(gateway.admin_url, "GET", "/readyz").status == 200
    return is_ready and survivor in pids and len(pids - {victim}) == 2


def left(gateway: Gateway) -> dict[str, int]:
    """Return what is left of alice's limits, by quantity."""
    headers = [("Authorization", f"Bearer {ADMIN_KEY}")]
    told = call(gateway.admin_url, "GET", "/v1/tidegate/limits?key=key-alice", headers).json()
    return {limit["of"]: limit["left"] for limit in told["limits"]}
