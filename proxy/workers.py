"""The supervisor's side of its workers: started, listened to, started again when they die, drained.

Every worker has a listening socket of its own on the shared port, which outlives it: connections that arrive while it
is away wait for its successor. What a dead worker had counted is kept. This file does not know what a worker does
with its requests (`worker`), nor what else the supervisor owns.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import structlog
from msgspec.structs import replace

from proxy.channel import Channel, Count, Counted, Done, Drain, Prepare, Ready, Switch
from proxy.metrics import Snapshot, add_up, counters_of

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Sequence
    from types import TracebackType

    from proxy.channel import Begin
    from proxy.metrics import Metrics

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
"""Pause before a worker is started again; doubled each time it dies within `SETTLED_SECONDS`."""

SETTLED_SECONDS = 10.0
SILENCE_SECONDS = 30.0
"""A worker that tells nothing for this long hangs, although it should every second: it is killed and started again."""

ENDING_SECONDS = 5.0
"""How long a worker may take to end beyond its drain time-out, or once it has hung up."""

COUNTING_SECONDS = 1.0
"""How long a page of metrics waits for a busy worker; what it told last stands in for it then."""

RELOADING_SECONDS = 10.0
"""How long a reload waits for a busy worker to take the new configuration; it takes it later then, or is replaced."""

FAILURES_AT_START = 3
"""So often may workers die before all of them serve; then the gateway gives up."""

_ROOT = Path(__file__).resolve().parent.parent
# -P keeps the working directory out: a folder named `proxy` there must not be taken for ours.
_ENTRY = "import sys; sys.path.insert(0, sys.argv[1]); from proxy.worker import main; main(*map(int, sys.argv[2:]))"
WORKER_COMMAND = (sys.executable, "-P", "-c", _ENTRY, str(_ROOT))

_log = structlog.get_logger("tidegate.supervisor")


class WorkersFailed(Exception):  # noqa: N818  it says what happened
    """No worker could be started; what went wrong stands in the log."""


@dataclass(slots=True, eq=False)
class _Post:
    """The place of one worker, which successive processes fill."""

    begin: Begin
    sock: socket.socket
    process: Process | None = None
    channel: Channel | None = None
    is_ready: bool = False
    turn: int = 0
    told: asyncio.Condition = field(default_factory=asyncio.Condition)
    asked: dict[int, asyncio.Future[str | None]] = field(default_factory=dict)
    latest: Snapshot = field(default_factory=dict)
    left_behind: Snapshot = field(default_factory=dict)

    @property
    def label(self) -> str:
        return str(self.begin.worker)

    async def count(self, turn: int) -> None:
        """Ask the worker, if there is one, and wait until it has answered this or a later turn, or died."""
        channel = self.channel
        if channel is None:
            return
        await channel.send(Count(turn))
        async with self.told:
            await self.told.wait_for(lambda: self.turn >= turn or self.channel is not channel)

    async def order(self, *orders: Prepare | Switch) -> str | None:
        """Give orders of one turn to the worker, if there is one, and return why it cannot follow the last of them.

        None when it has followed, or has died: its successor goes by what is in force then.
        """
        channel, turn = self.channel, orders[-1].turn
        if channel is None:
            return None
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.asked[turn] = answer
        try:
            async with asyncio.timeout(RELOADING_SECONDS):
                for order in orders:
                    await channel.send(order)
                return await answer
        except TimeoutError:
            _log.warning("a busy worker takes the new configuration later", worker=self.begin.worker)
            return None
        finally:
            del self.asked[turn]

    def answered(self, turn: int, fault: str | None) -> bool:
        """Take note of what became of an order; return whether somebody still waits for that."""
        answer = self.asked.get(turn)
        if answer is None or answer.done():
            return False
        answer.set_result(fault)
        return True

    async def make_room(self, reason: str) -> None:
        """Have the worker, if there is one, end for a successor, which goes by what is in force."""
        if self.channel is not None:
            _log.error("a worker cannot switch; its successor will", worker=self.begin.worker, reason=reason)
            await self.channel.send(Drain())


class Workers:
    """All workers of a gateway, alive between entering and leaving the context; leaving kills who has not ended."""

    def __init__(
        self,
        begins: Sequence[Begin],
        sockets: Sequence[socket.socket],
        metrics: Metrics,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        """Prepare one worker for each socket; `command` gets the two file descriptors as further arguments."""
        self._posts = [_Post(begin, sock) for begin, sock in zip(begins, sockets, strict=True)]
        self._metrics = metrics
        self._command = tuple(command)
        self._tasks: list[asyncio.Task[None]] = []
        self._is_draining = False
        self._turn = 0
        self._changed = asyncio.Condition()
        self._failures_at_start = 0

    async def __aenter__(self) -> Self:
        """Start every worker, and from then on start again whichever dies."""
        self._tasks = [asyncio.create_task(self._keep(post), name=f"worker {post.label}") for post in self._posts]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill whichever still runs."""
        self._is_draining = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait_ready(self) -> None:
        """Return once every worker serves. Raises WorkersFailed when they die again and again before that."""

        def is_decided() -> bool:
            return not self.missing() or self._failures_at_start >= FAILURES_AT_START

        async with self._changed:
            await self._changed.wait_for(is_decided)
        if self.missing():
            raise WorkersFailed("the workers do not start; the log above says why")

    def missing(self) -> list[int]:
        """Return the numbers of the workers that do not serve now."""
        return [post.begin.worker for post in self._posts if not post.is_ready]

    async def snapshots(self) -> list[Snapshot]:
        """Return what living workers count now and what dead ones have left behind."""
        self._turn += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COUNTING_SECONDS):
                await asyncio.gather(*(post.count(self._turn) for post in self._posts))
        return [snapshot for post in self._posts for snapshot in (post.left_behind, post.latest)]

    async def reload(self, configuration: bytes) -> str | None:
        """Have every worker serve by another resolved configuration (JSON), or none: then return why not.

        Successors of workers that die meanwhile begin with it. To be awaited before it is called again.
        """
        self._turn += 1
        prepare = Prepare(self._turn, configuration)
        prepared = [(post, post.channel) for post in self._posts]
        faults = await asyncio.gather(*(post.order(prepare) for post in self._posts))
        if fault := next(filter(None, faults), None):
            self._turn += 1
            await asyncio.gather(*(post.order(Prepare(self._turn, post.begin.configuration)) for post in self._posts))
            return fault
        for post in self._posts:
            post.begin = replace(post.begin, configuration=configuration)
        self._turn += 1
        switch = Switch(self._turn)
        orders = [(switch,) if post.channel is channel else (prepare, switch) for post, channel in prepared]
        faults = await asyncio.gather(*(post.order(*given) for post, given in zip(self._posts, orders, strict=True)))
        for post, fault in zip(self._posts, faults, strict=True):
            if fault is not None:
                await post.make_room(fault)
        return None

    async def drain(self, timeout_seconds: float, hurry: asyncio.Event) -> None:
        """Let every worker finish what is under way, at most `timeout_seconds`; cut it short when `hurry` is set."""
        self._is_draining = True
        for post in self._posts:
            if post.channel is not None:
                await post.channel.send(Drain())
        hurried = asyncio.create_task(hurry.wait())
        ended = asyncio.create_task(asyncio.wait(self._tasks))
        await asyncio.wait(
            {hurried, ended}, timeout=timeout_seconds + ENDING_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        hurried.cancel()
        if not ended.done():
            alive = [post.begin.worker for post in self._posts if post.process is not None]
            _log.warning("workers are killed with requests under way", workers=alive)
            for task in self._tasks:
                task.cancel()
        await ended

    async def _keep(self, post: _Post) -> None:
        """Keep one post filled until the gateway drains."""
        pause_seconds = FIRST_PAUSE_SECONDS
        while not self._is_draining:
            began = time.monotonic()
            was_ready = await self._try(post)
            if self._is_draining:
                return
            if time.monotonic() - began > SETTLED_SECONDS:
                pause_seconds = FIRST_PAUSE_SECONDS
            _log.error("a worker died and is started again", worker=post.begin.worker, pause_seconds=pause_seconds)
            self._metrics.worker_restarts_total.labels(post.label).inc()
            async with self._changed:
                self._failures_at_start += not was_ready
                self._changed.notify_all()
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)

    async def _try(self, post: _Post) -> bool:
        """Fill the post as `_run` does; what keeps a process from starting, or from being understood, is told."""
        try:
            return await self._run(post)
        except Exception:  # noqa: BLE001  the outermost frame of a post's task
            _log.exception("a worker cannot be started or understood", worker=post.begin.worker)
            self._metrics.unhandled_errors_total.labels("worker").inc()
            return False

    async def _run(self, post: _Post) -> bool:
        """Fill the post with one process until that ends; return whether it ever served."""
        ours, theirs = socket.socketpair()
        channel = await Channel.over(ours)
        try:
            with theirs:
                post.process = await self._start(post, theirs)
            return await self._accompany(post, post.process, channel)
        finally:
            await channel.close()

    async def _accompany(self, post: _Post, process: Process, channel: Channel) -> bool:
        """Begin, hear and bury one process; return whether it ever served."""
        try:
            post.channel = channel
            await channel.send(post.begin)
            if self._is_draining:
                await channel.send(Drain())
            was_ready = await self._listen(post, channel)
            await _wait_ended(process)
        finally:
            if process.returncode is None:
                process.kill()
            await self._bury(post)
            await process.wait()
        return was_ready

    async def _start(self, post: _Post, theirs: socket.socket) -> Process:
        descriptors = (theirs.fileno(), post.sock.fileno())
        return await asyncio.create_subprocess_exec(
            *self._command,
            *map(str, descriptors),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=descriptors,
            process_group=0,  # the terminal's Ctrl-C is for the supervisor, which drains
        )

    async def _listen(self, post: _Post, channel: Channel) -> bool:
        """Take in what a worker tells until it hangs up, or tells nothing for too long."""
        try:
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    message = await channel.receive()
                match message:
                    case Ready():
                        await self._note(post, is_ready=True)
                    case Counted(snapshot, turn):
                        post.latest = snapshot
                        await _note_turn(post, turn)
                    case Done(turn, fault):
                        if not post.answered(turn, fault) and fault is not None:
                            await post.make_room(fault)
                    case _:
                        return post.is_ready
        except TimeoutError:
            _log.error("a worker hangs and is killed", worker=post.begin.worker, silence_seconds=SILENCE_SECONDS)
            if post.process is not None:
                post.process.kill()
            return post.is_ready

    async def _note(self, post: _Post, *, is_ready: bool) -> None:
        async with self._changed:
            post.is_ready = is_ready
            self._metrics.worker_up.labels(post.label).set(float(is_ready))
            self._changed.notify_all()

    async def _bury(self, post: _Post) -> None:
        """Keep a dead worker's counters, forget its gauges."""
        post.left_behind = add_up([post.left_behind, counters_of(post.latest)])
        post.latest = {}
        post.channel = post.process = None
        for turn in post.asked:
            post.answered(turn, None)
        await _note_turn(post, 0)
        await self._note(post, is_ready=False)


async def _note_turn(post: _Post, turn: int) -> None:
    async with post.told:
        post.turn = max(post.turn, turn)
        post.told.notify_all()


async def _wait_ended(process: Process) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ENDING_SECONDS):
            await process.wait()
