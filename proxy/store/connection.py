"""The road to one store: commands of one loop tick leave as one pipeline, and a store that is away costs time once.

A `Store` speaks to one Redis-protocol server over one multiplexed connection (a *lane*); commands that are large or
may take longer than the usual bound travel in a second lane, where they hold up nobody. Each lane has a breaker: when
the server refuses, hangs or goes away, its callers are told at once, and the lane knocks again every
`PROBE_INTERVAL_SECONDS`. A store that answers but does not carry out its probe is away too. Where the server is, a
finder says each time a lane connects: behind sentinels or in a cluster the store follows its primary.

    connecting ──answered──▶ up ──connection lost──▶ connecting
         │                    └──no answer in time, probe refused──▶ away
         └──refused, no answer──▶ away ──knock answered──▶ up

Foreign exceptions end here: whatever redis-py or the socket says travels on as `StoreUnavailable`. This file knows no
key, no script and no rule, and does not know what a reply means.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

import hiredis
import structlog
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from proxy.errors import StoreUnavailable
from proxy.store.finders import Finder, NoPrimary, finder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis.asyncio.connection import AbstractConnection

    from proxy.metrics import Metrics
    from proxy.store.scripts import Script

Argument: TypeAlias = str | bytes | int | float
"""What a command may be made of. Text is sent as UTF-8."""

Command: TypeAlias = tuple[Argument, ...]
"""A command's name and what follows it."""

Reply: TypeAlias = Any  # a server's reply has whatever shape its command gives it: bytes, int, None, lists of these
"""What came back, undecoded (RESP2)."""

TIMEOUT_SECONDS = 0.25
"""Longest wait for one command, connecting included (SPEC §10: a hung store adds at most 0.6 s, once)."""

PROBE_INTERVAL_SECONDS = 0.25
"""Pause between two knocks at a store that is away."""

CLOCK_INTERVAL_SECONDS = 1.0
"""How often a store that is well is asked for its time; also finds out that an idle one hangs."""

GRACE_SECONDS = 0.02
"""A reply that is overdue gets this much more, so that a stall of our own loop is not taken for the store's."""

FLAPPING_SECONDS = 0.05
"""Two connections in a row that lived shorter than this are not followed by a third one at once."""

FULL_PERCENT = 80
"""A server that evicts nothing counts as nearly full above so much of its `maxmemory` (SPEC §10)."""

BULKY_BYTES = 65_536
"""A larger command travels in the second lane, where nobody's admission waits behind it."""

NO_EVICTION = "noeviction"
"""The `maxmemory-policy` of a server that forgets nothing."""

_NO_ANSWER = "it did not answer in time"
_UNUSABLE = "it answers, but refuses what it is needed for"
_ELSEWHERE = "the key's slot is at, or on its way to, another node"
_REASONS: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    ((TimeoutError, RedisTimeoutError), _NO_ANSWER),
    ((AuthenticationError,), "it does not accept our credentials"),
    ((BusyLoadingError,), "it is still loading its data"),
    ((ClusterDownError,), "its cluster does not serve the slot"),
    ((ResponseError,), _UNUSABLE),
)
_RETRY_AFTER_SECONDS = 1
_CLOCK_SAMPLES = 8
_MICROSECONDS = 1_000_000

_REPEATABLE = frozenset(
    {
        "DEL",
        "EXISTS",
        "GET",
        "HGETALL",
        "INFO",
        "MGET",
        "PING",
        "PTTL",
        "TIME",
        "TTL",
        "UNLINK",
        "XDEL",
        "XLEN",
        "XRANGE",
    }
)
"""Plain commands that may be sent twice when a connection breaks before the answer; scripts always may."""

_PASSING_REFUSALS = ("MISCONF", "NOREPLICAS", "BUSY ", "UNKILLABLE", "WRONGTYPE")
"""Error replies that speak of the server's state, or of what another left at a key: worth another try later.

Those that redis-py has a class of its own for (OOM, NOPERM, TRYAGAIN, ASK, CLUSTERDOWN, MOVED, …) are all of this sort.
"""

_log = structlog.get_logger(__name__)


class CommandRefused(StoreUnavailable):
    """The server is well but answered this one command with an error that a repetition will not mend."""


@dataclass(slots=True, eq=False)
class _Call:
    """One command under way. Times are the loop's."""

    name: str
    packed: bytes
    reply: asyncio.Future[Reply]
    asked_at: float
    deadline: float
    is_repeatable: bool
    healing: Callable[[], bytes] | None = None
    """For EVALSHA: makes the same call as EVAL, for a server that does not know the script."""

    def fail(self, error: StoreUnavailable) -> bool:
        """Tell the caller, if it still waits."""
        if self.reply.done():
            return False
        self.reply.set_exception(error)
        return True


class _State(Enum):
    CONNECTING = "connecting"
    UP = "up"
    AWAY = "away"
    CLOSED = "closed"


class _Lane:
    """One multiplexed connection and its breaker: replies come in the order of the commands."""

    def __init__(self, store: Store, timeout_seconds: float) -> None:
        self._store = store
        self._timeout_seconds = timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._queued: list[_Call] = []
        self._sent: deque[_Call] = deque()
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._pump_tasks: tuple[asyncio.Task[None], ...] = ()
        self._reason = "not connected yet"
        self.state = _State.CONNECTING
        self.up_since = 0.0
        self.tried = asyncio.Event()
        self._knock = asyncio.Event()
        self._server = self._loop.create_task(self._serve(), name=f"store {store.name}")

    def submit(self, call: _Call) -> None:
        """Queue a call for the pipeline of this tick, or fail it at once while the store is away."""
        if self.state is _State.AWAY or self.state is _State.CLOSED:
            call.fail(self._store.unavailable(self._reason))
            return
        self._queued.append(call)
        self._wake.set()
        if self._timer is None or call.deadline < self._timer.when():
            self._arm(call.deadline)

    def knock(self) -> None:
        """Try again now rather than at the next interval, and let callers wait for what comes of it."""
        self._knock.set()
        if self.state is _State.AWAY:
            self.state = _State.CONNECTING

    def connect_anew(self) -> None:
        """Leave a connection that is up, as if it had been lost."""
        for task in self._pump_tasks:
            task.cancel()

    async def close(self) -> None:
        """Wait for the replies under way, at most the usual bound, then hang up; whoever still waits is told."""
        waiting = [call.reply for call in (*self._queued, *self._sent) if not call.reply.done()]
        if waiting and self.state is _State.UP:
            await asyncio.wait(waiting, timeout=self._timeout_seconds)
        self._server.cancel()
        await asyncio.wait([self._server])
        self._leave(_State.CLOSED, "closed")

    async def _serve(self) -> None:
        short_lives = 0
        while True:
            began = self._loop.time()
            self._knock.clear()
            try:
                connection = await self._connect()
            except Exception as error:  # noqa: BLE001 - outermost frame: the lane has to go on knocking
                self._store.finder.doubt(error)
                if self._knock.is_set():
                    continue  # the store came up meanwhile, so this attempt tells nothing
                self.go_away(_reason_of(error), error)
            else:
                await self._use(connection)
                short_lives = short_lives + 1 if self._loop.time() - began < FLAPPING_SECONDS else 0
                if self.state is _State.CONNECTING and short_lives > 1:
                    self.go_away("it hangs up as soon as it has answered")
            if self.state is _State.AWAY:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._knock.wait(), PROBE_INTERVAL_SECONDS)

    async def _connect(self) -> AbstractConnection:
        """Open a connection on which PING, TIME and the probe were answered; cleans up after itself if it fails."""
        async with asyncio.timeout(self._timeout_seconds):
            connection = await self._store.finder.find()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it bare
                await connection.send_command("PING", check_health=False)
                await connection.read_response()
                await self._store.finder.confirm(connection)
                left = time.time()
                await connection.send_command("TIME", check_health=False)
                self._store.begin_time(await connection.read_response(), left)
                await connection.send_packed_command(list(map(_pack, self._store.probe)), check_health=False)
                for _ in self._store.probe:
                    await connection.read_response()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def _use(self, connection: AbstractConnection) -> None:
        """Send and receive until the connection ends, then decide what becomes of the calls on it."""
        if self.state is _State.AWAY:
            _log.info("store is back", **self._store.names)
        self.state = _State.UP
        self.up_since = self._loop.time()
        self.tried.set()
        self._store.lane_is_up(self)
        reader = self._loop.create_task(self._read(connection))
        writer = self._loop.create_task(self._write(connection))
        self._pump_tasks = (reader, writer)
        try:
            await asyncio.wait(self._pump_tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            reader.cancel()
            writer.cancel()
            endings = await asyncio.gather(reader, writer, return_exceptions=True)
            self._pump_tasks = ()
            await connection.disconnect(nowait=True)
        if self.state is _State.UP:
            self._lose(endings)

    async def _write(self, connection: AbstractConnection) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            calls = [call for call in self._queued if not call.reply.done()]
            self._queued.clear()
            if not calls:
                continue
            self._sent.extend(calls)
            try:
                await connection.send_packed_command([call.packed for call in calls], check_health=False)
            except RuntimeError as error:  # uvloop's word for a transport that the server has just closed
                raise ConnectionResetError(str(error)) from error

    async def _read(self, connection: AbstractConnection) -> None:
        while True:
            try:
                reply = await connection.read_response()
            except ResponseError as error:
                if self._store.finder.is_left_for(error):
                    raise
                self._refuse(self._sent.popleft(), error)
            else:
                call = self._sent.popleft()
                if not call.reply.done():
                    call.reply.set_result(reply)
                    self._store.duration.observe(self._loop.time() - call.asked_at)

    def _refuse(self, call: _Call, error: ResponseError) -> None:
        """Heal a script that the server does not know; otherwise tell the one caller."""
        if isinstance(error, NoScriptError) and call.healing is not None:
            call.packed, call.healing = call.healing(), None
            self._queued.append(call)
            self._wake.set()
            return
        if call.fail(self._store.refused(call.name, error)):
            self._store.errors.inc()

    def _lose(self, endings: Sequence[object]) -> None:
        """Take the loss of a connection that was up: what may be repeated is sent again on the next one, once."""
        for ending in endings:
            if isinstance(ending, Exception) and not isinstance(ending, (RedisError, OSError)):
                _log.error("store connection failed unexpectedly", **self._store.names, exc_info=ending)
        self.state = _State.CONNECTING
        lost, self._sent = self._sent, deque()
        again = []
        for call in lost:
            if call.is_repeatable:
                call.is_repeatable = False
                again.append(call)
            elif call.fail(self._store.unavailable("the connection was lost")):
                self._store.errors.inc()
        self._queued[:0] = again
        if self._queued:
            self._wake.set()

    def go_away(self, reason: str, error: BaseException | None = None) -> None:
        """Open the breaker, and knock from time to time."""
        if self.state is not _State.AWAY:
            _log.warning("store is away", **self._store.names, reason=reason, detail=str(error or reason))
        self._store.errors.inc()
        self._leave(_State.AWAY, reason)

    def _leave(self, state: _State, reason: str) -> None:
        """Open the breaker: fail every call under way and let none in."""
        self.state, self._reason = state, reason
        self.tried.set()
        calls = [*self._sent, *self._queued]
        self._sent.clear()
        self._queued.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for call in calls:
            if call.fail(self._store.unavailable(reason)):
                self._store.errors.inc()
        for task in self._pump_tasks:
            task.cancel()

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._check)

    def _earliest_deadline(self) -> float | None:
        waiting = (call.deadline for call in (*self._sent, *self._queued) if not call.reply.done())
        return min(waiting, default=None)

    def _check(self) -> None:
        self._timer = None
        earliest = self._earliest_deadline()
        if earliest is None:
            return
        if earliest > self._loop.time():
            self._arm(earliest)
        else:
            self._timer = self._loop.call_later(GRACE_SECONDS, self._judge)

    def _judge(self) -> None:
        """Fail what is still overdue; the lane with it, unless its callers were only less patient than the lane is."""
        self._timer = None
        now = self._loop.time()
        waiting = [call for call in (*self._sent, *self._queued) if not call.reply.done()]
        overdue = [call for call in waiting if call.deadline <= now]
        if any(now - call.asked_at >= self._timeout_seconds for call in overdue):
            self.go_away(_NO_ANSWER)
            return
        for call in overdue:
            call.fail(self._store.unavailable(_NO_ANSWER))
            self._store.errors.inc()
        earliest = self._earliest_deadline()
        if earliest is not None:
            self._arm(earliest)


class Store:
    """A client of one store, shared by everything in a process. Open with `start`, end with `close`.

    Every way to fail is `StoreUnavailable`. Awaiting callers may be cancelled at any time: a command that has not left
    yet is dropped, the reply to one that has is discarded, and nobody else notices. `is_nearly_full` is as it was when
    the server was last asked, about a second ago.
    """

    def __init__(  # noqa: PLR0913  what it is, and what it is told of itself, by name
        self,
        where: str | Finder,
        *,
        name: str,
        metrics: Metrics,
        timeout_seconds: float = TIMEOUT_SECONDS,
        probe: Sequence[Command] = (),
        anchor: str | None = None,
    ) -> None:
        """Take an address (see `addresses`), or what finds the server; raises ValueError if it is none.

        `name` is how messages and metrics call this store: `state` or `cache_state`. `probe` are commands that it has
        to carry out, when it is connected and about every second: without them it is of no use, and counts as away.
        On a cluster the store is the primary that owns the slot of `anchor`, and all keys have to be in that slot.
        """
        self.name = name
        self.probe = probe
        self.timeout_seconds = timeout_seconds
        self.finder = where if isinstance(where, Finder) else finder_of(where, timeout_seconds, anchor)
        self.duration = metrics.store_duration_seconds.labels(store=name)
        self.errors = metrics.store_errors_total.labels(store=name)
        self._quick: _Lane | None = None
        self._patient: _Lane | None = None
        self._clock_task: asyncio.Task[None] | None = None
        self._offsets: deque[tuple[float, float]] = deque(maxlen=_CLOCK_SAMPLES)
        self._offset = 0.0
        self.is_nearly_full = False
        self._last_refusal = ""

    async def start(self) -> None:
        """Connect. Returns when the store has answered or turned out to be away; never raises for the latter."""
        self._quick = _Lane(self, self.timeout_seconds)
        await self._quick.tried.wait()
        self._clock_task = asyncio.get_running_loop().create_task(self._follow_clock(), name=f"clock of {self.name}")

    async def close(self) -> None:
        """Wait shortly for what is under way, then hang up. Commands after this fail."""
        if self._clock_task is not None:
            self._clock_task.cancel()
            await asyncio.wait([self._clock_task])
        for lane in (self._quick, self._patient):
            if lane is not None:
                await lane.close()

    @property
    def is_available(self) -> bool:
        """Whether the store answered when it was last spoken to.

        While False, commands fail at once or, where the connection has just broken, wait for the next one.
        """
        return self._quick is not None and self._quick.state is _State.UP

    def available_seconds(self) -> float:
        """Return for how long the store has been available without a break; 0 if it is not."""
        if self._quick is None or self._quick.state is not _State.UP:
            return 0.0
        return asyncio.get_running_loop().time() - self._quick.up_since

    def clock_offset_seconds(self) -> float:
        """Seconds to add to `time.time()` for the store's clock; 0 until it was first heard."""
        return self._offset

    def send(self, *arguments: Argument, timeout_seconds: float | None = None) -> asyncio.Future[Reply]:
        """Let a command leave with the others of this tick and return at once; await the future for its reply.

        So one caller can have several commands, to several stores, in one trip. The future fails with
        StoreUnavailable. Raises TypeError for an argument that is no text, bytes or number.
        """
        return self._submit(self._call(str(arguments[0]).upper(), arguments, timeout_seconds), timeout_seconds)

    def send_script(
        self,
        script: Script,
        keys: Sequence[str | bytes],
        arguments: Sequence[Argument],
        *,
        timeout_seconds: float | None = None,
    ) -> asyncio.Future[Reply]:
        """Let a script leave with the commands of this tick, as `send` does; a server that forgot it is taught."""
        tail = (len(keys), *keys, *arguments)
        call = self._call(script.name, ("EVALSHA", script.sha, *tail), timeout_seconds)
        call.is_repeatable = True
        call.healing = lambda: _pack(("EVAL", script.source, *tail))
        return self._submit(call, timeout_seconds)

    async def command(self, *arguments: Argument, timeout_seconds: float | None = None) -> Reply:
        """Send one command and wait for its reply, at most `timeout_seconds` (the store's bound by default).

        Raises StoreUnavailable; CommandRefused, a subclass, when the server answered an error of its own.
        """
        return await self.send(*arguments, timeout_seconds=timeout_seconds)

    async def run(
        self,
        script: Script,
        keys: Sequence[str | bytes],
        arguments: Sequence[Argument],
        *,
        timeout_seconds: float | None = None,
    ) -> Reply:
        """Run a script and wait for its reply; raises as `command` does."""
        return await self.send_script(script, keys, arguments, timeout_seconds=timeout_seconds)

    async def eviction_policy(self) -> str | None:
        """Tell the server's `maxmemory-policy` (`noeviction` is what limits need); None if it does not say."""
        return (await self.memory()).get("maxmemory_policy")

    async def look_at_memory(self) -> None:
        """Find out whether the server is nearly full; without a `maxmemory` it never is, nor if it evicts."""
        memory = await self.memory()
        used, most = int(memory.get("used_memory", 0)), int(memory.get("maxmemory", 0))
        is_full = 0 < most * FULL_PERCENT < used * 100
        self.is_nearly_full = is_full and memory.get("maxmemory_policy") == NO_EVICTION

    async def memory(self) -> dict[str, str]:
        """Return what the server says of its memory, by name (`INFO memory`). Raises as `command` does."""
        lines = (line.partition(":") for line in (await self.command("INFO", "memory")).decode().splitlines())
        return {name: value for name, _, value in lines}

    def _call(self, name: str, arguments: Sequence[Argument], timeout_seconds: float | None) -> _Call:
        loop = asyncio.get_running_loop()
        now = loop.time()
        deadline = now + (self.timeout_seconds if timeout_seconds is None else timeout_seconds)
        return _Call(name, _pack(arguments), loop.create_future(), now, deadline, name in _REPEATABLE)

    def _submit(self, call: _Call, timeout_seconds: float | None) -> asyncio.Future[Reply]:
        if self._quick is None:
            call.fail(self.unavailable("not started"))
            return call.reply
        is_patient = timeout_seconds is not None and timeout_seconds > self.timeout_seconds
        is_bulky = len(call.packed) > BULKY_BYTES
        if (is_patient or is_bulky) and self._quick.state is _State.UP:
            patient = self._patient_lane()
            if patient.state is _State.AWAY:
                patient.knock()
            patient.submit(call)
        else:
            self._quick.submit(call)
        return call.reply

    def _patient_lane(self) -> _Lane:
        if self._patient is None:
            self._patient = _Lane(self, self.timeout_seconds)
        return self._patient

    async def _follow_clock(self) -> None:
        """Ask for time, memory and probe while all is well; while it is not, the lane's own knocking does."""
        while True:
            await asyncio.sleep(CLOCK_INTERVAL_SECONDS)
            left = time.time()
            with suppress(StoreUnavailable):
                self.note_time(await self.command("TIME"), left)
                await self.look_at_memory()
            await self._try_probe()
            if self.is_available and await self.finder.has_moved():
                _log.info("store has moved", **self.names)
                self._connect_anew()

    def _connect_anew(self) -> None:
        for lane in (self._quick, self._patient):
            if lane is not None:
                lane.connect_anew()

    async def _try_probe(self) -> None:
        try:
            for command in self.probe:
                await self.command(*command)
        except StoreUnavailable as error:
            if self._quick is not None and self.is_available:  # else it is away for another reason, which was told
                self._quick.go_away(_UNUSABLE, error)

    def begin_time(self, reply: Reply, left: float) -> None:
        """Take the first reply to TIME on a new connection: that server may not be the one that was asked before."""
        self._offsets.clear()
        self.note_time(reply, left)

    def note_time(self, reply: Reply, left: float) -> None:
        """Take a reply to TIME whose command left at `left`, Unix seconds; the quickest of the last trips counts."""
        came = time.time()
        seconds, microseconds = (int(part) for part in reply)
        self._offsets.append((came - left, seconds + microseconds / _MICROSECONDS - (left + came) / 2))
        self._offset = min(self._offsets)[1]

    def lane_is_up(self, lane: _Lane) -> None:
        """Hear from a lane that it is up: then the store is, and the other one need not wait to find out."""
        if lane is self._quick and self._patient is not None:
            self._patient.knock()

    @property
    def names(self) -> dict[str, str]:
        """How the log calls this store, and where it is if the address does not say it."""
        place = self.finder.place
        return {"store": self.name} if place is None else {"store": self.name, "node": place}

    def unavailable(self, reason: str) -> StoreUnavailable:
        """Make the error that a caller gets; it names no address."""
        return unavailable(self.name, reason)

    def refused(self, name: str, error: ResponseError) -> StoreUnavailable:
        """Make the error for one command that the server did not carry out; the log is told when it is a new one."""
        reason = _ELSEWHERE if isinstance(error, MovedError | AskError) else str(error)  # theirs are addresses
        message = f"The {self.name} store refused {name}: {reason}."
        if message != self._last_refusal:
            self._last_refusal = message
            _log.warning("store refused a command", **self.names, command=name, reason=reason)
        is_for_good = type(error) is ResponseError and not str(error).startswith(_PASSING_REFUSALS)
        kind = CommandRefused if is_for_good else StoreUnavailable
        return kind(message, retry_after_seconds=_RETRY_AFTER_SECONDS)


def unavailable(name: str, reason: str) -> StoreUnavailable:
    """Make the error for a store of this name that is of no use now; `reason` goes to clients and names no address."""
    return StoreUnavailable(f"The {name} store is not available: {reason}.", retry_after_seconds=_RETRY_AFTER_SECONDS)


def _pack(arguments: Sequence[Argument]) -> bytes:
    packed: bytes = hiredis.pack_command(tuple(arguments))  # type: ignore[arg-type]  # its stub means a tuple of one
    return packed


def _reason_of(error: Exception) -> str:
    """Say in a few words, without addresses, why connecting failed."""
    if isinstance(error, NoPrimary):
        return str(error)
    return next((reason for kinds, reason in _REASONS if isinstance(error, kinds)), "it cannot be reached")
