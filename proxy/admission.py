"""Admission: room is taken before a request is forwarded and given back after, in one frame (SPEC §5, DESIGN §3).

    async with admissions.admit(decision, exchange) as admission:
        ...
        await admission.settle(entry)      # before the answer's last bytes

Reservation and look-up leave in one tick and are awaited together; settlement, usage record and the entry of the cache
likewise. Whoever leaves the block in whatever way has settled, and nothing that is cancelled stops that. What the store
cannot be told goes to the spool. This file takes and gives back as the decision says; it knows no window and no price,
and neither the scripts' arguments (`store/reservations`) nor what goes on in the background (`upkeep`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import structlog
from msgspec.structs import replace

from policies.cacheability import Keyed
from policies.charges import NOTHING, Seen, charge, charge_of_hit
from policies.errors import LimitExceeded
from policies.limits import taken, taken_by_hit
from policies.quantities import exceeds
from policies.room import Room, refuse, would_refuse
from policies.waiting import Place, may_wait, pause_milliseconds
from proxy.early_streams import repeated
from proxy.errors import StoreUnavailable, note_error
from proxy.exchange import Headers, Outcome
from proxy.local_limits import LocalLimits
from proxy.records import orphan_record, usage_record
from proxy.request_cache import RequestCache
from proxy.store.reservations import (
    Ending,
    Hits,
    Reservations,
    Reserved,
    Settlement,
    Verdict,
    read_admit,
    read_levels,
    share,
)
from proxy.upkeep import Upkeep
from proxy.waiting import Sleepers
from proxy.wire.limit_fields import limit_headers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from policies.charges import Charged
    from policies.decision import Decision
    from policies.limits import BoundLimit
    from policies.usage import Usage
    from policies.windows import Level
    from proxy.answer_cache import AnswerCache
    from proxy.exchange import Exchange
    from proxy.flights import Flights
    from proxy.metrics import Metrics
    from proxy.spool import Spool
    from proxy.store.connection import Reply, Store
    from proxy.store.entries import StoredAnswer
    from proxy.store.reservations import Count

Comment = Callable[[Headers], Awaitable[None]]
"""Shows that a stream is alive whose answer is not there yet, in a head with these fields if none has left."""

_NOBODY_AHEAD: Final[Mapping[int, int]] = {}
_MAX_TRIES: Final = 3
"""An admission is sent again when the store's clock was not where we thought it was."""
_CLOSE_SECONDS: Final = 1.0
_RETRY_AFTER_SECONDS: Final = 1
_FIRST_ERROR_STATUS: Final = 400
_MILLISECONDS: Final = 1_000

_log = structlog.get_logger(__name__)


class Admissions:
    """What admits the requests of one worker. Open with `start`, end with `close`."""

    def __init__(  # noqa: PLR0913  the parts it stands on, by name
        self,
        state: Store,
        cache: AnswerCache,
        *,
        reservations: Reservations,
        flights: Flights,
        spool: Spool,
        metrics: Metrics,
        workers: int = 1,
        lease_seconds: float = 30.0,
        join_wait_seconds: float = 2.0,
        comment_seconds: float = 1.0,
    ) -> None:
        """Take what is started already; `workers` is how many share local limits."""
        self.state = state
        self.cache = cache
        self.flights = flights
        self.join_wait_seconds = join_wait_seconds
        self.comment_seconds = comment_seconds
        self.metrics = metrics
        self.reservations = reservations
        self.live: dict[str, Admission] = {}
        self.sleepers = Sleepers()
        self.local = LocalLimits(workers=workers, held_here=self._held_here)
        self._pending: set[asyncio.Future[Any]] = set()
        self._upkeep = Upkeep(
            self.reservations, self.live, store=state, spool=spool, metrics=metrics, lease_seconds=lease_seconds
        )

    async def start(self) -> None:
        """Begin what goes on in the background: renewing leases, booking orphans, delivering the spool."""
        self._upkeep.start()

    async def close(self) -> None:
        """Wait for settlements under way, deliver the spool if the store is there, and end the background's work."""
        if self._pending:
            await asyncio.wait(self._pending, timeout=_CLOSE_SECONDS)
        await self._upkeep.close()

    def admit(self, decision: Decision, exchange: Exchange, comment: Comment | None = None) -> Admission:
        """Return the frame of one request. Entering it raises LimitExceeded or StoreUnavailable.

        While a stream waits for what another process fetches, `comment` is called now and then, with the limits'
        fields.
        """
        return Admission(self, decision, exchange, comment)

    def record(self, exchange: Exchange) -> None:
        """Leave the usage record of a finished exchange that was not admitted, and of no other.

        An exchange without a principal leaves none, one that was settled has left its own. Returns at once; what the
        store does not take is spooled.
        """
        if exchange.principal is None or exchange.charged is not None:
            return
        record = usage_record(exchange, None).decode()
        self.end(Settlement(exchange.request_id, Ending.SETTLE, record, (), self.now()))

    @property
    def is_behind(self) -> bool:
        """Whether the store has yet to be told of what happened without it."""
        return self._upkeep.is_behind

    def now(self) -> int:
        """Return Unix milliseconds of the store's clock, as far as it is known."""
        return self.reservations.now()

    def end(
        self, settlement: Settlement, told: Callable[[Sequence[Level]], None] | None = None
    ) -> asyncio.Future[None]:
        """Tell the store that a request has ended, or the spool if the store cannot be told.

        The future is done when either knows, within the store's time-out, and never fails; `told` gets the levels
        after it. Nobody can stop it: a waiter that is cancelled leaves it under way, and `close` waits for it.
        """
        done = self.promise()

        def finish(reply: asyncio.Future[Reply]) -> None:
            error = None if reply.cancelled() else reply.exception()
            if reply.cancelled() or error is not None:
                self._keep(settlement, error)
            elif told is not None:
                told(read_levels(reply.result()))
            self.sleepers.wake(share.key for share in settlement.shares)
            _fulfil(done)

        reply = self.reservations.send(settlement)
        if not reply.done():  # else the store is known to be away, and was not told
            settlement = replace(settlement, was_sent=True)
        reply.add_done_callback(finish)
        return done

    def store(self, answers: Mapping[str, StoredAnswer], exchange: Exchange) -> asyncio.Future[None]:
        """Put answers into the cache by their keys; `exchange.is_stored` tells whether all are. The future never fails.

        A server that keeps all it is given gets nothing more when it is nearly full: limits may live there too.
        """
        done = self.promise()
        if self.cache.is_full or not answers:
            _fulfil(done)
            return done
        under_way = set(answers)

        def finish(key: str, reply: asyncio.Future[Reply]) -> None:
            if reply.cancelled() or reply.exception() is not None:
                exchange.is_stored = False
            under_way.discard(key)
            if not under_way:
                _fulfil(done)

        exchange.is_stored = True
        for key, answer in answers.items():
            self.cache.put(key, answer).add_done_callback(partial(finish, key))
        return done

    def promise(self) -> asyncio.Future[None]:
        """Return a future that `close` waits for."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.add(done)
        done.add_done_callback(self._pending.discard)
        return done

    def _keep(self, settlement: Settlement, error: BaseException | None) -> None:
        if not isinstance(error, StoreUnavailable | None):
            _log.error("settlement failed unexpectedly", request_id=settlement.request_id, exc_info=error)
        self._upkeep.keep(settlement)

    def _held_here(self, key: str) -> int:
        by_store = (admission for admission in self.live.values() if not admission.is_local)
        return sum(1 for admission in by_store for count in admission.counts if count.key == key)


class Admission:
    """One request between its reservation and its settlement.

    `cache` is what the cache has for it; `counts` are where its limits count.
    """

    __slots__ = (
        "_admissions",
        "_came_microseconds",
        "_comment",
        "_decision",
        "_done",
        "_exchange",
        "_hit",
        "_is_in_line",
        "_is_sent",
        "_local_counts",
        "_observed",
        "_orphan_record",
        "_places",
        "_rooms",
        "_verdict",
        "_waiting_since",
        "cache",
        "counts",
        "is_local",
    )

    def __init__(
        self, admissions: Admissions, decision: Decision, exchange: Exchange, comment: Comment | None = None
    ) -> None:
        """Admit nothing yet: that is done by entering."""
        self.cache = RequestCache(admissions.cache, admissions.flights, decision, exchange)
        self.counts: tuple[Count, ...] = ()
        self.is_local = False
        self._admissions = admissions
        self._comment = comment if decision.effective.view.is_stream else None
        self._decision = decision
        self._exchange = exchange
        self._hit: _Hit | None = None
        self._local_counts: tuple[Count, ...] = ()
        self._came_microseconds = 0
        self._orphan_record: bytes | None = None
        self._places: tuple[Place, ...] = ()
        self._waiting_since: float | None = None
        self._observed: tuple[tuple[BoundLimit, int], ...] = ()
        self._rooms: tuple[Room, ...] = ()
        self._verdict = Verdict.REFUSED
        self._is_in_line = False
        self._is_sent = False
        self._done: asyncio.Future[Any] | None = None

    def limit_headers(self) -> Headers:
        """Return the headers that tell what is left, as last heard of: after `settle`, what is left after it."""
        return limit_headers(self._rooms)

    async def __aenter__(self) -> Self:
        """Reserve and look up in one trip, and again after each wait. Whatever this raises, it leaves nothing held."""
        try:
            await self._try()
            if self._verdict is Verdict.WAITING:
                await self._wait()
            if self.cache.is_elsewhere:
                await self._wait_for_others()
            await self._check_hit()
        except asyncio.CancelledError:
            self._forget_cache()
            self._release()
            raise
        except BaseException:
            self._forget_cache()
            await asyncio.shield(self._release())
            raise
        if self.cache.answer is not None:
            self.count_as_hit(self.cache.answer.usage)
        self._note_observed()
        self._admissions.live[self._exchange.request_id] = self
        self._admissions.metrics.reservations_outstanding.inc()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Settle, unless that was done; a waiter that is cancelled once more leaves the settlement under way."""
        if self._done is None and error is not None:
            note_error(self._exchange, error)
        await self.settle()

    async def settle(self, entry: StoredAnswer | None = None) -> None:
        """Book what the request took, leave its usage record, and put `entry` into the cache if there is one.

        What happened has to stand in the exchange by now: status, outcome, what was seen of the answer. Returns when
        the stores have acknowledged, at the latest after their time-out; the first call counts, others wait for it.
        """
        if self._done is None:
            self._done = self._begin_settlement(entry)
        await asyncio.shield(self._done)

    # Reservation

    async def _try(self) -> None:
        """Reserve and look up; an answer from the cache need not wait for room that only a miss takes.

        Raises LimitExceeded or StoreUnavailable.
        """
        self.cache.send()
        await self._reserve(self._hits())
        await self.cache.read()
        if self._verdict is Verdict.WAITING:
            self.cache.drop_lease()
            if self.cache.is_found:
                await self._reserve(Hits.ONLY)

    async def _wait(self) -> None:
        """Try again and again until there is room, or no use in waiting any longer."""
        metrics, bound = self._admissions.metrics, self._places[0].room.bound
        waiting = metrics.limit_waiting.labels(bound.policy, bound.name)
        waiting.inc()
        keys = [count.key for count in self.counts if count.bound.named.waits]
        try:
            with self._admissions.sleepers.place(self._exchange.request_id, keys) as sleeper:
                while self._verdict is Verdict.WAITING:
                    await sleeper.sleep(pause_milliseconds(self._places, self._waited()) / _MILLISECONDS)
                    await self._try()
        finally:
            waiting.dec()
            self._exchange.waited_seconds = self._waited() / _MILLISECONDS
            metrics.limit_wait_seconds.labels(bound.policy, bound.name).observe(self._exchange.waited_seconds)

    async def _wait_for_others(self) -> None:
        """Wait for what another process fetches; a stream shows meanwhile that it is alive."""

        async def comment() -> None:
            if self._comment is not None:
                await self._comment(self.limit_headers())

        async with repeated(comment, self._admissions.comment_seconds):
            await self.cache.wait_for_others(self._admissions.join_wait_seconds)

    def _waited(self) -> int:
        """Return for how long the request has been waiting, in milliseconds."""
        if self._waiting_since is None:
            return 0
        return int((time.monotonic() - self._waiting_since) * _MILLISECONDS)

    async def _reserve(self, hits: Hits) -> None:
        """Ask the store for room; where it is away, this process. Raises LimitExceeded or StoreUnavailable."""
        admissions = self._admissions
        now = admissions.now()
        self.is_local = False
        for _ in range(_MAX_TRIES):
            self.counts = admissions.reservations.counts(self._decision.limits, now)
            asked_at = time.monotonic()
            reply = self._send_admit(now, hits)
            self._is_sent = not reply.done()  # else it has failed at once and never leaves
            try:
                reserved = read_admit(await reply)
            except StoreUnavailable as error:
                self._reserve_locally(error, hits, admissions.now())
                return
            if reserved.verdict not in _TRY_AGAIN:
                if reserved.verdict is not Verdict.ENDED:  # which tells none
                    admissions.cache.state.note(reserved.epoch, asked_at)
                self._accept(reserved)
                return
            now = reserved.now
        raise StoreUnavailable("The store's clock does not stand still enough to admit anything by it.")

    def _send_admit(self, now: int, hits: Hits) -> asyncio.Future[Reply]:
        return self._admissions.reservations.send_admit(
            self._exchange.request_id,
            self.counts,
            hits=hits,
            deadline=now + round(self._admissions.state.timeout_seconds * _MILLISECONDS),
            record=self._record_of_orphan(),
            came_microseconds=self._came_microseconds,
            waited_milliseconds=self._waited(),
        )

    def _record_of_orphan(self) -> bytes:
        """Return what is booked should this process die; whoever waits sends it often."""
        if self._orphan_record is None:
            self._orphan_record = orphan_record(self._exchange)
        return self._orphan_record

    def _hits(self) -> Hits:
        plan = self._decision.cache
        if plan.only_if_cached:
            return Hits.ONLY
        return Hits.MAYBE if isinstance(plan, Keyed) and plan.look_up else Hits.NO

    def _accept(self, reserved: Reserved) -> None:
        if reserved.verdict is Verdict.ENDED:
            raise StoreUnavailable("A request of this id has ended before.")
        self._verdict = reserved.verdict
        self._is_in_line = reserved.verdict is Verdict.WAITING
        self._see(reserved.levels, {each.position: each.ahead for each in reserved.in_the_way})
        self._admissions.metrics.see_rooms(self._rooms)
        if not self._admissions.is_behind:
            self._admissions.local.see(self.counts, reserved.levels)
        if reserved.verdict is Verdict.REFUSED:
            self._is_sent = False
            self._refuse(self._rooms[each.position] for each in reserved.in_the_way)
        if reserved.verdict is Verdict.WAITING:
            self._came_microseconds = reserved.came_microseconds
            self._line_up([Place(self._rooms[each.position], each.waiters_before) for each in reserved.in_the_way])
        self._observed = tuple((self.counts[position].bound, left) for position, left in reserved.observed)

    def _see(self, levels: Sequence[Level], ahead: Mapping[int, int] = _NOBODY_AHEAD) -> None:
        self._rooms = tuple(
            Room(count.bound, level, count.bound.tank, count.span, ahead.get(position, 0))
            for position, (count, level) in enumerate(zip(self.counts, levels, strict=True))
        )

    def _line_up(self, places: Sequence[Place]) -> None:
        self._verdict, self._places = Verdict.WAITING, tuple(places)
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()

    def _reserve_locally(self, error: StoreUnavailable, hits: Hits, now: int) -> None:
        """Do what each limit says for a store that is away (SPEC §10)."""
        for count in self.counts:
            if count.bound.named.on_store_failure == "deny":
                raise _denied(count.bound) from error
        self._local_counts = tuple(each for each in self.counts if each.bound.named.on_store_failure == "local")
        local = self._admissions.local
        before = self._local_rooms(now)
        in_the_way = [room for room in before if room.refuses and not (hits is Hits.ONLY and room.bound.is_for_misses)]
        if in_the_way and all(may_wait(room, self._waited()) for room in in_the_way):
            self._line_up(list(map(Place, in_the_way)))
            return
        self.is_local = True
        self._verdict = local.admit(self._local_counts, hits=hits, now=now)
        self._rooms = self._local_rooms(now)
        if self._verdict is Verdict.REFUSED:
            self._refuse(in_the_way)
        self._observed = tuple((room.bound, room.left) for room in before if room.bound.is_observed and not room.fits)

    def _local_rooms(self, now: int) -> tuple[Room, ...]:
        local = self._admissions.local
        return tuple(
            Room(each.bound, local.level(each, now), local.tank(each.bound), each.span) for each in self._local_counts
        )

    def _refuse(self, blocking: Iterable[Room]) -> None:
        refusal = refuse(tuple(blocking))
        bound = refusal.room.bound
        self._admissions.metrics.limit_refusals_total.labels(bound.policy, bound.name).inc()
        raise LimitExceeded(
            refusal.message,
            code=refusal.code,
            retry_after_seconds=refusal.retry_after_seconds,
            headers=limit_headers(self._rooms, retry_after_seconds=refusal.retry_after_seconds),
        )

    def _note_observed(self) -> None:
        """Tell what limits that are observed would have refused: of a hit only those that hits need room in."""
        is_hit = self.cache.is_found or self._decision.cache.only_if_cached
        refusing = [each for each in self._observed if each[0].is_taken_by_hits or not is_hit]
        self._exchange.observed_refusals = tuple(would_refuse(bound, left) for bound, left in refusing)
        for bound, _ in refusing:
            self._admissions.metrics.observed_refusals_total.labels(bound.policy, bound.name).inc()

    async def _check_hit(self) -> None:
        """Refuse who was admitted for a hit only and found none (SPEC §5); only-if-cached is answered elsewhere.

        What the look-up took is given back first, so that the refusal tells what is left without it.
        """
        if self._verdict is Verdict.HIT and not self.cache.is_found and not self._decision.cache.only_if_cached:
            blocking = [room for room in self._rooms if room.bound.is_for_misses and room.refuses]
            await asyncio.shield(self._release())
            self._is_sent, self._verdict = False, Verdict.REFUSED
            self._refuse(blocking)

    def _forget_cache(self) -> None:
        """Take back what the cache has found, and the lease of a fetch that will not be."""
        self.cache.drop_lease()
        self.cache.forget()

    # Settlement

    def narrow(self, decision: Decision) -> None:
        """Go on with a part of the request only: what is charged is charged for that."""
        self._decision = decision

    def count_as_hit(self, usage: Usage | None) -> None:
        """Settle as an answer from the cache, which took this much when it was fetched, if that is known."""
        self._hit = _Hit(usage)

    async def give_up_joining(self) -> None:
        """Go on without the flight that was found, but with another one where there is one by now.

        Raises LimitExceeded for who was admitted for a hit only.
        """
        if self.cache.is_array:  # what was fetched is kept by items, which serve arrays in either form
            await self.cache.look_again()
        else:
            self.cache.join_another()
        await self._check_hit()
        if self.cache.answer is not None:
            self.count_as_hit(self.cache.answer.usage)

    def _release(self) -> asyncio.Future[None]:
        """Give everything back, a place in line too; the store is not asked if it never heard of the request."""
        if self.is_local:
            self._end_locally(None)
        if self._is_sent or self._is_in_line:
            shares = tuple(share(count, 0) for count in self.counts)
            released = Settlement(
                self._exchange.request_id, Ending.RELEASE, "", shares, self._admissions.now(), lines=self._lines
            )
            return self._admissions.end(released, self._see)
        done = self._admissions.promise()
        _fulfil(done)
        return done

    @property
    def _lines(self) -> tuple[tuple[str, str], ...]:
        """The lines in which the request may stand still, by what the store has said, or may not have said yet."""
        return self._admissions.reservations.lines(self.counts) if self._is_in_line or self._is_sent else ()

    def _begin_settlement(self, entry: StoredAnswer | None) -> asyncio.Future[Any]:
        """Send everything in one tick: what was taken, the usage record, the answer to keep."""
        admissions, exchange = self._admissions, self._exchange
        admissions.live.pop(exchange.request_id, None)
        admissions.metrics.reservations_outstanding.dec()
        exchange.charged = self._charge()
        exchange.ended = time.monotonic()
        if self.is_local:
            self._end_locally(exchange.charged)
        stored = None
        if answers := self.cache.to_keep(entry, exchange.charged):
            stored = admissions.store(answers, exchange)
        self.cache.end_fetch()
        shares = tuple(map(share, self.counts, self._amounts(self.counts, exchange.charged)))
        record = usage_record(exchange, exchange.charged).decode()
        lines = self._lines if self.is_local else ()
        settlement = Settlement(exchange.request_id, Ending.SETTLE, record, shares, admissions.now(), lines=lines)
        settled = admissions.end(settlement, None if self.is_local else self._see)
        return settled if stored is None else asyncio.gather(settled, stored)

    def _end_locally(self, charged: Charged | None) -> None:
        """Do in this process what a settlement does, or with no charge a release."""
        if self._verdict is not Verdict.REFUSED:
            counts, now = self._local_counts, self._admissions.now()
            amounts = [0] * len(counts) if charged is None else self._amounts(counts, charged)
            self._admissions.local.end(counts, self._verdict, amounts, now)

    def _charge(self) -> Charged:
        if self._hit is not None:
            return NOTHING
        decision = self._decision
        charged = charge(decision.effective, decision.model, decision.worst_case, _seen(self._exchange, decision))
        if exceeds(charged, decision.worst_case):
            self._admissions.metrics.underestimates_total.inc()
        return charged

    def _amounts(self, counts: Sequence[Count], charged: Charged) -> list[int]:
        """Return what the request takes from each of some counts."""
        if self._hit is None:
            return [taken(count.bound, charged) for count in counts]
        full = charge_of_hit(self._decision.model, self._decision.worst_case, self._hit.usage)
        return [taken_by_hit(count.bound, full) for count in counts]


class _Hit(NamedTuple):
    """An answer from the cache, and what it took when it was fetched, if that is known."""

    usage: Usage | None


_TRY_AGAIN: Final = (Verdict.LATE, Verdict.MOVED)


def _seen(exchange: Exchange, decision: Decision) -> Seen:
    """Gather what the exchange tells of its answer."""
    answer, status = exchange.answer, exchange.upstream_status
    is_served = exchange.is_sent_upstream if status is None else status < _FIRST_ERROR_STATUS
    is_counted = bool(answer.finish_reasons or answer.content_events or answer.content_bytes)
    is_whole = exchange.outcome is Outcome.COMPLETED
    return Seen(
        usage=answer.usage,
        content_events=answer.content_events,
        content_bytes=answer.content_bytes,
        is_served=is_served,
        is_ended=answer.is_complete or exchange.outcome in (Outcome.COMPLETED, Outcome.INCOMPLETE),
        is_abandoned=exchange.outcome is Outcome.CLIENT_LEFT,
        is_readable=answer.is_complete or is_counted or decision.effective.view.is_stream,
        choices=len(answer.finish_reasons) if is_whole else 0,
        choices_with_text=answer.choices_with_text,
        texts=() if answer.texts is None else answer.texts.joined(),
        other_bytes=0 if answer.texts is None else answer.texts.left_out_bytes,
    )


def _denied(bound: BoundLimit) -> StoreUnavailable:
    """Make the error for the client: what the store says of itself is for the log."""
    return StoreUnavailable(
        f"Limit {bound.name!r} of policy {bound.policy!r} cannot be counted: the store that counts limits does not "
        "answer, and its on_store_failure says deny.",
        retry_after_seconds=_RETRY_AFTER_SECONDS,
    )


def _fulfil(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
