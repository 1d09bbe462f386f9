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
import secrets
import signal
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

import structlog

from proxy import __version__, logs
from proxy.admin import app as admin
from proxy.channel import Begin
from proxy.errors import StoreUnavailable
from proxy.listening import listening, url_of
from proxy.metrics import Metrics, add_up, render
from proxy.store.connection import Store
from proxy.store.embedded import EmbeddedStore, Purpose
from proxy.store.keys import Keys
from proxy.store.outbox import Drainer
from proxy.workers import Workers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
    from pathlib import Path

    from proxy.config import Configuration

ADMIN_KEY_PREFIX = "tg-admin-"
_ADMIN_KEY_BYTES = 32
_LOCK_NAME = "gateway.lock"
_LOCK_BYTES = 32
_USAGE_NAME = "usage.jsonl"
_NO_EVICTION = "noeviction"

_log = structlog.get_logger("tidegate.supervisor")


class CannotStart(Exception):  # noqa: N818  it says what happened
    """The gateway cannot start here; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a gateway that is up answers, and the admin key that was made for it because none is configured."""

    data_url: str
    admin_url: str
    made_admin_key: str | None


async def supervise(configuration: Configuration, announce: Callable[[Listening], None]) -> None:
    """Run a gateway until SIGTERM or SIGINT, then drain it; `announce` is called once, when it serves.

    Raises CannotStart, CannotListen, StoreUnavailable (an embedded store does not come up) or WorkersFailed.
    """
    async with contextlib.AsyncExitStack() as opened:
        opened.enter_context(_locked(configuration.data_dir))
        ports = opened.enter_context(
            listening(configuration.listen_address, setting="listen", count=configuration.workers)
        )
        [admin_port] = opened.enter_context(
            listening(configuration.admin_listen_address, setting="admin_listen", count=1)
        )
        logs.configure()
        ending = opened.enter_context(_ending())
        metrics = _new_metrics(configuration)
        state_url, cache_url = await opened.enter_async_context(_stores(configuration, metrics))
        state = await opened.enter_async_context(_state(configuration, state_url, metrics))
        begins = [_begin(configuration, number, state_url, cache_url) for number in range(configuration.workers)]
        workers = Workers(begins, ports, metrics)
        made_key, access = _access(configuration)
        serving = admin.control_plane(_Gateway(workers, state, metrics, ending), access)
        await opened.enter_async_context(contextlib.asynccontextmanager(admin.serve)(serving, admin_port))
        await opened.enter_async_context(workers)
        if await _is_up(workers, ending):
            announce(Listening(url_of(ports[0]), url_of(admin_port), made_key))
            await ending.asked.wait()
        _log.info("draining", timeout_seconds=configuration.drain_timeout_seconds)
        for port in ports:
            port.close()
        await workers.drain(configuration.drain_timeout_seconds, ending.hurried)


@dataclass(frozen=True, slots=True)
class _Ending:
    """Set by signals: the gateway shall end, and it shall not wait for answers under way."""

    asked: asyncio.Event
    hurried: asyncio.Event


@contextlib.contextmanager
def _ending() -> Iterator[_Ending]:
    ending = _Ending(asyncio.Event(), asyncio.Event())

    def ask() -> None:
        (ending.hurried if ending.asked.is_set() else ending.asked).set()

    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, ask)
    # A configuration is read at the start only; whoever expects SIGHUP to read it again shall not end the gateway.
    loop.add_signal_handler(signal.SIGHUP, _log.warning, "SIGHUP does nothing yet: stop and start to reload")
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


def _new_metrics(configuration: Configuration) -> Metrics:
    metrics = Metrics()
    metrics.build_info.labels(__version__, configuration.version).set(1)
    return metrics


@contextlib.asynccontextmanager
async def _stores(configuration: Configuration, metrics: Metrics) -> AsyncIterator[tuple[str, str]]:
    """Yield the addresses of the state and the cache store; those that are ours run until the end."""
    async with contextlib.AsyncExitStack() as opened:
        urls = []
        for purpose, url in ((Purpose.STATE, configuration.state_url), (Purpose.CACHE, configuration.cache_state_url)):
            if url is None:
                embedded = await opened.enter_async_context(EmbeddedStore(purpose, configuration.data_dir))
                await opened.enter_async_context(_in_background(embedded.watch(), "embedded store", metrics))
                urls.append(embedded.url)
            else:
                urls.append(url)
        yield urls[0], urls[1]


@contextlib.asynccontextmanager
async def _state(configuration: Configuration, url: str, metrics: Metrics) -> AsyncIterator[Store]:
    """Yield the supervisor's own client of the state store, the outbox being drained through it meanwhile."""
    state = Store(url, name=Purpose.STATE.value, metrics=metrics)
    await state.start()
    try:
        await _check_eviction(state)
        usage_file = configuration.data_dir / _USAGE_NAME
        async with Drainer(state, usage_file, Keys(configuration.organization.id)):
            yield state
    finally:
        await state.close()


async def _check_eviction(state: Store) -> None:
    """Refuse a store that may forget limits and unsent records when its memory is full (SPEC §10)."""
    try:
        policy = await state.eviction_policy()
    except StoreUnavailable:
        return
    if policy not in (None, _NO_EVICTION):
        raise CannotStart(
            f"the store at `state` evicts (maxmemory-policy {policy}), which would forget limits: "
            f"set its maxmemory-policy to {_NO_EVICTION}, and give `cache_state` a server of its own"
        )


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


def _begin(configuration: Configuration, worker: int, state_url: str, cache_url: str) -> Begin:
    return Begin(worker, configuration.resolved_json().encode(), state_url, cache_url)


def _access(configuration: Configuration) -> tuple[str | None, admin.Access]:
    """Return who may use the control plane; without a configured admin key, one is made, for this run."""
    hashes = tuple(key.sha256 for key in configuration.admin_keys)
    made = None
    if not hashes:
        made = ADMIN_KEY_PREFIX + secrets.token_urlsafe(_ADMIN_KEY_BYTES)
        hashes = (sha256(made.encode()).hexdigest(),)
    metrics_key = configuration.metrics_key
    return made, admin.Access(
        admin_key_hashes=hashes,
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


@dataclass(frozen=True, slots=True)
class _Gateway:
    """What the control plane asks of the rest."""

    workers: Workers
    state: Store
    metrics: Metrics
    ending: _Ending

    async def metrics_page(self) -> bytes:
        self.metrics.store_up.labels(self.state.name).set(float(self.state.is_available))
        snapshots = [self.metrics.snapshot(), *await self.workers.snapshots()]
        return await asyncio.to_thread(lambda: render(add_up(snapshots)))

    def reasons_not_ready(self) -> Sequence[str]:
        reasons = [f"worker {number} is not serving" for number in self.workers.missing()]
        if not self.state.is_available:
            reasons.append("the state store is not reachable")
        if self.ending.asked.is_set():
            reasons.append("the gateway is ending")
        return reasons
