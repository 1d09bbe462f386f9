"""From an admitted request to its answer: replayed, fetched for itself, or fetched once for several (SPEC §6).

What several read is relayed into a flight by a task of its own, which settles it: so no client waits for another, and a
fetch outlasts the leader's client while others need it. Knows neither cache keys nor limits; how a flight keeps bytes
is in `flights`, how an answer passes in `relay`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from policies.requests.asked import Endpoint
from policies.usage import Saved
from proxy.answer_cache import in_form
from proxy.errors import STOPPED, ClientLeft, Draining, UpstreamError, error_object, is_draining, note_error
from proxy.exchange import CacheResult, Observed, Outcome
from proxy.flights import LeftBehind
from proxy.relay import STREAM_FIELDS, WHOLE_FIELDS, is_stream, relay, replay
from proxy.spread_answers import SpreadAnswer
from proxy.wire.answers import answer_headers
from proxy.wire.chunks import CHUNKS, without_usage_event
from proxy.wire.responses import RESPONSES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AsyncExitStack

    from policies.decision import Decision
    from policies.usage import Usage
    from proxy.admission import Admission
    from proxy.exchange import Exchange, Headers, Request, Writer
    from proxy.flights import Flight, Reader
    from proxy.hedging import Hedged, Hedging
    from proxy.relay import RelayBounds, Settle
    from proxy.shadow import ShadowTraffic
    from proxy.store.entries import StoredAnswer
    from proxy.upstreams.client import UpstreamAnswer
    from proxy.upstreams.dispatch import Sending

_ERRORS = 400


@dataclass(frozen=True, slots=True)
class Answering:
    """One request that was admitted, and what it is answered with."""

    decision: Decision
    exchange: Exchange
    admission: Admission
    hedging: Hedging
    bounds: RelayBounds
    shadow: ShadowTraffic

    @property
    def is_stream(self) -> bool:
        """Whether a stream was asked for."""
        return self.decision.effective.view.is_stream

    def headers(self) -> Headers:
        """Return the gateway's own fields, as things stand."""
        return [*answer_headers(self.exchange, self.admission.cache.answer), *self.admission.limit_headers()]

    async def replay(self, stored: StoredAnswer, writer: Writer) -> None:
        """Send a stored answer, which is in the form that was asked for."""
        settle = self.admission.settle
        await replay(stored, writer, exchange=self.exchange, settle=settle, headers=self.headers)


class Fetch:
    """The fetch of what one request lacks."""

    def __init__(self, request: Request, answering: Answering) -> None:
        """Fetch nothing yet; of the client's `request` only the header fields that may pass are read."""
        self.answering = answering
        self.drops_usage = False
        self._request = request

    async def into(self, writer: Writer, settle: Settle | None = None, *, keeps_usage: bool = False) -> None:
        """Fetch, and pass the answer on; raises as the dispatcher and `relay` do.

        With `keeps_usage` a usage event that only the gateway asked for stays in the stream; `drops_usage` tells then
        that the client's is to go without.
        """
        answering, cache = self.answering, self.answering.admission.cache
        decision, bounds = answering.decision, answering.bounds
        is_by_item = cache.is_by_item
        if is_by_item:
            decision, bounds = cache.narrowed(), replace(bounds, entry_bytes=bounds.flight_bytes)
            answering.admission.narrow(decision)
        is_spread = is_by_item and answering.is_stream
        wants_usage = answering.decision.effective.view.wants_usage
        if is_spread:
            writer = SpreadAnswer(writer, decision.effective.endpoint, keeps_usage=keeps_usage or wants_usage)
        kept, settle = answering.shadow.draw(
            decision, answering.exchange, self._request, settle or answering.admission.settle
        )

        async def pass_on(answer: UpstreamAnswer) -> None:
            if keeps_usage:
                self.drops_usage, answer.is_usage_added = answer.is_usage_added, False
            if is_spread:
                self.drops_usage = keeps_usage and not wants_usage
            await relay(
                answer,
                writer,
                decision=kept,
                exchange=answering.exchange,
                settle=settle,
                headers=answering.headers,
                bounds=bounds,
                complete=cache.completed if is_by_item else None,
            )

        async with answering.hedging.begin(decision, answering.exchange, self._request) as sending:
            await pass_on_first_of_use(sending, pass_on, answering.exchange)


async def pass_on_first_of_use(
    sending: Sending | Hedged, pass_on: Callable[[UpstreamAnswer], Awaitable[None]], exchange: Exchange
) -> None:
    """Pass on the first answer that turns out to be one; another is asked for only while nothing of it has left."""
    while True:
        answer = await sending.answer()
        try:
            await pass_on(answer)
        except UpstreamError as error:
            has_left = exchange.error_code is not None  # then it is told and settled
            if has_left or not sending.goes_on_after(error):
                raise
            exchange.answer = Observed()
        else:
            return


class Lead:
    """A fetch that others may join, by a task that ends when all has come, or when nobody needs it any more."""

    def __init__(self, flight: Flight, fetch: Fetch) -> None:
        """Begin nothing yet."""
        self._flight = flight
        self._fetch = fetch
        self._reader: Reader | None = None
        self._left: BaseException | None = None  # as what the client left, when it did

    async def answer(self, writer: Writer, frame: AsyncExitStack) -> None:
        """Fetch, and pass on to the leader's client; `frame`, in which it was admitted, is left when the fetch ends.

        Raises as `relay` does. When the client leaves, this waits for a fetch that others need: it is the leader's in
        every account.
        """
        flight, owned = self._flight, frame.pop_all()
        flight.task = asyncio.create_task(self._fly(owned), name=f"fetch {flight.key[:8]}")
        try:
            with flight.reader() as self._reader:
                await self._pass_on(self._reader, writer)
        except LeftBehind as error:
            self._left = error
            is_told = await _tell(writer, self._fetch.answering.decision, flight, error)
            await flight.landed()
            if not is_told:
                raise
        except (ClientLeft, asyncio.CancelledError) as left:
            if not (isinstance(left, asyncio.CancelledError) and is_draining(left)):
                self._left = left
            await flight.landed()
            raise

    async def _fly(self, frame: AsyncExitStack) -> None:
        flight = self._flight
        try:
            async with frame:
                try:
                    await self._fetch.into(flight, self._settle, keeps_usage=True)
                except asyncio.CancelledError:
                    self._note_left()
                    raise
        except BaseException as error:  # noqa: BLE001  whoever reads the flight raises it
            flight.land(error)
        else:
            flight.land()

    async def _settle(self, entry: StoredAnswer | None) -> None:
        flight = self._flight
        is_part = bool(self._fetch.answering.admission.cache.missing)
        flight.answer = None if is_part else entry
        flight.outcome, flight.error_code = flight.exchange.outcome, flight.exchange.error_code
        flight.is_settled = True
        if self._left is not None or (self._reader is not None and self._reader.is_left_behind):
            flight.exchange.outcome = Outcome.CLIENT_LEFT
            self._note_left()
        await self._fetch.answering.admission.settle(entry)

    def _note_left(self) -> None:
        """Note as what the leader's client left, in its own account alone."""
        if self._left is not None:
            note_error(self._flight.exchange, self._left)

    async def _pass_on(self, reader: Reader, writer: Writer) -> None:
        flight = self._flight
        head = await flight.begun()
        if flight.whole is not None:
            await writer.respond(*head, flight.whole)
            return
        await writer.start(*head)
        async for piece, _ in flight.pieces(reader):
            if now_written := without_usage_event(piece) if self._fetch.drops_usage else piece:
                await writer.write(now_written)
        await writer.finish()


class Follower:
    """One request that joins a flight: it gets the same bytes under a head of its own, and counts as a hit."""

    def __init__(self, flight: Flight, answering: Answering) -> None:
        """Read nothing yet."""
        self._flight = flight
        self._answering = answering

    async def answer(self, writer: Writer) -> bool:
        """Pass the answer on; False where the flight is of no use to this request, which then has to fetch itself.

        In the form that is fetched it passes live; another form is made of the whole, once that is there. Raises what
        went wrong before the first byte, ClientLeft and cancellation.
        """
        flight, answering = self._flight, self._answering
        if not flight.has_beginning:
            return False
        answering.exchange.is_collapsed = True
        if answering.is_stream is flight.is_stream:
            with flight.reader() as reader:
                await self._pass_on(reader, writer)
            return True
        with flight.reader(reads=False):
            await flight.over()
        answering.exchange.is_collapsed = await self._convert(writer)
        return answering.exchange.is_collapsed

    async def _convert(self, writer: Writer) -> bool:
        """Answer with what has come, in the form that was asked for; an error has only one. False if it has none."""
        flight, answering = self._flight, self._answering
        status, theirs = await flight.begun()
        if flight.whole is not None and status >= _ERRORS:
            await self._respond(writer, status, theirs, flight.whole)
            return True
        endpoint, answer = answering.decision.effective.endpoint, flight.answer
        stored = None if answer is None else in_form(answer, endpoint, is_stream=answering.is_stream)
        if stored is None:
            if flight.is_drained:
                raise Draining(STOPPED)
            return False
        self._note()
        await answering.replay(stored, writer)
        return True

    async def _pass_on(self, reader: Reader, writer: Writer) -> None:
        flight, answering = self._flight, self._answering
        status, theirs = await flight.begun()
        answering.exchange.first_byte = time.monotonic()
        if flight.whole is not None:
            await self._respond(writer, status, theirs, flight.whole)
            return
        self._count_as_hit(None)  # how much it is shows at the end
        await writer.start(status, self._head(theirs))
        try:
            await self._pass_pieces(reader, writer)
        except LeftBehind as error:
            answering.exchange.error_code = error.code
            await answering.admission.settle()
            if not await _tell(writer, answering.decision, flight, error):
                raise

    async def _pass_pieces(self, reader: Reader, writer: Writer) -> None:
        wants_usage = self._answering.decision.effective.view.wants_usage
        async for piece, is_end in self._flight.pieces(reader):
            if is_end:
                await self._settle()
            if now_written := piece if wants_usage else without_usage_event(piece):
                await writer.write(now_written)
        await self._settle()
        await writer.finish()

    async def _respond(self, writer: Writer, status: int, theirs: Headers, body: bytes) -> None:
        await self._settle()
        await writer.respond(status, self._head(theirs), body)

    def _head(self, theirs: Headers) -> Headers:
        """Return the fields of a head; of the leader's only what says how to read the body."""
        content_type = next((value for name, value in theirs if name == "Content-Type"), "")
        own = STREAM_FIELDS if is_stream(theirs) else WHOLE_FIELDS
        return [("Content-Type", content_type), *own, *self._answering.headers()]

    async def _settle(self) -> None:
        self._note()
        await self._answering.admission.settle()

    def _note(self) -> None:
        """Note what is known of the answer by now: it is the leader's."""
        exchange, theirs = self._answering.exchange, self._flight.exchange
        exchange.status, exchange.error_code, exchange.outcome = (
            theirs.status,
            self._flight.error_code,
            self._flight.outcome,
        )
        observed = theirs.answer
        exchange.answer = Observed(
            usage=observed.usage,
            model=observed.model,
            fingerprint=observed.fingerprint,
            is_complete=observed.is_complete,
        )
        if exchange.status < _ERRORS:
            exchange.saved = (Saved(observed.usage, self._flight.provider),)
            self._count_as_hit(observed.usage)

    def _count_as_hit(self, usage: Usage | None) -> None:
        self._answering.exchange.cache = CacheResult.HIT
        self._answering.admission.count_as_hit(usage)


async def _tell(writer: Writer, decision: Decision, flight: Flight, error: LeftBehind) -> bool:
    """End the answer of who was left behind; False where it has no way of saying so, and has to break off."""
    _, headers = await flight.begun()
    has_events = is_stream(headers)
    if has_events:
        family = RESPONSES if decision.effective.endpoint is Endpoint.RESPONSES else CHUNKS
        await writer.write(family.error_event(error_object(error), b""))
        await writer.finish()
    return has_events
