"""Builds: the only place that puts the parts of a worker together, and hands each what it needs.

Decides nothing and speaks no protocol; how a request is answered stands in `handler`, how it arrives in `server`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from proxy import server
from proxy.admission import Admissions
from proxy.answer_cache import AnswerCache
from proxy.config_file import proxy_environment
from proxy.drift import DriftChecks
from proxy.errors import ClientLeft, note_error
from proxy.exchange import Exchange, new_request_id
from proxy.flights import Flights
from proxy.handler import Snapshot
from proxy.hedging import Hedging
from proxy.logs import log_exchange
from proxy.memory_level import MemoryLevel
from proxy.middlewares import with_errors, with_request_id
from proxy.own_requests import OwnRequests, UnderWay
from proxy.records import saved_microdollars
from proxy.relay import RelayBounds
from proxy.routes import HEALTH, Call, find_route
from proxy.shadow import ShadowTraffic
from proxy.spool import SPOOL_FOLDER_NAME, Spool
from proxy.store.cache_state import CacheState
from proxy.store.cluster import answer_store
from proxy.store.connection import Store
from proxy.store.keys import Keys
from proxy.store.reservations import Reservations, probe
from proxy.upstreams.client import UpstreamClient
from proxy.upstreams.live import Upstreams, targets_of

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator

    from proxy.config import Configuration
    from proxy.exchange import Request, Writer
    from proxy.metrics import Metrics

_log = structlog.get_logger("tidegate.app")


class Gateway:
    """What one worker serves with: a snapshot of the configuration, and what outlasts it."""

    def __init__(self, parts: Parts, snapshot: Snapshot, metrics: Metrics) -> None:
        self._parts = parts
        self._metrics = metrics
        self.switch(snapshot)

    @property
    def snapshot(self) -> Snapshot:
        """The configuration in force, for requests that come now."""
        return self._serving.snapshot

    async def prepare(self, configuration: Configuration) -> Snapshot:
        """Return what `switch` puts in force. Raises whatever keeps this process from serving with it."""
        return await self._parts.snapshot(configuration)

    def switch(self, snapshot: Snapshot) -> None:
        """Put a prepared configuration in force for requests that come from now on; others keep theirs."""
        self._parts.adopt(snapshot)
        self._serving = _Serving(snapshot)

    async def answer(self, request: Request, writer: Writer) -> None:
        """Answer one request and tell what became of it: metrics, log line, usage record, each exactly once."""
        serving = self._serving  # for all of this request, whatever is put in force meanwhile
        exchange = Exchange(
            request_id=new_request_id(),
            started_at=serving.snapshot.admissions.now() / 1000,  # a worker's own clock may be wrong
            started=time.monotonic(),
            configuration_version=serving.snapshot.version,
        )
        try:
            await serving.framed(request, writer, exchange)
        except ClientLeft as left:
            note_error(exchange, left)
        except BaseException as error:
            note_error(exchange, error)
            raise
        finally:
            exchange.ended = time.monotonic()
            self._tell(exchange, serving.snapshot)

    def note_fault(self, fault: BaseException | None) -> None:
        """Tell the operator of an error that nothing foresaw."""
        self._metrics.unhandled_errors_total.labels("request").inc()
        _log.error("a request failed in a way that nothing foresaw", exc_info=fault)

    def _tell(self, exchange: Exchange, snapshot: Snapshot) -> None:
        if exchange.is_recorded and exchange.charged is None:  # a settlement leaves the record of its own accord
            snapshot.admissions.record(exchange)
        self._metrics.observe(exchange, exchange.charged, saved_microdollars=saved_microdollars(exchange))
        if exchange.route != HEALTH:  # asked every few seconds, by machines
            log_exchange(exchange, exchange.charged)


class _Serving:
    """One snapshot, and the frames around answers by it."""

    __slots__ = ("framed", "snapshot")

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.framed = with_request_id(with_errors(self._route))

    async def _route(self, request: Request, writer: Writer, exchange: Exchange) -> None:
        route, model = find_route(request.method, request.path)
        exchange.route = route.name
        await route.answer(Call(request, writer, exchange, self.snapshot, model))


@dataclass(frozen=True, slots=True)
class Parts:
    """What of a worker outlasts a configuration."""

    admissions: Admissions
    flights: Flights
    known: CacheState
    memory: MemoryLevel
    upstreams: Upstreams
    under_way: UnderWay
    metrics: Metrics

    async def snapshot(self, configuration: Configuration) -> Snapshot:
        """Prepare a configuration; what takes long is done beside the event loop."""
        environment = proxy_environment()
        rulebook, principals, version, targets = await asyncio.to_thread(
            lambda: (
                configuration.rulebook(),
                configuration.principals(),
                configuration.version,
                targets_of(configuration, environment),
            )
        )
        dispatcher = self.upstreams.dispatcher(configuration, targets)
        bounds = _relay_bounds(configuration)
        own = OwnRequests(
            self.under_way,
            dispatcher,
            self.admissions,
            organization=configuration.organization_principal(),
            rulebook=rulebook,
            bounds=bounds,
        )
        return Snapshot(
            configuration=configuration,
            version=version,
            rulebook=rulebook,
            principals=principals,
            hedging=Hedging(own, self.metrics),
            relay_bounds=bounds,
            admissions=self.admissions,
            drift=DriftChecks(own, self.metrics),
            shadow=ShadowTraffic(own, self.metrics),
        )

    def adopt(self, snapshot: Snapshot) -> None:
        """Go by a prepared configuration from now on: how much is kept, for how long, how upstreams are used."""
        configuration = snapshot.configuration
        self.upstreams.adopt(configuration, snapshot.hedging.own.dispatcher.targets)
        self.admissions.join_wait_seconds = configuration.join_wait / 1000
        self.flights.adopt(max_bytes=configuration.max_flight_bytes, max_flight_bytes=configuration.max_entry_bytes)
        self.memory.adopt(configuration.cache_memory_bytes)
        self.known.adopt(configuration.fingerprint_window / 1000)


@asynccontextmanager
async def open_gateway(
    configuration: Configuration, *, state_url: str, cache_url: str, metrics: Metrics, worker: int
) -> AsyncIterator[Gateway]:
    """Open everything one worker needs; on the way out, what is held is settled and what is spooled delivered."""
    async with AsyncExitStack() as stack:
        keys = Keys(configuration.organization.id)
        state = Store(state_url, name="state", metrics=metrics, probe=probe(keys), anchor=keys.leases)
        answers = answer_store(cache_url, state_url=state_url, state=state, name="cache_state", metrics=metrics)
        for store in {id(state): state, id(answers): answers}.values():
            stack.push_async_callback(store.close)
            await store.start()
        spool = Spool(configuration.data_dir / SPOOL_FOLDER_NAME, worker)
        stack.callback(spool.close)
        organization = configuration.organization
        reservations = Reservations(state, keys, organization.zone, lease_seconds=configuration.lease_seconds)
        memory = MemoryLevel(configuration.cache_memory_bytes)
        known = CacheState(
            state, organization.id, window_seconds=configuration.fingerprint_window / 1000, on_lost=memory.clear
        )
        cache = await stack.enter_async_context(
            _started(AnswerCache(answers, known, memory, now=reservations.now, metrics=metrics), known)
        )
        flights = Flights(max_bytes=configuration.max_flight_bytes, max_flight_bytes=configuration.max_entry_bytes)
        admissions = Admissions(
            state,
            cache,
            reservations=reservations,
            flights=flights,
            spool=spool,
            metrics=metrics,
            workers=configuration.workers,
            lease_seconds=configuration.lease_seconds,
            join_wait_seconds=configuration.join_wait / 1000,
        )
        client = await stack.enter_async_context(UpstreamClient())
        upstreams = await stack.enter_async_context(
            Upstreams(client, metrics=metrics, worker=worker, workers=configuration.workers)
        )
        stack.push_async_callback(admissions.close)
        await admissions.start()
        under_way = UnderWay(metrics)
        stack.push_async_callback(under_way.close)
        parts = Parts(admissions, flights, known, memory, upstreams, under_way, metrics)
        yield Gateway(parts, await parts.snapshot(configuration), metrics)


@asynccontextmanager
async def _started(cache: AnswerCache, known: CacheState) -> AsyncIterator[AnswerCache]:
    await known.start()
    await cache.start()
    try:
        yield cache
    finally:
        await cache.close()
        await known.close()


def _relay_bounds(configuration: Configuration) -> RelayBounds:
    return RelayBounds(configuration.max_entry_bytes, configuration.max_event_bytes, configuration.max_flight_bytes)


async def serve(gateway: Gateway, sock: socket.socket, stopping: asyncio.Event) -> None:
    """Answer requests from `sock` until `stopping` is set, then finish those under way within the drain time-out."""
    await server.serve(
        gateway.answer,
        sock,
        stopping,
        bounds=lambda: gateway.snapshot.configuration.bounds,
        client_seconds=lambda: gateway.snapshot.configuration.timeouts.client_seconds,
        drain_seconds=lambda: gateway.snapshot.configuration.drain_timeout_seconds,
        note_fault=gateway.note_fault,
    )
