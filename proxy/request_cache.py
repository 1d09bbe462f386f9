"""What the cache does for one request: finds its answer or its items' answers, joins a fetch, keeps what was fetched.

Writes into the exchange what the cache's verdict is and what was saved. Knows neither limits nor how a stored answer is
sent; how answers are found and kept is in `answer_cache`.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from policies.arrays import as_whole, items, subset
from policies.cacheability import Keyed
from policies.charges import worst_case
from policies.freshness import Fit
from policies.tokens import estimate_input_tokens
from policies.usage import Provider, Saved, Usage, read_usage
from proxy.answer_cache import in_form
from proxy.exchange import CacheResult, Observed
from proxy.store.cache_state import Origin
from proxy.wire.assembly import assemble, share_out, split_answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policies.charges import Charged
    from policies.decision import Decision
    from proxy.answer_cache import AnswerCache, Found, LookUp
    from proxy.exchange import Exchange
    from proxy.flights import Flight, Flights
    from proxy.store.entries import StoredAnswer

_FIRST_PAUSE_SECONDS: Final = 0.02
_LONGEST_PAUSE_SECONDS: Final = 0.2
_LENGTHENING: Final = 1.5


class RequestCache:
    """The cache as one request meets it.

    `answer` is the stored answer to serve, in the form that was asked for; `flight` a fetch to join. `missing` are the
    positions of an array's items that have to be fetched, each item once, where that is not the whole request.
    """

    def __init__(self, cache: AnswerCache, flights: Flights, decision: Decision, exchange: Exchange) -> None:
        """Ask nothing yet."""
        self.answer: StoredAnswer | None = None
        self.flight: Flight | None = None
        self.missing: tuple[int, ...] = ()
        self.is_elsewhere = False
        self._cache = cache
        self._flights = flights
        self._decision = decision
        self._exchange = exchange
        self._look_ups: tuple[LookUp, ...] = ()
        self._known: dict[str, StoredAnswer] = {}
        self._generation: int | None = None
        self._may_have_lease = False

    @property
    def is_found(self) -> bool:
        """Whether the request needs no fetch of its own."""
        return self.answer is not None or self.flight is not None

    @property
    def may_lead(self) -> bool:
        """Whether others may join the request's own fetch."""
        plan = self._decision.cache
        return isinstance(plan, Keyed) and plan.look_up and plan.store and not self._known and not self._flights.is_full

    @property
    def is_array(self) -> bool:
        """Whether the request is answered item by item."""
        plan = self._decision.cache
        return isinstance(plan, Keyed) and bool(plan.items)

    @property
    def is_by_item(self) -> bool:
        """Whether what is fetched has to come whole, as items of an array do; a stream of them all passes live."""
        return self.is_array and (bool(self.missing) or not self._is_stream)

    # look-up

    def send(self) -> None:
        """Let the look-up leave, if there is one."""
        plan, exchange = self._decision.cache, self._exchange
        if not isinstance(plan, Keyed):
            exchange.cache_reason = plan.reason
        elif not plan.look_up:
            exchange.cache_reason = "no-cache"
        elif plan.items:
            self._look_ups = tuple(self._cache.look_up(key) for key in dict.fromkeys(plan.items))
        else:
            self._may_have_lease = plan.store and not plan.only_if_cached
            owner = exchange.request_id if self._may_have_lease else None
            self._look_ups = (self._cache.look_up(plan.key, owner),)

    async def read(self) -> None:
        """Take what fits; a cache that fails is a miss (SPEC §6). What a request found before counts no longer."""
        plan, exchange, state = self._decision.cache, self._exchange, self._cache.state
        found: list[Found] = []
        if isinstance(plan, Keyed):
            endpoint, is_stream = self._decision.effective.endpoint, self._is_stream and not plan.items
            found = [await each.read(plan, endpoint, is_stream=is_stream) for each in self._look_ups]
        self._generation = state.epoch if state.is_current else None
        if not isinstance(plan, Keyed) or not found:
            return
        self.forget()
        exchange.cache_reason = None
        if plan.items:
            self._take_items(plan, dict(zip(dict.fromkeys(plan.items), found, strict=True)))
        else:
            self._take(plan, found[0])

    def _take(self, plan: Keyed, found: Found) -> None:
        self._note(found)
        self._may_have_lease, self.is_elsewhere = found.has_lease, found.is_elsewhere
        if found.has_lease:
            self._cache.take_lease(plan.key, self._exchange.request_id)
        if found.answer is not None:
            self._serve(found.answer, (found.answer,))
        elif not plan.only_if_cached and plan.store and self._flights.find(plan.key) is not None:
            self.flight, self.is_elsewhere = self._joinable(plan), False  # what cannot be joined is not waited for
            if self.flight is not None:
                self.drop_lease()

    def _joinable(self, plan: Keyed) -> Flight | None:
        """Return the flight that the request may join; none where it is not known what was purged."""
        if not (plan.look_up and plan.store) or plan.only_if_cached or self._generation is None:
            return None
        flight = self._flights.find(plan.key)
        is_ours = flight is not None and flight.is_joinable and not self._cache.state.is_purged(flight.origin)
        return flight if is_ours else None

    def find_flight(self) -> Flight | None:
        """Return the flight to join: one that was found, or that others have begun by now."""
        plan = self._decision.cache
        if self.flight is None and isinstance(plan, Keyed) and not self._known:
            self.flight = self._joinable(plan)
            if self.flight is not None:
                self.drop_lease()
        return self.flight

    async def look_again(self) -> None:
        """Look up anew, as things stand."""
        self.send()
        await self.read()

    def join_another(self) -> None:
        """Go on without the flight that was found, but with another one where there is one by now."""
        plan = self._decision.cache
        self.forget()
        self.flight = self._joinable(plan) if isinstance(plan, Keyed) else None

    def _take_items(self, plan: Keyed, found: Mapping[str, Found]) -> None:
        self._note(*found.values())
        self._known = {key: each.answer for key, each in found.items() if each.answer is not None}
        if len(self._known) == len(found):
            self._serve_items(plan)
        elif plan.only_if_cached:
            self._known = {}  # a part of what was asked for is nothing
        elif (flight := self._joinable(plan)) is not None:
            self.flight = flight
        else:
            self._note_known(plan)

    def _serve_items(self, plan: Keyed) -> None:
        endpoint, in_order = self._decision.effective.endpoint, [self._known[key] for key in plan.items]
        oldest = min(in_order, key=lambda answer: answer.created_milliseconds)
        body = assemble(endpoint, [answer.body for answer in in_order])
        if body is not None:
            answer = in_form(replace(oldest, body=body, usage=_usage_of(body)), endpoint, is_stream=self._is_stream)
            if answer is not None:
                self._serve(answer, [self._known[key] for key in dict.fromkeys(plan.items)])
                return
        self._known = {}  # what cannot be put together is fetched as if nothing were known

    def _note_known(self, plan: Keyed) -> None:
        firsts = {key: position for position, key in reversed(list(enumerate(plan.items))) if key not in self._known}
        self.missing = tuple(sorted(firsts.values())) if len(firsts) < len(plan.items) else ()
        if self._known:
            exchange, known = self._exchange, [self._known[key] for key in plan.items if key in self._known]
            exchange.cache, exchange.cache_reason = CacheResult.PARTIAL, None
            exchange.items_known = len(known), len(plan.items)

    @property
    def _is_stream(self) -> bool:
        return self._decision.effective.view.is_stream

    def _note(self, *found: Found) -> None:
        """Write the verdict so far: nothing was found that could be served, and why."""
        exchange = self._exchange
        exchange.cache = CacheResult.MISS
        if any(each.has_failed for each in found):
            exchange.cache_reason = "unavailable"
        for each in found:
            if each.fit in (Fit.STALE, Fit.RETIRED):
                exchange.cache = CacheResult.STALE
            if each.fit not in (None, Fit.GOOD, Fit.STALE):
                exchange.cache_reason = each.fit.value

    def _serve(self, answer: StoredAnswer, parts: Sequence[StoredAnswer]) -> None:
        exchange = self._exchange
        self.answer = answer
        exchange.cache, exchange.cache_reason = CacheResult.HIT, None
        exchange.saved = tuple(Saved(part.usage, part.provider) for part in parts)
        exchange.answer = Observed(
            usage=answer.usage, model=answer.model, fingerprint=answer.fingerprint, is_complete=True
        )

    async def wait_for_others(self, seconds: float) -> None:
        """Wait for what another process fetches, until it is there, or given up, or it takes too long.

        Of all who wait here for the same only one asks the store. What it finds, or fetches, the others get.
        """
        plan, until = self._decision.cache, time.monotonic() + seconds
        while self.is_elsewhere and isinstance(plan, Keyed) and (left := until - time.monotonic()) > 0:
            if (lookout := self._flights.find_lookout(plan.key)) is not None:
                await asyncio.wait([lookout], timeout=left)
                self.join_another()
                if self.flight is None:
                    await self.look_again()
            else:
                with self._flights.looking_out(plan.key):
                    await self._look_out(until)
        self.is_elsewhere = False

    async def _look_out(self, until: float) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while self.is_elsewhere and (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(pause, left))
            pause = min(pause * _LENGTHENING, _LONGEST_PAUSE_SECONDS)
            await self.look_again()

    def forget(self) -> None:
        """Take back what was found: whoever waited for room and got none is not served with it."""
        if self.is_found:
            self._exchange.answer = Observed()
        if self._exchange.cache in (CacheResult.HIT, CacheResult.PARTIAL):
            self._exchange.cache = CacheResult.MISS
        self.answer, self.flight, self.missing, self.is_elsewhere = None, None, (), False
        self._known = {}
        self._exchange.saved, self._exchange.items_known = (), None

    # the request's own fetch

    def begin_flight(self) -> Flight | None:
        """Begin a fetch that others may join; None where nobody may."""
        plan = self._decision.cache
        if not isinstance(plan, Keyed) or not self.may_lead or self._generation is None:
            return None
        return self._flights.begin(
            plan.key,
            self._exchange,
            self._origin(plan.key),
            provider=self._provider,
            is_stream=self._is_stream,
            is_finished_alone=self._decision.policy.cache.finish_abandoned,
        )

    def drop_lease(self) -> None:
        """Give the lease of the fetch back, if the request has it, or may get it by a look-up that was not read."""
        plan = self._decision.cache
        if self._may_have_lease and isinstance(plan, Keyed):
            self._cache.give_up(plan.key, self._exchange.request_id)
        self._may_have_lease = False

    def end_fetch(self) -> None:
        """Tell what the answer says of its model, and let others fetch the same, or find what was kept."""
        exchange = self._exchange
        fingerprint = exchange.answer.fingerprint
        if fingerprint is not None and exchange.upstream is not None:
            self._cache.state.see(self._deployment, self._decision.model.name, fingerprint)
        self.drop_lease()

    def to_keep(self, entry: StoredAnswer | None, charged: Charged) -> dict[str, StoredAnswer]:
        """Return what is to be kept of a fetched answer, by its key; of an array each item by itself.

        Nothing is kept where it is not known what was purged when the fetch began, nor what was purged since: it might
        take the place of what was fetched after the purge.
        """
        plan = self._decision.cache
        if entry is None or self._generation is None or not isinstance(plan, Keyed) or not plan.store:
            return {}
        if self._cache.state.is_purged(self._origin(plan.key)):
            return {}
        exchange = self._exchange
        answer = replace(
            _as_charged(entry, charged),
            ttl_seconds=plan.ttl_seconds,
            generation=self._generation,
            deployment=self._deployment,
            asked_model=self._decision.model.name,
            provider=self._provider,
            request_id=exchange.request_id,
        )
        return self._split(plan, answer) if plan.items else {plan.key: answer}

    def narrowed(self) -> Decision:
        """Return the decision on what has to be fetched of the request."""
        decision = self._decision
        if not self.missing:
            return decision
        effective = as_whole(subset(decision.effective, self.missing))
        return replace(decision, effective=effective, worst_case=worst_case(effective, decision.model))

    def completed(self, body: bytes) -> bytes | None:
        """Put a fetched answer together with what was known; None if it does not hold what was asked for."""
        plan, decision = self._decision.cache, self._decision
        if not self.missing or not isinstance(plan, Keyed):
            return body
        parts = self._parts(body)
        if parts is None:
            return None
        bodies = {key: answer.body for key, answer in self._known.items()}
        bodies.update(zip((plan.items[position] for position in self.missing), parts, strict=True))
        whole = assemble(decision.effective.endpoint, [bodies[key] for key in plan.items])
        if whole is not None:
            self._exchange.saved = tuple(Saved(answer.usage, answer.provider) for answer in self._known.values())
        return whole

    def _split(self, plan: Keyed, answer: StoredAnswer) -> dict[str, StoredAnswer]:
        """Take an answer to an array apart."""
        whole = in_form(answer, self._decision.effective.endpoint, is_stream=False)
        parts = None if whole is None else self._parts(whole.body)
        if whole is None or parts is None:
            return {}
        keys = [plan.items[position] for position in self.missing] if self.missing else plan.items
        return {
            key: replace(whole, body=part, usage=usage)
            for key, part, usage in zip(keys, parts, _usages_of(parts, answer.usage), strict=True)
            if len(part) <= self._flights.max_flight_bytes
        }

    def _parts(self, body: bytes) -> tuple[bytes, ...] | None:
        """Take an answer to what was fetched apart."""
        effective, model = self._decision.effective, self._decision.model
        each = items(effective) or ()
        fetched = [each[position] for position in self.missing] if self.missing else each
        weights = [estimate_input_tokens(item, model) for item in fetched]
        return split_answer(effective.endpoint, body, weights, effective.view.choices // len(each))

    @property
    def _deployment(self) -> str:
        return f"{self._exchange.upstream}/{self._exchange.deployment}"

    def _origin(self, key: str) -> Origin:
        provider = self._provider
        return Origin(
            generation=self._generation or 0,
            model=self._decision.model.name,
            project=provider.project,
            key=provider.key,
            cache_key=key,
            deployment="",  # not chosen yet
        )

    @property
    def _provider(self) -> Provider:
        return Provider.of(self._decision.principal)


def _usage_of(body: bytes) -> Usage | None:
    return read_usage(_USAGE.decode(body).usage)


def _usages_of(parts: Sequence[bytes], charged: Usage | None) -> Sequence[Usage | None]:
    """Share out what was charged for an answer to several items, in proportion to their shares of its report."""
    told = [_usage_of(part) for part in parts]
    known = [_counts(usage) for usage in told if usage is not None]
    if charged is None or len(known) < len(told):
        return told
    columns = list(zip(*known, strict=True))
    if tuple(map(sum, columns)) == _counts(charged):
        return told
    shares = [share_out(total, column) for total, column in zip(_counts(charged), columns, strict=True)]
    return [Usage(*each) for each in zip(*shares, strict=True)]


def _counts(usage: Usage | Charged) -> tuple[int, int, int, int]:
    return usage.input_tokens, usage.output_tokens, usage.cached_input_tokens, usage.reasoning_tokens


class _WithUsage(msgspec.Struct):
    usage: Any = None  # a JSON value


_USAGE: Final = msgspec.json.Decoder(_WithUsage)


def _as_charged(entry: StoredAnswer, charged: Charged) -> StoredAnswer:
    """Return an answer to be stored with the tokens that it was charged, where its upstream reported fewer."""
    if charged.known != "counted" or entry.usage is None:
        return entry
    return replace(entry, usage=Usage(*_counts(charged)))
