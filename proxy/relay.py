"""From an answer to the client: an upstream's as it comes, a stored one as it was (SPEC §7, §8).

Bytes pass unchanged, on event boundaries and at once; what they say is noted in the exchange on the way. The last bytes
wait for the settlement. Knows neither limits nor cache keys, nor how an answer was come by.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from policies.cacheability import Keyed
from policies.requests.asked import Endpoint
from proxy.durations import Durations
from proxy.errors import (
    ClientLeft,
    Draining,
    GatewayError,
    UpstreamError,
    UpstreamUnusable,
    error_object,
    is_draining,
    take_drain,
)
from proxy.exchange import Outcome
from proxy.store.entries import StoredAnswer
from proxy.upstreams.headers import response_headers
from proxy.wire.choice_texts import ChoiceTexts
from proxy.wire.chunks import CHUNKS, without_usage_event
from proxy.wire.envelopes import (
    EDGE_BYTES,
    UnreadableAnswer,
    are_choices_whole,
    may_be_completion,
    observe_answer,
    observe_edges,
)
from proxy.wire.responses import RESPONSES
from proxy.wire.sse import MAX_EVENT_BYTES, EventSplitter
from proxy.wire.streams import StreamObserver, is_readable, without_obfuscation

if TYPE_CHECKING:
    from policies.decision import Decision
    from proxy.exchange import Exchange, Headers, Writer
    from proxy.upstreams.client import UpstreamAnswer

Settle = Callable[[StoredAnswer | None], Awaitable[None]]
MakeHeaders = Callable[[], "Headers"]
Complete = Callable[[bytes], bytes | None]

_log = logging.getLogger("tidegate.relay")

STREAM_TYPE = "text/event-stream"
_JSON_TYPE = "application/json"
_TEXT_TYPE = "text/plain"
_OK = 200
_ERRORS = 400
_SERVER_ERRORS = 500
_MAX_ENTRY_BYTES = 1024 * 1024
_FIRST_BYTES_SECONDS = 5.0
"""How long a stream's head is kept back until something comes of it, where another deployment could be asked."""
_END_SECONDS = 1.0
"""How long the end of a transport is waited for once the stream's own has come."""
_MAX_LATE_BYTES = 64 * 1024
"""How much of what follows a stream's end is read."""
_LOGGED_BODY_BYTES = 2048
_QUOTED_CHARACTERS = 500
WHOLE_FIELDS = [("Cache-Control", "no-store")]
STREAM_FIELDS = [("Cache-Control", "no-cache, no-store"), ("X-Accel-Buffering", "no")]


@dataclass(frozen=True, slots=True)
class RelayBounds:
    """Bytes: answers up to `entry` are read whole and may be stored; events above `event` flow unaligned.

    `flight` is how long an answer may be that is made of several which may be stored.
    """

    entry_bytes: int = _MAX_ENTRY_BYTES
    event_bytes: int = MAX_EVENT_BYTES
    flight_bytes: int = 64 * _MAX_ENTRY_BYTES


DEFAULT_BOUNDS = RelayBounds()


def is_stream(headers: Headers) -> bool:
    """Tell whether the fields of a head say that a stream of events follows."""
    return any(name == "Content-Type" and value.lower().startswith(STREAM_TYPE) for name, value in headers)


async def relay(  # noqa: PLR0913  an answer, where it goes, and what has to be told and settled on the way
    answer: UpstreamAnswer,
    writer: Writer,
    *,
    decision: Decision,
    exchange: Exchange,
    settle: Settle,
    headers: MakeHeaders,
    bounds: RelayBounds = DEFAULT_BOUNDS,
    complete: Complete | None = None,
) -> None:
    """Pass an upstream's answer on, and close it.

    Notes `status`, `outcome`, `answer` and the times in the exchange, then awaits `settle` with the entry to be
    stored, or None, once, before the last bytes leave. `headers` are the gateway's own fields, asked for when the head
    is written: on streams at the beginning, else after the settlement. `complete` makes of a whole answer what the
    client gets, where only a part was fetched; None where that cannot be.

    Raises UpstreamUnusable, UpstreamBroken or UpstreamTooSlow while nothing has been sent; after that only for an
    answer too long to be read whole that broke, and then the writer's connection must be broken too. ClientLeft and
    cancellation travel on, with the outcome noted; but not the end of a drain once a stream's head has left: the stream
    then ends here, as if it had been cut (SPEC §10).
    """
    passing = _Passing(answer, writer, decision, exchange, settle, headers, bounds, complete)
    if decision.model.count_tokens is not None and decision.worst_case.candidates:
        exchange.answer.texts = ChoiceTexts(decision.worst_case.candidates)
    try:
        if answer.status >= _ERRORS:
            await _relay_error(passing)
        elif answer.is_stream:
            await _relay_stream(passing)
        else:
            await _relay_whole(passing)
    except UpstreamError as error:
        answer.failure = error
        raise
    except (ClientLeft, asyncio.CancelledError) as left:
        is_told = exchange.outcome is not Outcome.FAILED or exchange.error_code is not None
        if not is_told and not (isinstance(left, asyncio.CancelledError) and is_draining(left)):
            exchange.outcome = Outcome.CLIENT_LEFT
        raise
    finally:
        answer.close()


async def replay(
    stored: StoredAnswer,
    writer: Writer,
    *,
    exchange: Exchange,
    settle: Settle,
    headers: MakeHeaders,
) -> None:
    """Send a stored answer byte for byte, less the usage event of a stream whose client did not ask for it."""
    observed = exchange.answer
    observed.usage, observed.model, observed.fingerprint = stored.usage, stored.model, stored.fingerprint
    observed.is_complete = True
    exchange.status, exchange.outcome = _OK, Outcome.COMPLETED
    exchange.first_byte = time.monotonic()
    await settle(None)
    own = STREAM_FIELDS if stored.is_stream else WHOLE_FIELDS
    body = stored.body
    if stored.is_stream and not (exchange.decision and exchange.decision.effective.view.wants_usage):
        body = without_usage_event(body)
    await writer.respond(_OK, [("Content-Type", stored.content_type), *own, *headers()], body)


@dataclass(frozen=True, slots=True)
class _Passing:
    """One answer on its way, and everything that has to do with it."""

    answer: UpstreamAnswer
    writer: Writer
    decision: Decision
    exchange: Exchange
    settle: Settle
    headers: MakeHeaders
    bounds: RelayBounds
    complete: Complete | None = None

    def tell(self, outcome: Outcome, error: GatewayError | None = None) -> None:
        """Note how the exchange ends; the settlement that follows books it so."""
        self.exchange.status = self.answer.status
        self.exchange.outcome = outcome
        if error is not None:
            self.exchange.error_code = error.code

    def head(self, content_type: str, own: Headers) -> Headers:
        """Return the fields of the head: the upstream's that may pass, then the gateway's own."""
        return [("Content-Type", content_type), *own, *response_headers(self.answer.headers), *self.headers()]

    def may_store(self, *, is_stream: bool) -> bool:
        """Tell whether an answer of this form is to be kept, should it turn out complete."""
        plan = self.decision.cache
        return isinstance(plan, Keyed) and plan.store and self.decision.effective.view.is_stream is is_stream

    def entry(self, body: bytes, content_type: str, *, is_stream: bool) -> StoredAnswer:
        """Return what is stored of a complete answer."""
        observed = self.exchange.answer
        return StoredAnswer(
            is_stream=is_stream,
            content_type=content_type,
            body=body,
            created_milliseconds=self.exchange.unix_milliseconds(time.monotonic()),
            usage=observed.usage,
            fingerprint=observed.fingerprint,
            model=observed.model,
        )


# Errors -------------------------------------------------------------------------------------------------------------


class _Refused(UpstreamError):  # noqa: N818
    """The upstream answered with an error status and no error object: 5xx."""

    code = "upstream_error"


class _RefusedRequest(_Refused):
    """The same with a 4xx."""

    type = "invalid_request_error"


async def _relay_error(passing: _Passing) -> None:
    """Pass an upstream's own error on with its status; one without a JSON object gets one (SPEC §9)."""
    answer, max_bytes = passing.answer, passing.bounds.entry_bytes
    try:
        body, is_all = await answer.read_whole(max_bytes)
        observe_answer(body if is_all else b"", passing.exchange.answer)
    except UpstreamError as error:
        body = _refusal(answer, f". {error}")
    except UnreadableAnswer:
        body = _refusal(answer, _said(answer, body, max_bytes))
    passing.exchange.error_code = "upstream_status"
    passing.tell(Outcome.UPSTREAM_ERROR)
    await passing.settle(None)
    await passing.writer.respond(answer.status, passing.head(_JSON_TYPE, WHOLE_FIELDS), body)


def _refusal(answer: UpstreamAnswer, said: str) -> bytes:
    refused = _RefusedRequest if answer.status < _SERVER_ERRORS else _Refused
    return error_object(refused(f"The upstream answered {answer.status}{said}"))


def _said(answer: UpstreamAnswer, body: bytes, max_bytes: int) -> str:
    """Continue the sentence of how an upstream refused: with its text if plain and no HTML, else why none is shown."""
    text = body.decode("utf-8", "replace").strip() if answer.media_type == _TEXT_TYPE else ""
    if text and not text.startswith("<"):
        return f": {text[:_QUOTED_CHARACTERS]}"
    if len(body) > max_bytes:
        return f" with a body of more than {max_bytes} bytes."
    return " with a body that is no JSON object." if body.strip() else " without saying why."


# Whole answers ------------------------------------------------------------------------------------------------------


async def _relay_whole(passing: _Passing) -> None:
    """Read a JSON answer, settle, and send head and body in one go; one that is too long flows."""
    answer, observed = passing.answer, passing.exchange.answer
    body, is_all = await answer.read_whole(passing.bounds.entry_bytes)
    passing.exchange.first_byte = time.monotonic()
    if not is_all:
        if passing.complete is not None:
            raise _unusable(answer, body, f"it is longer than {passing.bounds.entry_bytes} bytes")
        await _relay_long(passing, body)
        return
    content_type = _content_type(answer)
    try:
        contents = observe_answer(body, observed)
    except UnreadableAnswer as unreadable:
        raise _unusable(answer, body, str(unreadable)) from unreadable
    view = passing.decision.effective.view
    is_embedding = passing.decision.effective.endpoint is Endpoint.EMBEDDINGS
    has_all = contents.embeddings == view.choices if is_embedding else are_choices_whole(observed, view.choices)
    observed.is_complete = has_all and not contents.is_error and answer.status == _OK
    sent = body
    if passing.complete is not None and not contents.is_error:
        whole = passing.complete(body)
        if whole is None:
            raise _unusable(answer, body, "it does not hold what was asked for")
        sent = whole
    passing.tell(Outcome.UPSTREAM_ERROR if contents.is_error else Outcome.COMPLETED)
    is_kept = observed.is_complete and passing.may_store(is_stream=False)
    await passing.settle(passing.entry(body, content_type, is_stream=False) if is_kept else None)
    await passing.writer.respond(answer.status, passing.head(content_type, WHOLE_FIELDS), sent)


async def _relay_long(passing: _Passing, begun: bytes) -> None:
    """Send an answer that is too long to be kept as it comes; its last piece waits for the settlement."""
    answer, writer, observed = passing.answer, passing.writer, passing.exchange.answer
    content_type = _content_type(answer)
    if "json" not in content_type:
        raise _unusable(answer, begun, f"it is {answer.media_type!r} and not JSON")
    await writer.start(answer.status, passing.head(content_type, WHOLE_FIELDS))
    last = tail = begun
    observed.content_bytes = len(begun)
    try:
        async with aclosing(answer.chunks()) as chunks:
            async for piece in chunks:
                await writer.write(last)
                last = piece
                tail = (tail + piece)[-EDGE_BYTES:]
                observed.content_bytes += len(piece)
    except UpstreamError as error:
        passing.tell(Outcome.UPSTREAM_ERROR, error)
        await passing.settle(None)
        raise
    observe_edges(begun[:EDGE_BYTES], tail[-EDGE_BYTES:], observed)
    passing.tell(Outcome.COMPLETED)
    await passing.settle(None)
    await writer.write(last)
    await writer.finish()


def _content_type(answer: UpstreamAnswer) -> str:
    return (answer.header("Content-Type") or _JSON_TYPE) if "json" in answer.media_type else _JSON_TYPE


def _unusable(answer: UpstreamAnswer, body: bytes, why: str) -> UpstreamUnusable:
    shown = b"" if may_be_completion(body) else body[:_LOGGED_BODY_BYTES]
    _log.error(
        "an upstream answered %d with an unreadable body of %d bytes (%s): %r", answer.status, len(body), why, shown
    )
    return UpstreamUnusable("The upstream's answer is no JSON object. The operator's log says more.")


# Streams ------------------------------------------------------------------------------------------------------------


class _Kept:
    """The bytes of a stream that may be stored, given up when they exceed their bound."""

    __slots__ = ("_left_bytes", "_pieces")

    def __init__(self, max_bytes: int) -> None:
        self._left_bytes = max_bytes
        self._pieces: list[bytes] = []

    def add(self, data: bytes) -> None:
        """Keep more of the stream."""
        self._left_bytes -= len(data)
        if self._left_bytes >= 0:
            self._pieces.append(data)
        else:
            self._pieces.clear()

    def whole(self) -> bytes | None:
        """Return all that was kept; None when it was too much."""
        return b"".join(self._pieces) if self._left_bytes >= 0 else None


class _Stream:
    """One stream on its way: events cut, observed, written at once, kept for the cache if it wants them."""

    def __init__(self, passing: _Passing) -> None:
        self.passing = passing
        self.splitter = EventSplitter(passing.bounds.event_bytes)
        family = RESPONSES if passing.decision.effective.endpoint is Endpoint.RESPONSES else CHUNKS
        self.observer = StreamObserver(passing.exchange.answer, family, drops_usage=passing.answer.is_usage_added)
        keeps = passing.may_store(is_stream=True)
        self.kept = _Kept(passing.bounds.entry_bytes) if keeps else None
        self._last_content: float | None = None

    async def take(self, data: bytes) -> bool:
        """Write the events that these bytes complete, all in one go; tell whether the stream's end is among them."""
        if self.kept is not None:
            self.kept.add(data)
        was_inside = self.splitter.is_inside
        if (events := self.splitter.feed(data)) and (now_written := self._observe(events, was_inside=was_inside)):
            await self.passing.writer.write(now_written)
        return self.observer.is_done

    async def take_late(self, data: bytes) -> bool:
        """Take what follows the end; tell whether it is too much."""
        await self.take(data)
        return len(self.observer.held) > _MAX_LATE_BYTES

    async def take_rest(self) -> None:
        """Take what is left at a clean end as it is, terminator or not."""
        was_inside = self.splitter.is_inside
        if (rest := self.splitter.rest()) and (now_written := self._observe([rest], was_inside=was_inside)):
            await self.passing.writer.write(now_written)

    def take_last_whole(self) -> bytes:
        """Take the event that is whole where the stream was cut, though its end might have been half of a CRLF."""
        was_inside = self.splitter.is_inside
        last = self.splitter.last_whole()
        return self._observe([last], was_inside=was_inside) if last else b""

    def _observe(self, events: list[bytes], *, was_inside: bool) -> bytes:
        observed = self.passing.exchange.answer
        known = observed.content_events
        if was_inside or self.splitter.is_inside:
            now_written = self._observe_unaligned(events, was_inside=was_inside)
        else:
            now_written = self.observer.observe(events)
        if observed.content_events != known:
            self._note_time()
        return now_written

    def _observe_unaligned(self, events: list[bytes], *, was_inside: bool) -> bytes:
        """Observe events of which the first ends one that is too long to be seen whole, or the last begins one."""
        begin = int(was_inside)
        end = max(begin, len(events) - int(self.splitter.is_inside))
        observer = self.observer
        first = [observer.observe_part(part) for part in events[:begin]]
        whole = observer.observe(events[begin:end]) if begin < end else b""
        last = [observer.observe_part(part) for part in events[end:]]
        return b"".join([*first, whole, *last])

    def _note_time(self) -> None:
        now = time.monotonic()
        exchange = self.passing.exchange
        if self._last_content is None:
            exchange.first_byte = now
        else:
            if exchange.answer.token_gaps is None:
                exchange.answer.token_gaps = Durations()
            exchange.answer.token_gaps.observe(now - self._last_content)
        self._last_content = now


async def _relay_stream(passing: _Passing) -> None:
    """Pass a stream on; every kind of end of SPEC §7 ends here."""
    if passing.answer.is_replaceable:
        await _wait_for_first_bytes(passing.answer)
    stream = _Stream(passing)
    content_type = passing.answer.header("Content-Type") or STREAM_TYPE
    await passing.writer.start(passing.answer.status, passing.head(content_type, STREAM_FIELDS))
    cut: GatewayError | None = None
    try:
        if await passing.answer.flow(stream.take):
            await _read_to_end(stream)
        else:
            await stream.take_rest()
    except UpstreamError as error:
        cut = error
    except asyncio.CancelledError as cancelled:
        take_drain(cancelled)
        cut = Draining("The gateway is being stopped before the end of this answer; send the request again.")
    passing.answer.close()
    if cut is None or stream.observer.is_done:  # after its end nothing is missing for the client
        await _end_well(stream, content_type)
    else:
        await _end_broken(stream, cut)


async def _wait_for_first_bytes(answer: UpstreamAnswer) -> None:
    """Keep the client's head back for a while: a stream that breaks before its first byte is then another's to give."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_FIRST_BYTES_SECONDS):
            await answer.peek(1)


async def _read_to_end(stream: _Stream) -> None:
    """Read what follows the end for the client, such as `[DONE]`, up to the transport's; not for long, nor much."""
    try:
        async with asyncio.timeout(_END_SECONDS):
            if not await stream.passing.answer.flow(stream.take_late):
                await stream.take_rest()
    except (UpstreamError, TimeoutError):
        return  # nothing is missing for the client; the answer counts as cut and is not stored


async def _end_well(stream: _Stream, content_type: str) -> None:
    """End a stream as its upstream did: what was held from its end on leaves once everything is booked."""
    passing, observer = stream.passing, stream.observer
    observed = passing.exchange.answer
    choices = passing.decision.effective.view.choices
    has_finished = observer.has_finished(choices)
    is_whole = passing.answer.is_whole and passing.answer.status == _OK
    observed.is_complete = has_finished and is_whole and are_choices_whole(observed, choices)
    if observer.has_failed:
        passing.tell(Outcome.UPSTREAM_ERROR)
    else:
        passing.tell(Outcome.COMPLETED if has_finished else Outcome.INCOMPLETE)
    await _end(passing, _stream_entry(stream, content_type) if observed.is_complete else None, observer.held)


def _stream_entry(stream: _Stream, content_type: str) -> StoredAnswer | None:
    body = None if stream.kept is None else stream.kept.whole()
    if body is None or not is_readable(body):
        return None
    return stream.passing.entry(without_obfuscation(body), content_type, is_stream=True)


async def _end_broken(stream: _Stream, error: GatewayError) -> None:
    """End a stream that was cut: the unfinished event is dropped, one error event says so and is the last."""
    passing = stream.passing
    last = stream.take_last_whole()
    passing.tell(Outcome.UPSTREAM_ERROR if isinstance(error, UpstreamError) else Outcome.FAILED, error)
    boundary = b"\n\n" if stream.splitter.is_inside else b""
    await _end(passing, None, last + boundary + stream.observer.error_event(error_object(error)))


async def _end(passing: _Passing, entry: StoredAnswer | None, last: bytes) -> None:
    """Book a stream, then write its last bytes and end its body; the end of a drain keeps nobody from that."""
    await _outlasting_drain(passing.settle(entry))
    if last:
        await _outlasting_drain(passing.writer.write(last))
    await _outlasting_drain(passing.writer.finish())


async def _outlasting_drain(step: Awaitable[None]) -> None:
    """Take one of the last steps; when the end of a drain interrupts the wait for it, it goes on by itself."""
    try:
        await step
    except asyncio.CancelledError as cancelled:
        take_drain(cancelled)
