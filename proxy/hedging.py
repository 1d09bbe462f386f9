"""Hedging: where no answer begins for a while, a second deployment is asked the same; the first to answer serves.

    client's attempt  ────────────────────────────►  answers first: the hedge is cancelled, and has lost
          │ hedge_after                              fails: the hedge is waited for
          └────── hedge, the organization's ──────►  answers first: it has won, and the client's attempt is cancelled

Only a request's first attempt is hedged, and once: a request that was refused is tried again by itself, and one that
stands in line before its upstream would only lengthen the others'. Whoever wins, the client's exchange tells of the
answer that it gets, and the organization's of the attempt that was given up, as of one whose client has left (SPEC §5,
§7). A hedge counts as one of the request's attempts, and its deployment as tried. Knows neither which requests may be
hedged nor how one is sent.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from policies.own_requests import HEDGE, hedge_after_seconds
from policies.routing import fits
from proxy.errors import GatewayError, UpstreamTooSlow
from proxy.exchange import Outcome
from proxy.own_requests import DROPPED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from policies.catalog import Deployment
    from policies.decision import Decision
    from proxy.errors import UpstreamError
    from proxy.exchange import Exchange, Request
    from proxy.metrics import Metrics
    from proxy.own_requests import OwnRequests
    from proxy.upstreams.client import UpstreamAnswer
    from proxy.upstreams.dispatch import Sending

_MOST_AT_ONCE: Final = 64
"""Hedges of one worker; what comes beyond is dropped."""
_ERRORS: Final = 400
_FACTS_OF_ATTEMPTS: Final = (
    "attempts",
    "attempts_of_unknown_cost",
    "upstream",
    "deployment",
    "upstream_status",
    "upstream_request_id",
    "is_sent_upstream",
)


class Hedging:
    """The hedges of one configuration."""

    def __init__(self, own: OwnRequests, metrics: Metrics) -> None:
        """Send nothing yet."""
        self.own = own
        self.metrics = metrics

    def begin(self, decision: Decision, exchange: Exchange, request: Request) -> Sending | Hedged:
        """Return a client's request on its way upstream, as a dispatcher does; hedged, if its model wants that."""
        sending = self.own.dispatcher.begin(decision, exchange, request)
        after_seconds = hedge_after_seconds(decision)
        if after_seconds is None:
            return sending
        return Hedged(self, sending, _Asked(decision, exchange, request), after_seconds)


class _Asked(NamedTuple):
    """What a client has asked."""

    decision: Decision
    exchange: Exchange
    request: Request


class Hedged:
    """A request on its way upstream that may be hedged; used as a `Sending`."""

    def __init__(self, hedging: Hedging, sending: Sending, asked: _Asked, after_seconds: float) -> None:
        """Begin nothing yet."""
        self._hedging = hedging
        self._asked = asked
        self._after_seconds = after_seconds
        self._hedge: _Hedge | None = None
        self._has_failed = False
        self._is_first = True
        self._sending = sending
        self._serving = sending
        sending.before_going_on = self._note_failure

    async def __aenter__(self) -> Self:
        """Begin nothing yet."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what was kept back."""
        await self._sending.__aexit__(kind, error, trace)

    async def answer(self) -> UpstreamAnswer:
        """Return the next answer to be passed on, as `Sending.answer` does and raises."""
        if not self._is_first:
            return await self._serving.answer()
        self._is_first = False
        ours = asyncio.create_task(self._sending.answer(), name="attempt that may be hedged")
        try:
            return await self._first_usable(ours)
        except BaseException:
            if self._hedge is not None:
                self._hedge.give_up()
            await self._give_up(ours)
            raise
        finally:
            self._sending.before_going_on = None

    def goes_on_after(self, error: UpstreamError) -> bool:
        """Tell whether another deployment may be asked, as `Sending.goes_on_after`; after a hedge's answer, too."""
        goes_on = self._serving.goes_on_after(error)
        if self._serving is self._sending or isinstance(error, UpstreamTooSlow):
            return goes_on
        self._serving = self._sending
        return self._sending.goes_on()

    async def _first_usable(self, ours: asyncio.Task[UpstreamAnswer]) -> UpstreamAnswer:
        """Return what is to be passed on: the first usable answer, or else what comes of the client's own attempts."""
        await asyncio.wait([ours], timeout=self._after_seconds)
        hedge = self._hedge = None if ours.done() or self._has_failed else self._begin_hedge()
        if hedge is None:
            return await ours
        under_way: set[asyncio.Future[Any]] = {ours, hedge.answered}
        while under_way and not _is_usable(ours) and hedge.answer is None:
            _, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        if _is_usable(ours) or hedge.answer is None:
            hedge.give_up()
            if not self._has_failed:
                self._count(hedge)
            return await ours
        await self._give_up(ours)
        self._serve_hedge(hedge)
        return hedge.answer

    async def _give_up(self, ours: asyncio.Task[UpstreamAnswer]) -> None:
        """End the client's own attempt; an answer that came nevertheless is closed."""
        ours.cancel()
        ours.add_done_callback(_close_answer)
        await asyncio.wait([ours])
        if _is_usable(ours) and self._sending.current is not None:
            self._sending.note_unknown_cost(self._sending.current.upstream)

    def _begin_hedge(self) -> _Hedge | None:
        """Ask a second deployment, if the first has been asked and there is another one that can take it at once."""
        decision, served, request = self._asked
        others = self._available_others()
        if not others:
            return None
        own = self._hedging.own
        hedge = _Hedge(self._hedging, *own.prepare(HEDGE, decision, served, others), request)
        hedge.task = own.under_way.begin(HEDGE, hedge.run, most=_MOST_AT_ONCE)
        if hedge.task is None:
            hedge.count("dropped")
            return None
        return hedge

    def _available_others(self) -> Sequence[Deployment]:
        """Return the other deployments that the request fits, that nothing speaks against, and that have room."""
        current, decision = self._sending.current, self._asked.decision
        upstreams, now = self._hedging.own.dispatcher.upstreams, time.monotonic()
        others = [] if current is None else [each for each in decision.candidates if each != current]
        standings = [upstreams.standing(decision.model, each, now) for each in others]
        return [
            each
            for each, its in zip(others, standings, strict=True)
            if its.is_available and its.has_room and fits(each, decision.model, decision.worst_case)
        ]

    async def _note_failure(self) -> None:
        """Have the client's attempt, which has failed, wait for what comes of the hedge; it may end here."""
        self._has_failed = True
        if self._hedge is None:
            return
        await asyncio.wait([self._hedge.answered])
        if self._hedge.answer is not None:
            await asyncio.get_running_loop().create_future()  # the hedge serves: this is about to be cancelled
        self._sending.before_going_on = None
        self._count(self._hedge)

    def _count(self, hedge: _Hedge) -> None:
        """Count a hedge that was sent as an attempt; one that was given up says nothing against its deployment."""
        if hedge.current is not None:
            self._sending.count_elsewhere(hedge.current if hedge.answered.done() else None)

    def _serve_hedge(self, hedge: _Hedge) -> None:
        """Go on with the hedge: what was the client's attempt is the organization's from now on, and the reverse."""
        assert hedge.sending is not None  # noqa: S101  it has answered
        if not self._has_failed:
            self._sending.count_elsewhere(self._sending.current)
        self._sending.count_elsewhere(hedge.current)
        client, own = self._asked.exchange, hedge.exchange
        for name in _FACTS_OF_ATTEMPTS:
            theirs = getattr(own, name)
            setattr(own, name, getattr(client, name))
            setattr(client, name, theirs)
        hedge.sending.exchange = client
        own.status = own.upstream_status or 0
        own.outcome = Outcome.UPSTREAM_ERROR if self._has_failed or own.status >= _ERRORS else Outcome.CLIENT_LEFT
        self._serving = hedge.sending
        hedge.hand_over()


class _Hedge:
    """The second attempt at one request, under an exchange of its own until it serves the client.

    `answered` is done once it is known what comes of it: a usable answer, or None.
    """

    def __init__(self, hedging: Hedging, decision: Decision, exchange: Exchange, request: Request) -> None:
        """Begin nothing yet."""
        loop = asyncio.get_running_loop()
        self.exchange = exchange
        self.sending: Sending | None = None
        self.answered: asyncio.Future[UpstreamAnswer | None] = loop.create_future()
        self.task: asyncio.Task[None] | None = None
        self._hedging = hedging
        self._decision = decision
        self._request = request
        self._is_handed_over: asyncio.Future[None] = loop.create_future()

    @property
    def current(self) -> Deployment | None:
        """The deployment that was asked, once one was."""
        return None if self.sending is None else self.sending.current

    @property
    def answer(self) -> UpstreamAnswer | None:
        """The usable answer, if one has come."""
        return self.answered.result() if self.answered.done() else None

    def give_up(self) -> None:
        """End it, unless its answer was handed over."""
        if self.task is not None and not self._is_handed_over.done():
            self.task.cancel()

    def hand_over(self) -> None:
        """Leave the answer to the client, and book what was given up for it."""
        self._is_handed_over.set_result(None)

    async def run(self) -> None:
        """Send it, and settle it when it is over."""
        result = "lost"
        try:
            async with self._hedging.own.admitted(self._decision, self.exchange):
                if await self._send():
                    result = "won"
        except DROPPED:
            result = "dropped"
        except GatewayError:
            pass  # it is counted, and the log tells of the upstream
        finally:
            self._tell(None)
            self.count(result)

    def count(self, result: str) -> None:
        """Count how it ended."""
        self._hedging.metrics.hedges_total.labels(self._decision.model.name, result).inc()

    async def _send(self) -> bool:
        """Make the attempt, and tell whether the client got its answer."""
        exchange = self.exchange
        self.sending = self._hedging.own.dispatcher.begin(self._decision, exchange, self._request)
        try:
            async with self.sending:
                answer = await self.sending.answer()
            if answer.status < _ERRORS:
                self._tell(answer)
                await self._wait_to_be_handed_over(answer, self.sending)
                return True
            answer.close()
            exchange.status, exchange.outcome = answer.status, Outcome.UPSTREAM_ERROR
            exchange.error_code = "upstream_status"
            return False
        finally:
            self._tell(None)

    async def _wait_to_be_handed_over(self, answer: UpstreamAnswer, sending: Sending) -> None:
        try:
            await self._is_handed_over
        except asyncio.CancelledError:
            answer.close()
            if sending.current is not None:
                sending.note_unknown_cost(sending.current.upstream)
            raise

    def _tell(self, answer: UpstreamAnswer | None) -> None:
        if not self.answered.done():
            self.answered.set_result(answer)


def _is_usable(attempt: asyncio.Task[UpstreamAnswer]) -> bool:
    """Tell whether an attempt has an answer that is better than any that may come."""
    has_answer = attempt.done() and not attempt.cancelled() and attempt.exception() is None
    return has_answer and attempt.result().status < _ERRORS


def _close_answer(attempt: asyncio.Task[UpstreamAnswer]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()
