"""One worker process: takes its socket and its configuration from the supervisor, serves, tells what it counted.

It ends when it is told to drain, on SIGTERM, and at once when the supervisor is gone: without it there is no embedded
store, and the next gateway needs the port. This file does not know how a request is answered, nor how many workers
there are.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from proxy import logs
from proxy.app import open_gateway, serve
from proxy.channel import Begin, Channel, Count, Counted, Done, Drain, Prepare, Ready, Switch
from proxy.config import Configuration
from proxy.garbage import collect_seldom
from proxy.loop_lag import watch_lag
from proxy.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.app import Gateway
    from proxy.handler import Snapshot

SNAPSHOT_INTERVAL_SECONDS = 1.0
"""How often a worker tells what it has counted: a worker that is killed loses at most this much of it."""

ABANDONED_SECONDS = 3.0
"""How long a worker whose supervisor died may take to write down what is under way."""

_log = structlog.get_logger("tidegate.worker")


@dataclass(slots=True)
class Frame:
    """What the tasks of one worker share."""

    channel: Channel
    metrics: Metrics = field(default_factory=Metrics)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    orders: asyncio.Queue[Prepare | Switch] = field(default_factory=asyncio.Queue)
    """Which configuration is to be served by; they wait until the gateway is open."""


async def work(channel: Channel, sock: socket.socket) -> None:
    """Serve from `sock` until told to stop; what is under way then is finished within the drain time-out."""
    begin = await channel.receive()
    if not isinstance(begin, Begin):
        return
    logs.configure(worker=begin.worker)
    frame = Frame(channel)
    serving = asyncio.ensure_future(_serve(frame, begin, sock))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, frame.stopping.set)
    helpers = [
        asyncio.ensure_future(helper)
        for helper in (
            _obey(frame, serving.cancel),
            _tell(frame),
            watch_lag(frame.metrics.event_loop_lag_seconds.observe),
            collect_seldom(),
        )
    ]
    try:
        with suppress(asyncio.CancelledError):
            await serving
    finally:
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
        await channel.send(Counted(frame.metrics.snapshot()))
        await channel.close()


async def _serve(frame: Frame, begin: Begin, sock: socket.socket) -> None:
    configuration = Configuration.from_resolved_json(begin.configuration)
    async with open_gateway(
        configuration,
        state_url=begin.state_url,
        cache_url=begin.cache_url,
        metrics=frame.metrics,
        worker=begin.worker,
    ) as gateway:
        gc.collect()
        gc.freeze()  # what stands now stands for good: later collections need not look at it
        reloading = asyncio.create_task(_reload(frame, gateway))
        try:
            await frame.channel.send(Ready())
            await serve(gateway, sock, frame.stopping)
        finally:
            reloading.cancel()
            await asyncio.wait({reloading})


async def _reload(frame: Frame, gateway: Gateway) -> None:
    """Follow the supervisor's orders about the configuration, one after the other."""
    prepared: Snapshot | None = None
    while True:
        order = await frame.orders.get()
        try:
            match order:
                case Prepare(_, configuration):
                    prepared = None
                    prepared = await gateway.prepare(
                        await asyncio.to_thread(Configuration.from_resolved_json, configuration)
                    )
                case Switch() if prepared is not None:
                    gateway.switch(prepared)
                case Switch():
                    raise RuntimeError("there is no configuration prepared to switch to")  # noqa: TRY301
            fault = None
        except Exception as error:  # noqa: BLE001  the outermost frame of an order
            _log.exception("another configuration cannot be served; the one in force stays")
            fault = str(error) or type(error).__name__
        await frame.channel.send(Done(order.turn, fault))


async def _obey(frame: Frame, abandon: Callable[[], object]) -> None:
    """Do what the supervisor says; when it is gone, or talks nonsense, end without finishing what is under way."""
    try:
        while (message := await frame.channel.receive()) is not None:
            match message:
                case Drain():
                    frame.stopping.set()
                case Prepare() | Switch():
                    frame.orders.put_nowait(message)
                case Count(turn):
                    await frame.channel.send(Counted(frame.metrics.snapshot(), turn))
                case _:
                    _log.error("unexpected message from the supervisor", message=type(message).__name__)
        _log.error("the supervisor is gone; this worker ends")
    except Exception:  # noqa: BLE001  the outermost frame of a task
        _log.exception("the supervisor cannot be understood; this worker ends")
    asyncio.get_running_loop().call_later(ABANDONED_SECONDS, os._exit, 1)
    abandon()


async def _tell(frame: Frame) -> None:
    while True:
        await asyncio.sleep(SNAPSHOT_INTERVAL_SECONDS)
        await frame.channel.send(Counted(frame.metrics.snapshot()))


async def _run(channel_fd: int, listening_fd: int) -> None:
    channel = await Channel.over(socket.socket(fileno=channel_fd))
    sock = socket.socket(fileno=listening_fd)
    sock.setblocking(False)  # noqa: FBT003  the standard library's own signature
    await work(channel, sock)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415  there is none for some platforms
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _allow_connections() -> None:
    """Let as many be open as the system allows: the lower limit, 1024 by custom, is for programs that call select."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems call it unlimited and refuse that
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main(channel_fd: int, listening_fd: int) -> None:
    """Run as a child of the supervisor, with the file descriptors of two inherited sockets."""
    for number in (signal.SIGINT, signal.SIGHUP):  # they are for the supervisor
        signal.signal(number, signal.SIG_IGN)
    _allow_connections()
    try:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            runner.run(_run(channel_fd, listening_fd))
    except Exception:  # noqa: BLE001  the outermost frame of the process
        _log.exception("the worker failed")
        sys.exit(1)
