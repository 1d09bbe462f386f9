"""Builds: the only place that puts the parts of a worker together, and hands each what it needs.

Decides nothing and speaks no protocol; how a request is answered stands in `handler`, how it arrives in `server`.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from proxy import server
from proxy.admission import Admissions
from proxy.answer_cache import AnswerCache
from proxy.drift import DriftChecks
from proxy.errors import ClientLeft, note_error
from proxy.exchange import Exchange, new_request_id
from proxy.flights import Flights
from proxy.handler import Snapshot
from proxy.logs import log_exchange
from proxy.memory_level import MemoryLevel
from proxy.middlewares import with_errors, with_request_id
from proxy.records import saved_microdollars
from proxy.relay import RelayBounds
from proxy.routes import HEALTH, Call, find_route
from proxy.spool import SPOOL_FOLDER_NAME, Spool
from proxy.store.cache_state import CacheState
from proxy.store.cluster import answer_store
from proxy.store.connection import Store
from proxy.store.keys import Keys
from proxy.store.reservations import Reservations, probe
from proxy.upstreams.client import ClientBounds, UpstreamClient
from proxy.upstreams.dispatch import Dispatcher

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import AsyncIterator, Callable

    from proxy.config import Configuration
    from proxy.exchange import Request, Writer
    from proxy.metrics import Metrics
    from proxy.store.cluster import AnswerStore


_log = structlog.get_logger("tidegate.app")


class Gateway:
    """What one worker serves with."""

    def __init__(self, snapshot: Snapshot, metrics: Metrics) -> None:
        self.snapshot = snapshot
        self._metrics = metrics
        self._framed = with_request_id(with_errors(self._route))

    async def answer(self, request: Request, writer: Writer) -> None:
        """Answer one request and tell what became of it: metrics, log line, usage record, each exactly once."""
        exchange = Exchange(
            request_id=new_request_id(),
            started_at=self.snapshot.admissions.now() / 1000,  # a worker's own clock may be wrong
            started=time.monotonic(),
            configuration_version=self.snapshot.version,
        )
        try:
            await self._framed(request, writer, exchange)
        except ClientLeft as left:
            note_error(exchange, left)
        except BaseException as error:
            note_error(exchange, error)
            raise
        finally:
            exchange.ended = time.monotonic()
            self._tell(exchange)

    def note_fault(self, fault: BaseException | None) -> None:
        """Tell the operator of an error that nothing foresaw."""
        self._metrics.unhandled_errors_total.labels("request").inc()
        _log.error("a request failed in a way that nothing foresaw", exc_info=fault)

    async def _route(self, request: Request, writer: Writer, exchange: Exchange) -> None:
        route, model = find_route(request.method, request.path)
        exchange.route = route.name
        await route.answer(Call(request, writer, exchange, self.snapshot, model))

    def _tell(self, exchange: Exchange) -> None:
        if exchange.is_recorded and exchange.charged is None:  # a settlement leaves the record of its own accord
            self.snapshot.admissions.record(exchange)
        self._metrics.observe(exchange, exchange.charged, saved_microdollars=saved_microdollars(exchange))
        if exchange.route != HEALTH:  # asked every few seconds, by machines
            log_exchange(exchange, exchange.charged)


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
        client = await stack.enter_async_context(UpstreamClient(_client_bounds(configuration)))
        organization = configuration.organization
        reservations = Reservations(state, keys, organization.zone, lease_seconds=configuration.lease_seconds)
        cache = await stack.enter_async_context(_open_cache(configuration, state, answers, reservations.now, metrics))
        admissions = Admissions(
            state,
            cache,
            reservations=reservations,
            flights=Flights(max_bytes=configuration.max_flight_bytes, max_flight_bytes=configuration.max_entry_bytes),
            spool=spool,
            metrics=metrics,
            workers=configuration.workers,
            lease_seconds=configuration.lease_seconds,
            join_wait_seconds=configuration.join_wait / 1000,
        )
        stack.push_async_callback(admissions.close)
        await admissions.start()
        dispatcher = Dispatcher(client, configuration.upstreams, metrics=metrics)
        bounds = _relay_bounds(configuration)
        rulebook = configuration.rulebook()
        drift = DriftChecks(
            dispatcher,
            admissions,
            organization=configuration.organization_principal(),
            rulebook=rulebook,
            bounds=bounds,
            metrics=metrics,
        )
        stack.push_async_callback(drift.close)
        snapshot = Snapshot(
            configuration=configuration,
            version=configuration.version,
            rulebook=rulebook,
            principals=configuration.principals(),
            dispatcher=dispatcher,
            relay_bounds=bounds,
            admissions=admissions,
            drift=drift,
        )
        yield Gateway(snapshot, metrics)


@asynccontextmanager
async def _open_cache(
    configuration: Configuration, state: Store, answers: AnswerStore, now: Callable[[], int], metrics: Metrics
) -> AsyncIterator[AnswerCache]:
    memory = MemoryLevel(configuration.cache_memory_bytes)
    window_seconds = configuration.fingerprint_window / 1000
    known = CacheState(state, configuration.organization.id, window_seconds=window_seconds, on_lost=memory.clear)
    cache = AnswerCache(answers, known, memory, now=now, metrics=metrics)
    await known.start()
    await cache.start()
    try:
        yield cache
    finally:
        await cache.close()
        await known.close()


def _relay_bounds(configuration: Configuration) -> RelayBounds:
    return RelayBounds(configuration.max_entry_bytes, configuration.max_event_bytes, configuration.max_flight_bytes)


def _client_bounds(configuration: Configuration) -> ClientBounds:
    timeouts = configuration.timeouts
    return ClientBounds(timeouts.connect_seconds, timeouts.first_byte_seconds, timeouts.silence_seconds)


async def serve(gateway: Gateway, sock: socket.socket, stopping: asyncio.Event) -> None:
    """Answer requests from `sock` until `stopping` is set, then finish those under way within the drain time-out."""
    configuration = gateway.snapshot.configuration
    await server.serve(
        gateway.answer,
        sock,
        stopping,
        bounds=configuration.bounds,
        drain_seconds=configuration.drain_timeout_seconds,
        note_fault=gateway.note_fault,
    )
