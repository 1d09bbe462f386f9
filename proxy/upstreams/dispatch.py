"""Many attempts: from a decision to the one upstream answer that is worth passing on.

Builds the address and body for each deployment, obeys `policies.retries` on what follows a failure, and turns answers
that nobody should see into `UpstreamUnusable`. Knows nothing of how an answer is relayed, nor of the client library.
"""

from __future__ import annotations

import asyncio
import logging
import time
from random import random
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from policies.requests.asked import Endpoint
from policies.requests.body import encode_body
from policies.retries import (
    MAX_SAVED_RETRIES,
    Again,
    Cause,
    Failed,
    after_failure,
    asked_wait_milliseconds,
    can_spend,
    earn,
    is_retryable,
)
from proxy.config_upstreams import CLIENTS_VERSION
from proxy.errors import NoUpstreamLeft, UpstreamBroken, UpstreamError, UpstreamTooSlow, UpstreamUnusable
from proxy.upstreams.client import AttemptFailed, Failure
from proxy.upstreams.headers import request_headers, upstream_headers, upstream_request_id
from proxy.wire.envelopes import may_be_completion

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policies.catalog import Deployment
    from policies.decision import Decision
    from proxy.config_upstreams import Upstream
    from proxy.exchange import Exchange, Headers, Request
    from proxy.metrics import Metrics
    from proxy.upstreams.client import UpstreamAnswer, UpstreamClient

_log = logging.getLogger("tidegate.upstreams")

_OWN_CREDENTIAL = {401, 403, 407}
_REDIRECTS = range(300, 400)
_ANSWERS = range(200, 600)
_BAD_REQUEST = 400
_TOO_MANY_REQUESTS = 429
_ERRORS = 400
_LOGGED_BODY_BYTES = 2048
_REFUSAL_BODY_BYTES = 64 * 1024
_REFUSAL_READ_SECONDS = 1.0
_HTML = ("text/html", "application/xhtml+xml")

_FAILURE_KINDS = {UpstreamTooSlow: "timeout", UpstreamUnusable: "unusable"}

_CAUSES = {
    Failure.UNREACHABLE: Cause.UNREACHABLE,
    Failure.CONNECT_TIMEOUT: Cause.UNREACHABLE,
    Failure.STALE: Cause.STALE,
    Failure.NO_ANSWER: Cause.UNKNOWN,
    Failure.NOT_HTTP: Cause.UNKNOWN,
    Failure.TIMEOUT: Cause.UNKNOWN,
}


class _Target:
    """One upstream, its headers and address prepared."""

    __slots__ = ("base", "headers", "name", "settings")

    def __init__(self, name: str, settings: Upstream) -> None:
        self.name = name
        self.settings = settings
        self.base = settings.base_url.rstrip("/")
        self.headers = upstream_headers(settings)


class _Sending:
    """One request under way: the decision, the facts it leaves, and the answer kept back in case no better comes."""

    __slots__ = ("client_headers", "decision", "exchange", "history", "kept")

    def __init__(self, decision: Decision, exchange: Exchange, client_headers: Headers) -> None:
        self.decision = decision
        self.exchange = exchange
        self.client_headers = client_headers
        self.history: list[Failed] = []
        self.kept: tuple[UpstreamAnswer, int] | None = None

    @property
    def was_stale(self) -> bool:
        """Whether the last attempt found its connection gone; the pool's others may be gone as well."""
        return bool(self.history) and self.history[-1].cause is Cause.STALE

    def note_sent(self) -> None:
        """Note that an upstream may be at work now."""
        self.exchange.is_sent_upstream = True

    def keep(self, answer: UpstreamAnswer, candidate: int) -> None:
        """Keep the latest refusal, to be passed on if nothing better comes."""
        self.drop()
        self.kept = (answer, candidate)

    def drop(self) -> None:
        """Close the refusal that was kept."""
        if self.kept is not None:
            self.kept[0].close()
            self.kept = None


class Dispatcher:
    """Sends effective requests to a decision's candidates in order, with fail-over and bounded retries."""

    def __init__(self, client: UpstreamClient, upstreams: Mapping[str, Upstream], *, metrics: Metrics) -> None:
        self._client = client
        self._targets = {name: _Target(name, settings) for name, settings in upstreams.items()}
        self._metrics = metrics
        self._saved_retries = MAX_SAVED_RETRIES
        self._refuses_usage: set[tuple[str, str]] = set()

    async def send(self, decision: Decision, exchange: Exchange, request: Request) -> UpstreamAnswer:
        """Return the answer to be passed on, its head known and its body unread; the caller closes it.

        Of the client's `request` only the header fields that may pass are read. An upstream's own error is an answer.
        Raises UpstreamUnusable, NoUpstreamLeft, UpstreamTooSlow or UpstreamBroken, each after all attempts that SPEC
        §8 allows.
        """
        self._saved_retries = earn(self._saved_retries)
        sending = _Sending(decision, exchange, request_headers(request))
        try:
            return await self._try_all(sending)
        finally:
            sending.drop()

    async def _try_all(self, sending: _Sending) -> UpstreamAnswer:
        again: Again = Again(0, 0)
        while True:
            failure: AttemptFailed | None = None
            try:
                answer = await self._attempt(sending, again.candidate)
            except AttemptFailed as failed:
                failure = failed
                sending.history.append(
                    Failed(
                        again.candidate,
                        _CAUSES[failed.failure],
                        may_repeat=failed.failure is not Failure.CONNECT_TIMEOUT,
                    )
                )
            else:
                if not is_retryable(answer.status):
                    return await self._usable(sending, answer, again.candidate)
                sending.keep(answer, again.candidate)
                sending.history.append(_refusal(answer, again.candidate))
            following = after_failure(sending.history, len(sending.decision.candidates), random())  # noqa: S311
            if not isinstance(following, Again) or not self._affords(sending.history, following):
                return await self._give_up(sending, failure)
            again = following
            await self._wait(sending, again)

    def _affords(self, history: list[Failed], again: Again) -> bool:
        """Tell whether an attempt is within the load that repeating may add.

        Only what a deployment has already refused is a repetition: fail-over and what was never sent add none to it.
        """
        if not any(failed.candidate == again.candidate and failed.cause is Cause.REFUSED for failed in history):
            return True
        if not can_spend(self._saved_retries):
            return False
        self._saved_retries -= 1
        return True

    async def _wait(self, sending: _Sending, again: Again) -> None:
        deployment = sending.decision.candidates[again.candidate]
        self._metrics.upstream_retries_total.labels(deployment.upstream).inc()
        if again.wait_milliseconds:
            await asyncio.sleep(again.wait_milliseconds / 1000)

    async def _give_up(self, sending: _Sending, failure: AttemptFailed | None) -> UpstreamAnswer:
        """Pass on the refusal that was kept; raise what the last attempt came to where there is none."""
        if failure is not None and failure.failure is Failure.STALE:
            deployment = sending.decision.candidates[sending.history[-1].candidate]
            self._tell(deployment.upstream, failure)  # not before: as a rule, the next attempt mends it
        kept = sending.kept
        if kept is None or (failure is not None and _CAUSES[failure.failure] is Cause.UNKNOWN):
            raise _given_up(sending.decision, failure) from failure
        sending.kept = None
        answer, candidate = kept
        return await self._usable(sending, answer, candidate)

    async def _attempt(self, sending: _Sending, candidate: int) -> UpstreamAnswer:
        """Send the request to one candidate; once more without asking for usage where that was refused."""
        deployment = sending.decision.candidates[candidate]
        name = deployment.name or sending.decision.model.name
        asks = self._asks_usage(sending.decision, deployment.upstream, name)
        answer = await self._post(sending, deployment, name, asks_usage=asks)
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
        self._refuses_usage.add((deployment.upstream, name))
        _log.warning("upstream %s does not take stream_options; its streams are counted instead", deployment.upstream)
        return await self._post(sending, deployment, name, asks_usage=False)

    def _asks_usage(self, decision: Decision, upstream: str, name: str) -> bool:
        view = decision.effective.view
        return (
            view.is_stream
            and not view.wants_usage
            and self._targets[upstream].settings.stream_usage == "ask"
            and (upstream, name) not in self._refuses_usage
        )

    async def _post(self, sending: _Sending, deployment: Deployment, name: str, *, asks_usage: bool) -> UpstreamAnswer:
        target = self._targets[deployment.upstream]
        exchange = sending.exchange
        address = _address(target, name, sending.decision)
        body = encode_body(_forwarded(target, name, sending.decision, asks_usage=asks_usage))
        own = ("X-Client-Request-Id", exchange.request_id)
        exchange.attempts += 1
        exchange.upstream, exchange.deployment = target.name, name
        exchange.upstream_status = exchange.upstream_request_id = None
        exchange.is_sent_upstream = False
        started = time.monotonic()
        try:
            answer = await self._client.post(
                address,
                [*target.headers, own, *sending.client_headers],
                body,
                on_sent=sending.note_sent,
                reuses_connection=not sending.was_stale,
            )
        except AttemptFailed as failed:
            self._metrics.upstream_request_duration_seconds.labels(target.name).observe(time.monotonic() - started)
            if failed.failure is not Failure.STALE:
                self._tell(target.name, failed)
            raise
        self._watch(answer, target.name, started)
        answer.is_usage_added = asks_usage
        self._note(exchange, answer)
        if answer.status >= _ERRORS:
            self._count(target.name, _kind_of(answer.status))
        return answer

    def _watch(self, answer: UpstreamAnswer, upstream: str, started: float) -> None:
        """Have the rest of an answer's life told: how long it took, whether it broke, that it is an open stream."""
        metrics = self._metrics

        def closed() -> None:
            metrics.upstream_request_duration_seconds.labels(upstream).observe(time.monotonic() - started)
            if answer.failure is not None:
                self._count(upstream, _FAILURE_KINDS.get(type(answer.failure), "broken"))
            if answer.is_stream:
                metrics.open_streams.dec()

        answer.when_closed = closed
        if answer.is_stream:
            metrics.open_streams.inc()

    @staticmethod
    def _note(exchange: Exchange, answer: UpstreamAnswer) -> None:
        exchange.upstream_status = answer.status
        exchange.upstream_request_id = upstream_request_id(answer.headers)

    async def _usable(self, sending: _Sending, answer: UpstreamAnswer, candidate: int) -> UpstreamAnswer:
        """Return an answer that may be passed on; raise UpstreamUnusable for one that is not the client's business."""
        deployment = sending.decision.candidates[candidate]
        sending.exchange.upstream = deployment.upstream
        sending.exchange.deployment = deployment.name or sending.decision.model.name
        self._note(sending.exchange, answer)
        fault = _fault(answer, sending.decision)
        if fault is None:
            return answer
        unusable = UpstreamUnusable(
            f"The upstream's answer cannot be passed on: {fault}. The operator's log says more."
        )
        try:
            body = b"" if answer.is_stream else await _read_refusal(answer, _LOGGED_BODY_BYTES)
        finally:
            answer.failure = unusable
            answer.close()
        shown = b"" if answer.status < _ERRORS and may_be_completion(body) else body
        _log.error("upstream %s answered %d, %s: %r", deployment.upstream, answer.status, fault, shown)
        raise unusable

    def _tell(self, upstream: str, failed: AttemptFailed) -> None:
        self._count(upstream, failed.failure.value)
        _log.warning("upstream %s: no answer (%s)", upstream, failed.reason)

    def _count(self, upstream: str, kind: str) -> None:
        self._metrics.upstream_errors_total.labels(upstream, kind).inc()


def _kind_of(status: int) -> str:
    """Return how an error is counted: an upstream that is busy is no client's mistake, as other 4xx mostly are."""
    return str(status) if status == _TOO_MANY_REQUESTS else f"{status // 100}xx"


def _refusal(answer: UpstreamAnswer, candidate: int) -> Failed:
    return Failed(
        candidate,
        Cause.REFUSED,
        asked_wait_milliseconds(answer.header("retry-after-ms"), answer.header("Retry-After")),
        may_repeat=answer.header("x-should-retry") != "false",
    )


def _fault(answer: UpstreamAnswer, decision: Decision) -> str | None:
    """Say why an answer cannot be passed on; None when it can.

    A whole answer to a request for a stream can: that is what the upstream said, and clients look at the type.
    """
    status = answer.status
    if status in _OWN_CREDENTIAL:
        return f"it refused the gateway's own credential with {status}"
    if status in _REDIRECTS:
        return f"it redirects ({status}), which is not followed"
    if status not in _ANSWERS:
        return f"its status {status} is none that ends a request"
    if answer.media_type in _HTML:
        return "it is an HTML page"
    if status < _ERRORS and answer.is_stream and not decision.effective.view.is_stream:
        return "it is an event stream, which was not asked for"
    return None


def _given_up(decision: Decision, failure: AttemptFailed | None) -> UpstreamError:
    model = decision.model.name
    if failure is not None and failure.failure in {Failure.TIMEOUT, Failure.CONNECT_TIMEOUT}:
        return UpstreamTooSlow(f"No upstream for {model!r} answered in time.")
    if failure is not None and failure.failure is Failure.UNREACHABLE:
        return NoUpstreamLeft(f"No upstream for {model!r} can be reached at the moment.")
    if failure is not None and failure.failure is Failure.NOT_HTTP:
        return UpstreamUnusable(f"What the upstream for {model!r} answered is no valid HTTP.")
    return UpstreamBroken(f"The upstream for {model!r} closed the connection without an answer.")


def _address(target: _Target, name: str, decision: Decision) -> str:
    """Return where a request goes: only configured text, and what else there is percent-encoded."""
    endpoint = decision.effective.endpoint.value
    if target.settings.kind == "openai":
        return f"{target.base}/{endpoint}"
    version = target.settings.api_version
    if version is None or version == CLIENTS_VERSION:
        version = decision.asked.api_version
    if version is None:
        raise UpstreamUnusable(
            f"The upstream {target.name!r} needs an api-version and the request has none: "
            f"set upstreams.{target.name}.api_version, or use a path of Azure's dialect, which carries one."
        )
    place = endpoint if _names_model(target, decision) else f"deployments/{quote(name, safe='')}/{endpoint}"
    return f"{target.base}/openai/{place}?api-version={quote(version, safe='')}"


def _names_model(target: _Target, decision: Decision) -> bool:
    """Tell whether the body names the model: Azure's addresses do, but for responses."""
    return target.settings.kind == "openai" or decision.effective.endpoint is Endpoint.RESPONSES


def _forwarded(target: _Target, name: str, decision: Decision, *, asks_usage: bool) -> dict[str, Any]:
    """Return the members to be sent: the effective request's, the model's name where the address does not say it."""
    fields = dict(decision.effective.fields)
    if _names_model(target, decision):
        fields = {"model": name, **fields}
    if target.settings.kind == "openai":
        fields.pop("cache_level", None)
    if asks_usage:
        fields["stream_options"] = {**(fields.get("stream_options") or {}), "include_usage": True}
    return fields


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
