"""Flights: one fetch that several requests read while it is under way (SPEC §6, joining).

A flight is written like an answer to one client and read by many, each at its own pace: late ones begin with what has
come so far. It is bounded: past that nobody joins any more, and who lags further behind the others is left behind; a
flight that only slow ones read waits for the fastest of them. This file knows no upstream, no limit and no store, and
neither who pays for a fetch nor what a request makes of it (`fetching`).
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from proxy.errors import CLIENT_TOO_SLOW, DRAINING, GatewayError, is_draining, take_drain
from proxy.exchange import Outcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from policies.usage import Provider
    from proxy.exchange import Exchange, Headers
    from proxy.store.cache_state import Origin
    from proxy.store.entries import StoredAnswer

_WINDOW_BYTES: Final = 256 * 1024
"""How far any reader of a flight that nobody can join any more may be behind what is fetched; its fastest at most."""


class LeftBehind(GatewayError):  # noqa: N818
    """A client read its answer so slowly that the others who read the same could not wait for it."""

    status = 503
    code = CLIENT_TOO_SLOW


class Reader:
    """One who reads a flight, or only waits for its end; `position` counts bytes."""

    __slots__ = ("is_left_behind", "position", "reads")

    def __init__(self, *, reads: bool) -> None:
        """Begin at the beginning."""
        self.reads = reads
        self.position = 0
        self.is_left_behind = False


class Flight:
    """One fetch: a `Writer` for who fetches, and what came of it for who reads.

    `head` is status and header fields as they are for the one who pays; `whole` the body of an answer that came in one
    piece. `answer` is what was stored of it, where it turned out complete, once `is_over`. `error` is why nothing came,
    or nothing more. `is_settled` tells that what is written from now on is the end, `outcome` and `error_code` what
    became of the fetch by then. `has_beginning`: whoever begins to read now gets all. `is_drained`: the process ends,
    and the fetch was told.
    """

    def __init__(  # noqa: PLR0913  what is to be known of it
        self,
        flights: Flights,
        key: str,
        exchange: Exchange,
        origin: Origin,
        *,
        provider: Provider,
        is_stream: bool,
        is_finished_alone: bool,
    ) -> None:
        """Begin; `exchange` is of the one who pays, `is_finished_alone` whether it goes on when nobody reads it.

        It keeps as much as one flight may now: another bound of later leaves nobody behind who reads it.
        """
        self.key = key
        self.exchange = exchange
        self.origin = origin
        self.provider = provider
        self.is_stream = is_stream
        self.task: asyncio.Task[None] | None = None
        self.head: tuple[int, Headers] | None = None
        self.whole: bytes | None = None
        self.answer: StoredAnswer | None = None
        self.error: BaseException | None = None
        self.is_over = False
        self.is_settled = False
        self.outcome = Outcome.FAILED
        self.error_code: str | None = None
        self.has_beginning = True
        self.is_drained = False
        self._flights = flights
        self._max_bytes = flights.max_flight_bytes
        self._is_finished_alone = is_finished_alone
        self._readers: set[Reader] = set()
        self._pieces: list[tuple[int, bytes, bool]] = []
        self._gone = 0
        self._written = 0
        self._kept = 0
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def is_joinable(self) -> bool:
        """Whether it is under way, and whoever joins it now gets all."""
        return self.has_beginning and not self.is_over

    # written by who fetches

    @property
    def is_started(self) -> bool:
        """Whether there is a head."""
        return self.head is not None

    async def start(self, status: int, headers: Headers) -> None:
        """Take the head."""
        self.head = status, headers
        self._wake()

    async def write(self, data: bytes) -> None:
        """Take bytes of the body; once nobody can join any more this waits for the fastest reader."""
        size, flights = len(data), self._flights
        self._pieces.append((self._written, data, self.is_settled))
        self._written += size
        self._kept += size
        flights.taken_bytes += size
        self._wake()
        if self._kept > self._max_bytes or flights.is_full:
            self.has_beginning = False
        if not self.has_beginning:
            await self._make_room()

    async def finish(self) -> None:
        """Nothing more comes: `land` tells so."""

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Take a whole answer."""
        self.head, self.whole = (status, headers), body
        self._wake()

    def abort(self) -> None:
        """Do nothing: whoever reads breaks its own connection."""

    def land(self, error: BaseException | None = None) -> None:
        """End the flight: well, or with what went wrong."""
        self.error, self.is_over = error, True
        self._flights.forget(self)
        if not self._readers:
            self._uncount()
        self._wake()

    def _uncount(self) -> None:
        """Count what is kept no longer: it goes with who still has the flight at hand."""
        self._flights.taken_bytes -= self._kept
        self._kept = 0

    async def _make_room(self) -> None:
        """Let go of what all have read, leave behind who lags too far, and wait while everybody does."""
        while True:
            self._let_go()
            lags = {reader: self._written - reader.position for reader in self._readers if reader.reads}
            if not lags or min(lags.values()) <= _WINDOW_BYTES:
                break
            await self._changed()
        longest = _WINDOW_BYTES if self._flights.is_full else max(self._max_bytes, _WINDOW_BYTES)
        for reader, lag in lags.items():
            if lag > longest:
                reader.is_left_behind = True
                self._readers.discard(reader)
                self._wake()
        self._let_go()

    def _let_go(self) -> None:
        first = min((reader.position for reader in self._readers if reader.reads), default=self._written)
        gone = 0
        for begin, data, _ in self._pieces:
            if begin + len(data) > first:
                break
            gone += 1
            self._kept -= len(data)
            self._flights.taken_bytes -= len(data)
        del self._pieces[:gone]
        self._gone += gone

    # read by those who wait for it

    @contextmanager
    def reader(self, *, reads: bool = True) -> Iterator[Reader]:
        """Read along from the beginning, or only wait. Who leaves last ends a fetch that nobody needs any more."""
        reader = Reader(reads=reads)
        self._readers.add(reader)
        try:
            yield reader
        except asyncio.CancelledError as cancelled:
            if is_draining(cancelled):
                self._drain()
            raise
        finally:
            self._readers.discard(reader)
            self._wake()
            if not self._readers:
                self._be_alone()

    def _be_alone(self) -> None:
        """End a fetch that nobody needs any more."""
        if self.is_over:
            self._uncount()
        elif not self._is_finished_alone and not self.is_drained and self.task is not None:
            self.has_beginning = False  # whoever joined from here on would be ended with it
            self.task.cancel()

    async def begun(self) -> tuple[int, Headers]:
        """Return the head when there is one. Raises what went wrong before."""
        while self.head is None:
            if self.is_over:
                raise self.error or GatewayError("The answer that was waited for did not come.")
            await self._changed()
        return self.head

    async def over(self) -> None:
        """Return when nothing more comes. Raises what went wrong."""
        await self.landed()
        if self.error is not None:
            raise self.error

    async def landed(self) -> None:
        """Return when the fetch has ended, however it did."""
        while not self.is_over:
            await self._changed()

    async def pieces(self, reader: Reader) -> AsyncIterator[tuple[bytes, bool]]:
        """Hand out the body as it comes, and with each piece whether it belongs to the end.

        Raises LeftBehind, and what went wrong.
        """
        number = 0
        while True:
            if reader.is_left_behind:
                raise LeftBehind("The answer was read so slowly that the others who wait for the same had to go on.")
            if number - self._gone < len(self._pieces):
                _, data, is_end = self._pieces[number - self._gone]
                yield data, is_end
                number += 1
                reader.position += len(data)
                if not self.has_beginning:
                    self._wake()
            elif self.is_over:
                if self.error is not None:
                    raise self.error
                return
            else:
                await self._changed()

    def _drain(self) -> None:
        """End the fetch because the process ends: what it says of that reaches all who read. They all are told."""
        if self.task is not None and not self.is_drained:
            self.is_drained = True
            self.task.cancel(DRAINING)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _changed(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError as cancelled:
            take_drain(cancelled)
            self._drain()


class Flights:
    """The flights of one worker, by cache key. They keep `max_bytes` together, each `max_flight_bytes`.

    Also who looks out for what another process fetches: of all who wait for the same only one does.
    """

    def __init__(self, *, max_bytes: int, max_flight_bytes: int) -> None:
        """Begin with none."""
        self.max_flight_bytes = max_flight_bytes
        self.taken_bytes = 0
        self._max_bytes = max_bytes
        self._by_key: dict[str, Flight] = {}
        self._lookouts: dict[str, asyncio.Future[None]] = {}

    def adopt(self, *, max_bytes: int, max_flight_bytes: int) -> None:
        """Keep so much from now on: all together at once, each if it begins later."""
        self._max_bytes, self.max_flight_bytes = max_bytes, max_flight_bytes

    @property
    def is_full(self) -> bool:
        """Whether they keep as much as they may."""
        return self.taken_bytes > self._max_bytes

    def find(self, key: str) -> Flight | None:
        """Return the fetch that is under way, None if there is none; not every one can be joined."""
        return self._by_key.get(key)

    def begin(  # noqa: PLR0913  what is to be known of a flight
        self,
        key: str,
        exchange: Exchange,
        origin: Origin,
        *,
        provider: Provider,
        is_stream: bool,
        is_finished_alone: bool,
    ) -> Flight:
        """Begin a flight, which is the one that is found from now on."""
        flight = self._by_key[key] = Flight(
            self,
            key,
            exchange,
            origin,
            provider=provider,
            is_stream=is_stream,
            is_finished_alone=is_finished_alone,
        )
        return flight

    def forget(self, flight: Flight) -> None:
        """Let a flight be found no longer; those who read it keep it."""
        if self._by_key.get(flight.key) is flight:
            del self._by_key[flight.key]

    def find_lookout(self, key: str) -> asyncio.Future[None] | None:
        """Return what is done when the one who looks out for a fetch elsewhere does so no longer; None: nobody does."""
        return self._lookouts.get(key)

    @contextmanager
    def looking_out(self, key: str) -> Iterator[None]:
        """Look out for what another process fetches, for all who wait here: nobody else does."""
        done = self._lookouts[key] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._lookouts[key]
            done.set_result(None)
