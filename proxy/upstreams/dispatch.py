"""Many attempts: from a decision to an upstream's answer that is worth passing on, and the next one should that fail.

Sends to a decision's deployments in the order that `policies.routing` arranges, obeys `policies.retries` on what
follows a failure, and turns answers that nobody should see into `UpstreamUnusable`. Knows nothing of how an answer is
relayed, nor of the client library; how upstreams are doing is known in `live`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from math import ceil
from random import random
from typing import TYPE_CHECKING, Final, Self

from policies.retries import Again, Cause, Failed, after_failure, is_retryable
from policies.routing import arrange, fits
from policies.usage import CLIENT
from proxy.errors import (
    NoUpstreamLeft,
    UpstreamBroken,
    UpstreamBusy,
    UpstreamError,
    UpstreamTooSlow,
    UpstreamUnusable,
)
from proxy.upstreams.client import AttemptFailed, Failure
from proxy.upstreams.gates import enter_first
from proxy.upstreams.headers import (
    identity_fields,
    keyless_headers,
    passed_credentials,
    request_headers,
    upstream_request_id,
)
from proxy.upstreams.verdicts import ERRORS, cool_down_seconds, find_fault, is_failure, kind_of, refusal, unusable
from proxy.wire.envelopes import may_be_completion

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType

    from policies.catalog import Deployment
    from policies.decision import Decision
    from proxy.exchange import Exchange, Headers, Request
    from proxy.upstreams.client import ClientBounds, UpstreamAnswer
    from proxy.upstreams.live import Running, Upstreams
    from proxy.upstreams.targets import Target

_log = logging.getLogger("tidegate.upstreams")

_BAD_REQUEST: Final = 400
_NONE_OF_THEM: Final = -1
_LOGGED_BODY_BYTES: Final = 2048
_REFUSAL_BODY_BYTES: Final = 64 * 1024
_REFUSAL_READ_SECONDS: Final = 1.0

_FAILURE_KINDS: Final = {UpstreamTooSlow: "timeout", UpstreamUnusable: "unusable"}

_CAUSES: Final = {
    Failure.UNREACHABLE: Cause.UNREACHABLE,
    Failure.CONNECT_TIMEOUT: Cause.UNREACHABLE,
    Failure.STALE: Cause.STALE,
    Failure.NO_ANSWER: Cause.BROKEN,
    Failure.NOT_HTTP: Cause.UNUSABLE,
    Failure.TIMEOUT: Cause.UNKNOWN,
}
_CAUSES_WITHIN: Final = {UpstreamTooSlow: Cause.UNKNOWN, UpstreamBroken: Cause.BROKEN}
"""Of an answer that began; anything else was of no use."""
_MAY_BE_AT_WORK: Final = {Cause.UNKNOWN, Cause.BROKEN}
_UNKNOWN_COST: Final = {Failure.NO_ANSWER, Failure.NOT_HTTP, Failure.TIMEOUT}


class Dispatcher:
    """Sends effective requests under one configuration."""

    def __init__(
        self, upstreams: Upstreams, targets: Mapping[str, Target], *, bounds: ClientBounds, pseudonym_key: bytes
    ) -> None:
        self.upstreams = upstreams
        self.targets = targets
        self.bounds = bounds
        self.pseudonym_key = pseudonym_key

    def begin(self, decision: Decision, exchange: Exchange, request: Request) -> Sending:
        """Return a request on its way; of the client's `request` only the header fields that may pass are read."""
        self.upstreams.earn_retries()
        return Sending(self, decision, exchange, request)


class Sending:
    """One request on its way upstream; opened with `async with`, which closes what was kept back.

    `current` is the deployment that is being tried, or has answered; into `exchange` goes what is known of attempts.
    `before_going_on` is awaited once an attempt has failed, before it is decided what follows.
    """

    def __init__(self, dispatcher: Dispatcher, decision: Decision, exchange: Exchange, request: Request) -> None:
        self.current: Deployment | None = None
        self.exchange = exchange
        self.before_going_on: Callable[[], Awaitable[None]] | None = None
        self._dispatcher = dispatcher
        self._upstreams = dispatcher.upstreams
        self._metrics = dispatcher.upstreams.metrics
        self._decision = decision
        self._client_headers = request_headers(request)
        if decision.model.settings.auth == "passthrough":
            self._client_headers = [*self._client_headers, *passed_credentials(request)]
        self._candidates = list(decision.candidates)
        self._available = len(self._candidates)
        self._position = 0
        self._wait_milliseconds = 0
        self._has_begun = False
        self._history: list[Failed] = []
        self._failure: AttemptFailed | UpstreamError | None = None
        self._kept: tuple[UpstreamAnswer, int] | None = None

    async def __aenter__(self) -> Self:
        """Begin nothing yet."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close a refusal that was kept in case nothing better comes."""
        self._drop()

    async def answer(self) -> UpstreamAnswer:
        """Return the next answer to be passed on, its head known and its body unread; the caller closes it.

        An upstream's own error is an answer. To be awaited again only when `goes_on_after` says so. Raises
        UpstreamUnusable, NoUpstreamLeft, UpstreamTooSlow, UpstreamBroken or UpstreamBusy, each after all attempts that
        SPEC §8 allows.
        """
        if self._has_begun:
            await self._wait()
        else:
            self._has_begun = True
            self._arrange()
        while True:
            try:
                answer = await self._attempt()
                if not is_retryable(answer.status):
                    return await self._usable(answer, self._position)
                self._keep(answer)
                self._note_failure(None, refusal(answer, self._position))
            except AttemptFailed as failed:
                may_repeat = failed.failure is not Failure.CONNECT_TIMEOUT
                self._note_failure(failed, Failed(self._position, _CAUSES[failed.failure], may_repeat=may_repeat))
            except UpstreamUnusable as error:
                self._note_failure(error, Failed(self._position, Cause.UNUSABLE))
            except UpstreamBusy:
                if not self._history:
                    raise
                return await self._give_up()
            if self.before_going_on is not None and not self._was_stale:
                await self.before_going_on()
            if not self.goes_on():
                return await self._give_up()
            await self._wait()

    def goes_on_after(self, error: UpstreamError) -> bool:
        """Tell whether another deployment may be asked, as an answer broke or was of no use before any of it left.

        Nothing follows a time-out, as the upstream may be at work.
        """
        cause = next((cause for kind, cause in _CAUSES_WITHIN.items() if isinstance(error, kind)), Cause.UNUSABLE)
        if cause in _MAY_BE_AT_WORK:
            self.note_unknown_cost(self._candidates[self._position].upstream)
        self._note_failure(error, Failed(self._position, cause))
        return self.goes_on()

    # the order of attempts

    def _arrange(self) -> None:
        """Put the candidates in the order to try them, as things stand now. Raises NoUpstreamLeft."""
        upstreams, decision, candidates = self._upstreams, self._decision, self._candidates
        settings = decision.model.settings
        if len(candidates) == 1 and not settings.breaker.fail_fast:
            return
        now = time.monotonic()
        standings = [upstreams.standing(decision.model, each, now) for each in candidates]
        order = arrange(
            candidates,
            standings,
            choice=settings.routing,
            fits=[fits(each, decision.model, decision.worst_case) for each in candidates],
        )
        self._available = sum(standing.is_available for standing in standings)
        if settings.breaker.fail_fast:
            order = order[: self._available]  # they come first
        if not order:
            raise self._none_available(now)
        self._candidates = [candidates[index] for index in order]

    def _none_available(self, now: float) -> NoUpstreamLeft:
        model = self._decision.model
        ready = [self._upstreams.place(model, each).breaker.ready_at(now) for each in self._candidates]
        return NoUpstreamLeft(
            f"Every deployment of {model.name!r} has failed lately and is left alone for a moment.",
            retry_after_seconds=max(1, ceil(min(ready, default=now) - now)),
        )

    def _note_failure(self, failure: AttemptFailed | UpstreamError | None, failed: Failed) -> None:
        self._failure = failure
        self._history.append(failed)

    def goes_on(self) -> bool:
        """Decide on the next attempt after those that came to nothing, and tell whether there is one."""
        settings = self._decision.model.settings
        following = after_failure(
            self._history,
            len(self._candidates),
            random(),  # noqa: S311  spreads waits, guards nothing
            max_attempts=settings.max_attempts,
            max_wait_milliseconds=settings.retry_max_wait,
        )
        if not isinstance(following, Again) or not self._affords(following.candidate):
            return False
        self._position, self._wait_milliseconds = following.candidate, following.wait_milliseconds
        return True

    def count_elsewhere(self, deployment: Deployment | None) -> None:
        """Count an attempt at this request that was made elsewhere; a deployment that is named is asked no more."""
        position = self._candidates.index(deployment) if deployment in self._candidates else _NONE_OF_THEM
        self._history.insert(0, Failed(position, Cause.BROKEN))

    @property
    def _has_others(self) -> bool:
        """Whether another deployment may be asked should the answer at hand come to nothing."""
        asked = {self._position, *(failed.candidate for failed in self._history)}
        return (
            len(asked) < len(self._candidates) and len(self._history) + 1 < self._decision.model.settings.max_attempts
        )

    def _affords(self, position: int) -> bool:
        """Tell whether an attempt is within the load that repeating may add.

        Only what a deployment has already refused is a repetition: fail-over and what was never sent add none to it.
        """
        was_refused = any(failed.candidate == position and failed.cause is Cause.REFUSED for failed in self._history)
        return not was_refused or self._upstreams.spend_retry()

    async def _wait(self) -> None:
        if self._wait_milliseconds:
            await asyncio.sleep(self._wait_milliseconds / 1000)

    async def _give_up(self) -> UpstreamAnswer:
        """Pass on the refusal that was kept; raise what the last attempt came to where there is none."""
        last, failure = self._history[-1], self._failure
        if isinstance(failure, AttemptFailed) and failure.failure is Failure.STALE:
            self._tell(self._candidates[last.candidate].upstream, failure)  # not before: the next attempt may mend it
        if self._kept is None or last.cause in _MAY_BE_AT_WORK:
            raise _given_up(self._decision, failure) from failure
        answer, position = self._kept
        self._kept = None
        return await self._usable(answer, position)

    def _keep(self, answer: UpstreamAnswer) -> None:
        """Keep the latest refusal, to be passed on if nothing better comes; it takes up no room at its upstream."""
        self._drop()
        self._kept = (answer, self._position)
        answer.count_as_closed()

    def _drop(self) -> None:
        if self._kept is not None:
            self._kept[0].close()
            self._kept = None

    # one attempt

    async def _attempt(self) -> UpstreamAnswer:
        """Send the request to the candidate in turn; once more without asking for usage where that was refused."""
        await self._enter()
        deployment = self.current = self._candidates[self._position]
        if self._history:
            self._metrics.upstream_retries_total.labels(deployment.upstream).inc()
        name = deployment.name_of(self._decision.model.name)
        asks = self._asks_usage(deployment.upstream, name)
        answer = await self._post(deployment, name, asks_usage=asks)
        if not asks or answer.status != _BAD_REQUEST:
            return answer
        try:
            is_refused = await _names_stream_options(answer)
        except BaseException:  # the client left
            answer.close()
            raise
        if not is_refused:
            return answer
        answer.close()
        await enter_first([self._upstreams.gate(deployment.upstream)], waits=self._stands_in_line)
        answer = await self._post(deployment, name, asks_usage=False)
        if answer.status < ERRORS:  # else it only spoke of the option, as of a prompt that does
            self._upstreams.refuses_usage.add((deployment.upstream, name))
            _log.warning("upstream %s takes no stream_options; its streams are counted instead", deployment.upstream)
        return answer

    async def _enter(self) -> None:
        """Enter the gate of the upstream in turn; where it is full, wait for that or another that may do as well."""
        if self._upstreams.gate(self._candidates[self._position].upstream).try_enter():
            return
        tried = {self._position, *(failed.candidate for failed in self._history)}
        choices = [self._position, *(each for each in range(self._available) if each not in tried)]
        gates = [self._upstreams.gate(self._candidates[each].upstream) for each in choices]
        self._position = choices[await enter_first(gates, waits=self._stands_in_line)]

    @property
    def _stands_in_line(self) -> bool:
        """Whether it waits for room: requests of the gateway's own are dropped instead (SPEC §5)."""
        return self.exchange.origin == CLIENT

    def _asks_usage(self, upstream: str, name: str) -> bool:
        view = self._decision.effective.view
        return (
            view.is_stream
            and not view.wants_usage
            and self._dispatcher.targets[upstream].settings.stream_usage == "ask"
            and (upstream, name) not in self._upstreams.refuses_usage
        )

    async def _post(self, deployment: Deployment, name: str, *, asks_usage: bool) -> UpstreamAnswer:
        """Make one attempt, from within its upstream's gate."""
        gate = self._upstreams.gate(deployment.upstream)
        running = self._upstreams.place(self._decision.model, deployment).begin(gate)
        try:
            answer = await self._request(deployment.upstream, name, running, asks_usage=asks_usage)
        except BaseException:
            running.end()
            raise
        self._watch(answer, deployment.upstream, running)
        return answer

    async def _request(self, upstream: str, name: str, running: Running, *, asks_usage: bool) -> UpstreamAnswer:
        target = self._dispatcher.targets[upstream]
        exchange, decision = self.exchange, self._decision
        address = target.address(name, decision)
        body = target.body(name, decision, asks_usage=asks_usage)
        exchange.attempts += 1
        exchange.upstream, exchange.deployment = upstream, name
        exchange.upstream_status = exchange.upstream_request_id = None
        exchange.is_sent_upstream = False
        try:
            answer = await self._upstreams.client.post(
                address,
                self._headers(target),
                body,
                way=target.way,
                bounds=self._dispatcher.bounds,
                on_sent=self._note_sent,
                reuses_connection=not self._was_stale,
            )
        except AttemptFailed as failed:
            self._note_failed(failed, upstream, running)
            raise
        except asyncio.CancelledError:
            if exchange.is_sent_upstream:
                self.note_unknown_cost(upstream)
            raise
        answer.is_usage_added = asks_usage
        self._note_head(answer, upstream, running)
        return answer

    @property
    def _was_stale(self) -> bool:
        """Whether the last attempt found its connection gone; the pool's others may be gone as well."""
        return bool(self._history) and self._history[-1].cause is Cause.STALE

    def _headers(self, target: Target) -> Headers:
        decision = self._decision
        headers = keyless_headers() if decision.model.settings.auth == "passthrough" else target.headers
        who = identity_fields(target.settings, decision, self._dispatcher.pseudonym_key)
        return [*headers, ("X-Client-Request-Id", self.exchange.request_id), *who, *self._client_headers]

    def _note_sent(self) -> None:
        """Note that an upstream may be at work now."""
        self.exchange.is_sent_upstream = True

    # what is told of it

    def _note_failed(self, failed: AttemptFailed, upstream: str, running: Running) -> None:
        self._observe_duration(upstream, running)
        if failed.failure is Failure.STALE:  # that says nothing about who would have answered
            return
        running.failed()
        self._tell(upstream, failed)
        if failed.failure in _UNKNOWN_COST and self.exchange.is_sent_upstream:
            self.note_unknown_cost(upstream)

    def note_unknown_cost(self, upstream: str) -> None:
        """Count an attempt that its upstream may be billing although it brought nothing."""
        self.exchange.attempts_of_unknown_cost += 1
        self._metrics.upstream_unknown_cost_total.labels(upstream).inc()

    def _note_head(self, answer: UpstreamAnswer, upstream: str, running: Running) -> None:
        fault = find_fault(answer, self._decision)
        running.answered(
            is_failure=is_failure(answer, fault),
            is_refusal=answer.status >= ERRORS,
            cool_down_seconds=cool_down_seconds(answer, self._decision),
        )
        self._note(answer)
        if fault is not None:
            self._count(upstream, _FAILURE_KINDS[UpstreamUnusable])
        elif answer.status >= ERRORS:
            self._count(upstream, kind_of(answer.status))

    def _note(self, answer: UpstreamAnswer) -> None:
        self.exchange.upstream_status = answer.status
        self.exchange.upstream_request_id = upstream_request_id(answer.headers)

    def _watch(self, answer: UpstreamAnswer, upstream: str, running: Running) -> None:
        """Have the rest of an answer's life told: how long it took, whether it broke, that it is an open stream."""
        metrics = self._metrics

        def closed() -> None:
            self._observe_duration(upstream, running)
            if answer.failure is not None:
                running.failed()
                self._count(upstream, _FAILURE_KINDS.get(type(answer.failure), "broken"))
            running.end()
            if answer.is_stream:
                metrics.open_streams.dec()

        answer.when_closed = closed
        if answer.is_stream:
            metrics.open_streams.inc()

    def _observe_duration(self, upstream: str, running: Running) -> None:
        duration = self._metrics.upstream_request_duration_seconds
        duration.labels(upstream).observe(time.monotonic() - running.began)

    async def _usable(self, answer: UpstreamAnswer, position: int) -> UpstreamAnswer:
        """Return an answer that may be passed on; raise UpstreamUnusable for one that is not the client's business."""
        deployment = self.current = self._candidates[position]
        self.exchange.upstream = deployment.upstream
        self.exchange.deployment = deployment.name_of(self._decision.model.name)
        self._note(answer)
        fault = find_fault(answer, self._decision)
        if fault is None:
            answer.is_replaceable = self._has_others
            return answer
        try:
            body = b"" if answer.is_stream else await _read_refusal(answer, _LOGGED_BODY_BYTES)
        finally:
            answer.close()
        shown = b"" if answer.status < ERRORS and may_be_completion(body) else body
        _log.error("upstream %s answered %d, %s: %r", deployment.upstream, answer.status, fault, shown)
        raise unusable(answer, fault)

    def _tell(self, upstream: str, failed: AttemptFailed) -> None:
        self._count(upstream, failed.failure.value)
        _log.warning("upstream %s: no answer (%s)", upstream, failed.reason)

    def _count(self, upstream: str, kind: str) -> None:
        self._metrics.upstream_errors_total.labels(upstream, kind).inc()


def _given_up(decision: Decision, failure: AttemptFailed | UpstreamError | None) -> UpstreamError:
    model = decision.model.name
    if isinstance(failure, UpstreamError):
        return failure
    if failure is not None and failure.failure in {Failure.TIMEOUT, Failure.CONNECT_TIMEOUT}:
        return UpstreamTooSlow(f"No upstream for {model!r} answered in time.")
    if failure is not None and failure.failure is Failure.UNREACHABLE:
        return NoUpstreamLeft(f"No upstream for {model!r} can be reached at the moment.")
    if failure is not None and failure.failure is Failure.NOT_HTTP:
        return UpstreamUnusable(f"What the upstream for {model!r} answered is no valid HTTP.")
    return UpstreamBroken(f"The upstream for {model!r} closed the connection without an answer.")


async def _names_stream_options(answer: UpstreamAnswer) -> bool:
    body = await _read_refusal(answer, _REFUSAL_BODY_BYTES)
    return b"stream_options" in body or b"include_usage" in body


async def _read_refusal(answer: UpstreamAnswer, max_bytes: int) -> bytes:
    """Look at the beginning of a body that does not matter enough to wait for."""
    try:
        async with asyncio.timeout(_REFUSAL_READ_SECONDS):
            return await answer.peek(max_bytes)
    except (TimeoutError, UpstreamError):
        return b""
