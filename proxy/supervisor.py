"""The process that an operator starts: owns the data, the ports, the stores, the control plane and the workers.

Opens them in this order and gives them back in the opposite one, so that workers never miss a store that is ours:
lock on `data_dir`, listening sockets, embedded stores, outbox drainer, control plane, workers. SIGTERM and SIGINT
drain; a second one cuts the draining short. This file knows nothing of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from proxy import __version__, logs
from proxy.admin import app as admin
from proxy.cache_report import read_report
from proxy.cached_entries import read_cached
from proxy.channel import Begin
from proxy.credentials import digest, new_admin_key
from proxy.errors import StoreUnavailable
from proxy.listening import listening, own_url, url_of
from proxy.metrics import Metrics, add_up, render
from proxy.rebuild import Rebuild
from proxy.records import USAGE_FILE_NAME
from proxy.reload import Reloads
from proxy.spool import SPOOL_FOLDER_NAME
from proxy.store.audit import read_entries
from proxy.store.cluster import AnswerStore, answer_store
from proxy.store.connection import NO_EVICTION, Store
from proxy.store.embedded import EmbeddedStore, Purpose
from proxy.store.keys import Keys
from proxy.store.outbox import Drainer
from proxy.store.purges import purge
from proxy.store.reservations import probe
from proxy.store.resets import reset
from proxy.store.rooms import look
from proxy.workers import Workers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
    from pathlib import Path

    from policies.cacheability import Keyed
    from policies.limits import BoundLimit
    from policies.room import Room
    from proxy.cache_report import CacheReport
    from proxy.cached_entries import CachedEntry
    from proxy.config import Configuration
    from proxy.config_file import ConfigurationFile
    from proxy.store.audit import Entry, Event, Stretch
    from proxy.store.purges import Purged, Scope
    from proxy.store.resets import Reset

EVICTION_INTERVAL_SECONDS = 2.0
"""How often the state store is asked whether it evicts: it may have been away at the start, or be another by now."""

_MADE_KEY_NAME = "made-at-start"
"""What audit records call the admin key that is made where none is configured."""

_LOCK_NAME = "gateway.lock"
_LOCK_BYTES = 32

_log = structlog.get_logger("tidegate.supervisor")


class CannotStart(Exception):  # noqa: N818  it says what happened
    """The gateway cannot start here; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a gateway that is up answers, and the admin key that was made for it because none is configured."""

    data_url: str
    admin_url: str
    made_admin_key: str | None


async def supervise(
    configuration: Configuration, announce: Callable[[Listening], None], file: ConfigurationFile | None = None
) -> None:
    """Run a gateway until SIGTERM or SIGINT, then drain it.

    `announce` is called when it serves, and again when a reload leaves it without an admin key, so that one is made.
    `file` is what the configuration was read from, and is read again on SIGHUP and when it changes.
    Raises CannotStart, CannotListen, StoreUnavailable (an embedded store does not come up) or WorkersFailed.
    """
    async with contextlib.AsyncExitStack() as opened:
        opened.enter_context(_locked(configuration.data_dir))
        _check_records_can_be_kept(configuration.data_dir)
        ports = opened.enter_context(
            listening(configuration.listen_address, setting="listen", count=configuration.workers)
        )
        [admin_port] = opened.enter_context(
            listening(configuration.admin_listen_address, setting="admin_listen", count=1)
        )
        logs.configure()
        metrics = Metrics()
        reloads = Reloads(file, configuration, metrics)
        ending = opened.enter_context(_ending(reloads.ask))
        stores = await opened.enter_async_context(_stores(configuration, metrics))
        rebuild = Rebuild(stores.state, configuration, metrics)
        await opened.enter_async_context(_cared_for(stores.state, configuration, rebuild, metrics))
        begins = [_begin(configuration, number, stores) for number in range(configuration.workers)]
        workers = Workers(begins, ports, metrics)
        gateway = _Gateway(
            configuration,
            workers=workers,
            stores=stores,
            rebuild=rebuild,
            metrics=metrics,
            ending=ending,
            data_url=own_url(*ports[0].getsockname()[:2]),
            announce=lambda key: announce(Listening(url_of(ports[0]), url_of(admin_port), key)),
        )
        serving = admin.control_plane(gateway, lambda: gateway.access)
        await opened.enter_async_context(contextlib.asynccontextmanager(admin.serve)(serving, admin_port))
        await opened.enter_async_context(workers)
        if await _is_up(workers, ending):
            gateway.tell()
            async with _in_background(reloads.follow(gateway.take), "reload", metrics):
                await ending.asked.wait()
        drain_seconds = gateway.configuration.drain_timeout_seconds
        _log.info("draining", timeout_seconds=drain_seconds)
        for port in ports:
            port.close()
        await workers.drain(drain_seconds, ending.hurried)


@dataclass(frozen=True, slots=True)
class _Ending:
    """Set by signals: the gateway shall end, and it shall not wait for answers under way."""

    asked: asyncio.Event
    hurried: asyncio.Event


@contextlib.contextmanager
def _ending(reload: Callable[[], object]) -> Iterator[_Ending]:
    ending = _Ending(asyncio.Event(), asyncio.Event())

    def ask() -> None:
        (ending.hurried if ending.asked.is_set() else ending.asked).set()

    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, ask)
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield ending
    finally:
        for number in (*signals, signal.SIGHUP):
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    """Keep every other gateway off the folder; the lock goes when the process does, however it ends."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(data_dir / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise CannotStart(
            f"data_dir {data_dir} cannot be used ({error.strerror}): make it writable or set another `data_dir`"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, _LOCK_BYTES, 0).decode(errors="replace") or "unknown"
            raise CannotStart(
                f"data_dir {data_dir} is in use by another gateway (process {holder}): "
                "stop that one, or give this one a `data_dir` of its own"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(lock)


def _check_records_can_be_kept(data_dir: Path) -> None:
    """Find out now, rather than with the first record. Raises CannotStart."""
    usage = data_dir / USAGE_FILE_NAME
    try:
        (data_dir / SPOOL_FOLDER_NAME).mkdir(mode=0o700, exist_ok=True)
        if usage.exists():
            os.close(os.open(usage, os.O_RDWR | os.O_APPEND))
    except OSError as error:
        raise CannotStart(
            f"{error.filename} cannot be used ({error.strerror}): move it away, or set another `data_dir`"
        ) from error


@dataclass(frozen=True, slots=True)
class _Stores:
    """Where the stores are, for the workers, and the supervisor's own clients: one where one server is both."""

    state_url: str
    cache_url: str
    state: Store
    cache: AnswerStore


@contextlib.asynccontextmanager
async def _stores(configuration: Configuration, metrics: Metrics) -> AsyncIterator[_Stores]:
    """Run the stores that are ours, and keep in touch with all of them, until the end."""
    async with contextlib.AsyncExitStack() as opened:

        async def find(purpose: Purpose, url: str | None) -> str:
            if url is not None:
                return url
            return await opened.enter_async_context(_embedded(purpose, configuration, metrics))

        state_url = await find(Purpose.STATE, configuration.state_url)
        cache_url = await find(Purpose.CACHE, configuration.cache_state_url)
        keys = Keys(configuration.organization.id)
        with _addressed(Purpose.STATE) as name:
            state = Store(state_url, name=name, metrics=metrics, probe=probe(keys), anchor=keys.leases)
        opened.push_async_callback(state.close)
        await state.start()
        with _addressed(Purpose.CACHE) as name:
            cache = answer_store(cache_url, state_url=state_url, state=state, name=name, metrics=metrics)
        if cache is not state:
            opened.push_async_callback(cache.close)
            await cache.start()
        yield _Stores(state_url, cache_url, state, cache)


@contextlib.asynccontextmanager
async def _embedded(purpose: Purpose, configuration: Configuration, metrics: Metrics) -> AsyncIterator[str]:
    max_bytes = configuration.cache_store_bytes if purpose is Purpose.CACHE else None
    async with (
        EmbeddedStore(purpose, configuration.data_dir, max_bytes=max_bytes) as store,
        _in_background(store.watch(), "embedded store", metrics),
    ):
        yield store.url


@contextlib.contextmanager
def _addressed(purpose: Purpose) -> Iterator[str]:
    """Say which setting it is whose address is of no use."""
    try:
        yield purpose.value
    except ValueError as error:
        raise CannotStart(f"`{purpose.value}`: {error}") from error


@contextlib.asynccontextmanager
async def _cared_for(
    state: Store, configuration: Configuration, rebuild: Rebuild, metrics: Metrics
) -> AsyncIterator[None]:
    """Drain the outbox, watch that the store keeps what it is told, and rebuild what it has lost all the same.

    Raises CannotStart when it is set up to forget.
    """
    with contextlib.suppress(StoreUnavailable):
        fault = await _find_eviction(state)
        if fault is not None:
            raise CannotStart(fault)
    async with (
        _in_background(_watch_eviction(state, metrics), "eviction watch", metrics),
        _in_background(rebuild.watch(), "rebuild", metrics),
        Drainer(state, configuration.data_dir / USAGE_FILE_NAME, Keys(configuration.organization.id)),
    ):
        yield


async def _find_eviction(state: Store) -> str | None:
    """Say what is wrong with a store that may forget limits and unsent records when its memory is full (SPEC §10)."""
    policy = await state.eviction_policy()
    if policy in (None, NO_EVICTION):
        return None
    return (
        f"the store at `state` evicts (maxmemory-policy {policy}), which would forget limits: "
        f"set its maxmemory-policy to {NO_EVICTION}, and give `cache_state` a server of its own"
    )


async def _watch_eviction(state: Store, metrics: Metrics) -> None:
    """Tell of a store that begins to evict, or did when it came up; a gateway that serves is not ended for it."""
    told = None
    while True:
        if state.is_available:
            with contextlib.suppress(StoreUnavailable):
                fault = await _find_eviction(state)
                metrics.store_evicts.labels(state.name).set(float(fault is not None))
                if fault not in (None, told):
                    _log.error(fault)
                told = fault
        await asyncio.sleep(EVICTION_INTERVAL_SECONDS)


@contextlib.asynccontextmanager
async def _in_background(work: Coroutine[object, object, object], name: str, metrics: Metrics) -> AsyncIterator[None]:
    """Own a task while the context lasts; should it fail, that is told, and the gateway goes on without it."""

    async def guarded() -> None:
        try:
            await work
        except Exception:  # noqa: BLE001  the outermost frame of a task
            _log.exception("a background task failed", task=name)
            metrics.unhandled_errors_total.labels(name).inc()

    task = asyncio.create_task(guarded(), name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        work.close()  # a task that is cancelled before its first step has not begun it


def _begin(configuration: Configuration, worker: int, stores: _Stores) -> Begin:
    return Begin(worker, _resolved(configuration), stores.state_url, stores.cache_url)


def _resolved(configuration: Configuration) -> bytes:
    return configuration.resolved_json().encode()


def _access(configuration: Configuration, made_key: str | None) -> admin.Access:
    """Return who may use the control plane: the keys that are configured, or else the one that was made."""
    names = {key.sha256: key.name for key in configuration.admin_keys}
    if made_key is not None:
        names = {digest(made_key): _MADE_KEY_NAME}
    metrics_key = configuration.metrics_key
    return admin.Access(
        admin_keys=names,
        metrics_key=None if metrics_key is None else metrics_key.get_secret_value(),
        hosts=tuple(host.lower() for host in configuration.admin_hosts),
    )


async def _is_up(workers: Workers, ending: _Ending) -> bool:
    """Wait until all workers serve; False when the gateway shall end before that. Raises WorkersFailed."""
    ready = asyncio.ensure_future(workers.wait_ready())
    asked = asyncio.ensure_future(ending.asked.wait())
    try:
        await asyncio.wait({ready, asked}, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
        return not ending.asked.is_set()
    finally:
        ready.cancel()
        asked.cancel()


class _Gateway:
    """The gateway as a whole, with the configuration that is in force: what the control plane asks, and reloads tell.

    `announce` is told the admin key of its own making, None if there is none.
    """

    def __init__(  # noqa: PLR0913  what it stands on, by name
        self,
        configuration: Configuration,
        *,
        workers: Workers,
        stores: _Stores,
        rebuild: Rebuild,
        metrics: Metrics,
        ending: _Ending,
        data_url: str,
        announce: Callable[[str | None], None],
    ) -> None:
        self.workers = workers
        self.stores = stores
        self.rebuild = rebuild
        self.metrics = metrics
        self.ending = ending
        self.data_url = data_url
        self.announce = announce
        self._made_key: str | None = None
        self._adopt(configuration)

    def _adopt(self, configuration: Configuration) -> None:
        self.configuration = self.rebuild.configuration = configuration
        self._made_key = None if configuration.admin_keys else self._made_key or new_admin_key()
        self.access = _access(configuration, self._made_key)
        self.metrics.build_info.forget()
        self.metrics.build_info.labels(__version__, configuration.version).set(1)

    def tell(self) -> None:
        """Announce that the gateway is up."""
        self.announce(self._made_key)

    async def take(self, configuration: Configuration) -> str | None:
        """Put another configuration in force everywhere, or nowhere: then return why not."""
        fault = await self.workers.reload(_resolved(configuration))
        if fault is not None:
            return fault
        had_key = self._made_key is not None
        self._adopt(configuration)
        if self._made_key is not None and not had_key:
            self.tell()
        return None

    async def metrics_page(self) -> bytes:
        for purpose, store in ((Purpose.STATE, self.stores.state), (Purpose.CACHE, self.stores.cache)):
            self.metrics.store_up.labels(purpose.value).set(float(store.is_available))
            self.metrics.clock_skew_seconds.labels(purpose.value).set(-store.clock_offset_seconds())
        snapshots = [self.metrics.snapshot(), *await self.workers.snapshots()]
        return await asyncio.to_thread(lambda: render(add_up(snapshots)))

    async def rooms(self, limits: Sequence[BoundLimit]) -> Sequence[Room]:
        organization = self.configuration.organization
        return await look(self.stores.state, organization.id, organization.zone, limits)

    async def reset(self, limits: Sequence[BoundLimit], event: Event) -> Reset:
        organization = self.configuration.organization
        return await reset(self.stores.state, organization.id, organization.zone, limits, event)

    async def purge(self, scopes: Sequence[Scope], event: Event) -> Purged:
        return await purge(self.stores.state, self.configuration.organization.id, scopes, event)

    async def cached_entries(self, plan: Keyed) -> Sequence[CachedEntry]:
        organization = self.configuration.organization.id
        return await read_cached(self.stores.state, self.stores.cache, organization, plan)

    async def cache_report(self) -> CacheReport:
        return await read_report(self.stores.state, self.stores.cache, self.configuration.organization.id)

    def audit_entries(self, stretch: Stretch, *, oldest_first: bool) -> AsyncIterator[Entry]:
        key = Keys(self.configuration.organization.id).audit
        return read_entries(self.stores.state, key, stretch, oldest_first=oldest_first)

    def reasons_not_ready(self) -> Sequence[str]:
        reasons = [f"worker {number} is not serving" for number in self.workers.missing()]
        if not self.stores.state.is_available:
            reasons.append("the state store cannot be reached, or not be written to")
        if self.ending.asked.is_set():
            reasons.append("the gateway is ending")
        return reasons
