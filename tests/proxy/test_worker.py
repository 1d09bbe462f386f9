"""One worker process as the supervisor starts it, the test speaking the supervisor's part."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import ev, sse_reply, tchunk
from sending import fake_upstream, up
from whole import KEY, configuration

from proxy.channel import Begin, Channel, Count, Counted, Done, Drain, Message, Prepare, Ready, Switch
from proxy.config import Configuration
from proxy.config_values import Address
from proxy.listening import listening
from proxy.workers import WORKER_COMMAND

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator
    from pathlib import Path

    from fake_upstream import FakeUpstream

__all__ = ["fake_upstream", "up"]

PATIENCE_SECONDS = 20
FEW_OPEN_FILES = ("sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh")
NOWHERE = "redis://127.0.0.1:9/0"
STREAM = b'{"model": "m", "prompt": "x", "stream": true}'
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s" % (
    KEY.encode(),
    len(STREAM),
    STREAM,
)


@dataclass
class Started:
    """A worker under way, and the supervisor's end of its channel."""

    process: Process
    channel: Channel
    sock: socket.socket

    async def hear(self, kind: type[Message]) -> Message:
        """Return the next message of a kind, passing over others."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not isinstance(message := await self.channel.receive(), kind):
                assert message is not None
        return message

    async def end(self) -> tuple[int, str]:
        """Wait until the process has ended; return its status and what it logged."""
        _, log = await asyncio.wait_for(self.process.communicate(), PATIENCE_SECONDS)
        assert self.process.returncode is not None
        return self.process.returncode, log.decode()


@pytest.fixture
async def worker() -> AsyncIterator[Started]:
    ours, theirs = socket.socketpair()
    with listening(Address("127.0.0.1", 0), setting="listen", count=1) as [sock], theirs:
        descriptors = theirs.fileno(), sock.fileno()
        process = await asyncio.create_subprocess_exec(
            *FEW_OPEN_FILES,
            *WORKER_COMMAND,
            *map(str, descriptors),
            pass_fds=descriptors,
            stderr=asyncio.subprocess.PIPE,
        )
        theirs.close()
        channel = await Channel.over(ours)
        yield Started(process, channel, sock)
        await channel.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def begin(worker: Started, configuration: Configuration) -> None:
    await worker.channel.send(Begin(3, configuration.resolved_json().encode(), NOWHERE, NOWHERE))
    await worker.hear(Ready)


async def request(worker: Started) -> bytes:
    """Ask for a path that does not exist; returns the answer's first line."""
    reader, writer = await asyncio.open_connection(*worker.sock.getsockname())
    writer.write(b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    try:
        return (await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)).splitlines()[0]
    finally:
        writer.close()


async def test_a_worker_serves_its_socket_and_tells_what_it_counted(worker: Started, tmp_path: Path) -> None:
    await begin(worker, Configuration(data_dir=tmp_path))
    assert await request(worker) == b"HTTP/1.1 404 Not Found"
    await worker.channel.send(Count(7))
    while (counted := await worker.hear(Counted)) and isinstance(counted, Counted) and counted.turn != 7:
        pass  # told unasked, as it does every second
    assert isinstance(counted, Counted)
    assert [data for _, data in counted.snapshot["requests_total"]] == [1.0]
    await worker.channel.send(Drain())
    assert (await worker.end())[0] == 0


async def test_a_worker_may_have_as_many_connections_as_the_system_allows(worker: Started, tmp_path: Path) -> None:
    await begin(worker, Configuration(data_dir=tmp_path))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert resource.prlimit(worker.process.pid, resource.RLIMIT_NOFILE) == (most, most)


async def test_a_drained_worker_ends_with_its_last_count(worker: Started, tmp_path: Path) -> None:
    await begin(worker, Configuration(data_dir=tmp_path))
    await request(worker)
    await worker.channel.send(Drain())
    told = [message async for message in until_end(worker.channel)]
    assert isinstance(told[-1], Counted)
    assert told[-1].snapshot["requests_total"][0][1] == 1
    assert (await worker.end())[0] == 0


async def until_end(channel: Channel) -> AsyncIterator[Message]:
    while (message := await channel.receive()) is not None:
        yield message


async def ask_for_models(worker: Started) -> bytes:
    """Ask for the models with a key of the configuration; returns the answer's first line."""
    reader, writer = await asyncio.open_connection(*worker.sock.getsockname())
    writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n" % KEY.encode())
    writer.write(b"Connection: close\r\n\r\n")
    try:
        return (await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)).splitlines()[0]
    finally:
        writer.close()


async def test_a_worker_prepares_another_configuration_and_switches_when_it_is_told(
    worker: Started, tmp_path: Path
) -> None:
    await begin(worker, Configuration(data_dir=tmp_path))
    assert await ask_for_models(worker) == b"HTTP/1.1 401 Unauthorized"
    new = configuration("http://127.0.0.1:9", tmp_path).resolved_json().encode()
    await worker.channel.send(Prepare(1, new))
    assert await worker.hear(Done) == Done(1)
    assert await ask_for_models(worker) == b"HTTP/1.1 401 Unauthorized"
    await worker.channel.send(Switch(2))
    assert await worker.hear(Done) == Done(2)
    assert await ask_for_models(worker) == b"HTTP/1.1 200 OK"


async def test_orders_that_come_before_a_worker_is_open_are_not_lost(worker: Started, tmp_path: Path) -> None:
    new = configuration("http://127.0.0.1:9", tmp_path).resolved_json().encode()
    await worker.channel.send(Begin(3, Configuration(data_dir=tmp_path).resolved_json().encode(), NOWHERE, NOWHERE))
    await worker.channel.send(Prepare(1, new))
    await worker.channel.send(Switch(2))
    assert [await worker.hear(Done) for _ in range(2)] == [Done(1), Done(2)]
    assert await ask_for_models(worker) == b"HTTP/1.1 200 OK"


async def test_a_worker_that_cannot_prepare_says_so_and_serves_on(worker: Started, tmp_path: Path) -> None:
    await begin(worker, configuration("http://127.0.0.1:9", tmp_path))
    await worker.channel.send(Prepare(1, b'{"workers": "many"}'))
    refused = await worker.hear(Done)
    assert isinstance(refused, Done)
    assert "workers" in (refused.fault or "")
    await worker.channel.send(Switch(2))
    refused = await worker.hear(Done)
    assert isinstance(refused, Done)
    assert refused.fault is not None
    assert await ask_for_models(worker) == b"HTTP/1.1 200 OK"


async def test_sigterm_drains(worker: Started, tmp_path: Path) -> None:
    await begin(worker, Configuration(data_dir=tmp_path))
    worker.process.send_signal(signal.SIGTERM)
    assert (await worker.end())[0] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
async def test_what_a_terminal_says_is_not_for_workers(worker: Started, tmp_path: Path, number: signal.Signals) -> None:
    await begin(worker, Configuration(data_dir=tmp_path))
    worker.process.send_signal(number)
    assert await request(worker) == b"HTTP/1.1 404 Not Found"


async def test_without_its_supervisor_a_worker_ends(worker: Started, tmp_path: Path) -> None:
    await begin(worker, Configuration(data_dir=tmp_path))
    await worker.channel.close()
    _, log = await worker.end()
    assert "the supervisor is gone" in log


async def test_a_worker_that_does_not_understand_its_supervisor_ends(worker: Started, tmp_path: Path) -> None:
    babble: Any = "no message"
    await begin(worker, Configuration(data_dir=tmp_path))
    await worker.channel.send(babble)
    _, log = await worker.end()
    assert "cannot be understood" in log


async def test_what_is_under_way_when_the_supervisor_dies_is_written_down(
    worker: Started, up: FakeUpstream, tmp_path: Path
) -> None:
    up.script(sse_reply([ev(tchunk("a")), 3600.0]))
    await begin(worker, configuration(up.url, tmp_path, drain_timeout="1h"))
    reader, writer = await asyncio.open_connection(*worker.sock.getsockname())
    writer.write(POST)
    await asyncio.wait_for(reader.readuntil(b'"a"'), PATIENCE_SECONDS)
    await worker.channel.close()
    await worker.end()
    [kept] = (tmp_path / "spool").glob("*.spool")
    assert b"draining" in kept.read_bytes()
    writer.close()


async def test_a_worker_whose_supervisor_dies_before_it_began_ends_quietly(worker: Started) -> None:
    await worker.channel.close()
    assert await worker.end() == (0, "")


async def test_a_worker_that_cannot_begin_says_why_in_one_line(worker: Started) -> None:
    await worker.channel.send(Begin(3, b'{"workers": "many"}', NOWHERE, NOWHERE))
    status, log = await worker.end()
    assert status == 1
    [line] = log.splitlines()
    assert "workers" in json.loads(line)["exception"]
