"""Requests that the gateway sends of its own accord, on the organization's account (SPEC §5).

Each has an exchange of its own, is admitted under the organization's limits, and leaves a usage record with its origin.
None keeps a client waiting: those of a worker that go on by themselves are bounded, and end with it. Knows neither what
they are good for, nor when one is sent.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec.structs import replace as with_parts

from policies.cacheability import Keyed
from policies.errors import LimitExceeded
from policies.own_requests import for_organization
from proxy.errors import StoreUnavailable, UpstreamBusy
from proxy.exchange import Exchange, new_request_id
from proxy.fetching import pass_on_first_of_use
from proxy.relay import relay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from policies.catalog import Deployment
    from policies.decision import Decision
    from policies.principals import Principal
    from policies.rulebook import Rulebook
    from proxy.admission import Admission, Admissions
    from proxy.exchange import Headers, Request
    from proxy.metrics import Metrics
    from proxy.relay import RelayBounds
    from proxy.store.entries import StoredAnswer
    from proxy.upstreams.client import UpstreamAnswer
    from proxy.upstreams.dispatch import Dispatcher

DROPPED: Final = (LimitExceeded, StoreUnavailable, UpstreamBusy)
"""What says that there is no room for a request of the gateway's own, or that nobody knows."""

_log = structlog.get_logger(__name__)


class UnderWay:
    """What of one worker's own requests goes on by itself, whatever configuration it began with. End with `close`."""

    def __init__(self, metrics: Metrics) -> None:
        """Begin with nothing."""
        self._metrics = metrics
        self._tasks: dict[str, set[asyncio.Task[None]]] = {}

    def begin(
        self, origin: str, work: Callable[[], Coroutine[Any, Any, None]], *, most: int
    ) -> asyncio.Task[None] | None:
        """Begin some work and return at once; None where `most` of this origin are under way already."""
        tasks = self._tasks.setdefault(origin, set())
        if len(tasks) >= most:
            return None
        task = asyncio.create_task(self._guarded(origin, work), name=origin)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    async def close(self) -> None:
        """Drop what is under way."""
        under_way = [task for tasks in self._tasks.values() for task in tasks]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _guarded(self, origin: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception:  # noqa: BLE001  the outermost frame of a task
            _log.exception("a request of the gateway's own failed in a way that nothing foresaw", origin=origin)
            self._metrics.unhandled_errors_total.labels("own request").inc()


@dataclass(frozen=True, slots=True)
class OwnRequests:
    """What requests of the gateway's own need of one configuration; `organization` is on whose account they are."""

    under_way: UnderWay
    dispatcher: Dispatcher
    admissions: Admissions
    organization: Principal
    rulebook: Rulebook
    bounds: RelayBounds

    def prepare(
        self, origin: str, decision: Decision, served: Exchange, candidates: Sequence[Deployment] | None = None
    ) -> tuple[Decision, Exchange]:
        """Return decision and exchange to send again what a client's are about.

        To the client's candidates, unless others are named. Raises InvalidRequest as `for_organization` does.
        """
        own = for_organization(decision, self.organization, self.rulebook, reason=origin, candidates=candidates)
        now = time.monotonic()
        return own, Exchange(
            request_id=new_request_id(),
            started_at=served.unix_milliseconds(now) / 1000,
            started=now,
            configuration_version=served.configuration_version,
            route=served.route,
            principal=own.principal,
            asked=served.asked,
            model=served.model,
            decision=own,
            origin=origin,
        )

    @asynccontextmanager
    async def admitted(self, decision: Decision, exchange: Exchange) -> AsyncIterator[Admission]:
        """Admit a prepared request, and count what it was charged in the end. Raises what is in DROPPED."""
        try:
            async with self.admissions.admit(decision, exchange) as admission:
                yield admission
        finally:
            if exchange.charged is not None:
                metrics = self.dispatcher.upstreams.metrics
                metrics.observe_charge(exchange.charged, decision.model.name, decision.principal.project)

    async def fetch(self, decision: Decision, exchange: Exchange, request: Request) -> StoredAnswer | None:
        """Send a prepared request and return its answer as it would be stored, None for one that is not complete.

        Raises what is in DROPPED where there is no room for it, and as the dispatcher and `relay` do.
        """
        upstreams = self.dispatcher.upstreams
        if not any(upstreams.gate(each.upstream).has_room for each in decision.candidates):
            raise UpstreamBusy("Requests of the gateway's own stand in no line before an upstream.")
        kept: list[StoredAnswer | None] = []
        async with self.admitted(decision, exchange) as admission:

            async def keep(entry: StoredAnswer | None) -> None:
                kept.append(entry)
                await admission.settle()

            async def take(answer: UpstreamAnswer) -> None:
                await relay(
                    answer,
                    NOWHERE,
                    decision=to_be_kept(decision),
                    exchange=exchange,
                    settle=keep,
                    headers=list,
                    bounds=replace(self.bounds, entry_bytes=self.bounds.flight_bytes),  # of items, each may be an entry
                )

            async with self.dispatcher.begin(decision, exchange, request) as sending:
                await pass_on_first_of_use(sending, take, exchange)
        return kept[0]


def to_be_kept(decision: Decision) -> Decision:
    """Return the decision as if its answer were to be stored: it is then handed over by whoever relays it."""
    return with_parts(decision, cache=Keyed(key="", ttl_seconds=0))


class _Nowhere:
    """A writer whose client is nobody."""

    is_started = False

    async def start(self, status: int, headers: Headers) -> None:
        """Take the head."""

    async def write(self, data: bytes) -> None:
        """Take bytes of the body."""

    async def finish(self) -> None:
        """Take the end."""

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Take a whole answer."""

    def abort(self) -> None:
        """Do nothing."""


NOWHERE: Final = _Nowhere()
