"""The stores of the gateway that runs by a configuration, for commands: its limits and its cache, as they stand there.

Finds the stores as a gateway would; what is read and done is known by those who are asked for it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from proxy import logs
from proxy.cache_report import read_report
from proxy.cached_entries import read_cached
from proxy.errors import StoreUnavailable
from proxy.metrics import Metrics
from proxy.store.cluster import answer_store
from proxy.store.connection import Store
from proxy.store.embedded import Purpose, find_url
from proxy.store.keys import Keys
from proxy.store.purges import purge
from proxy.store.resets import reset
from proxy.store.rooms import look

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from policies.cacheability import Keyed
    from policies.limits import BoundLimit
    from policies.room import Room
    from proxy.cache_report import CacheReport
    from proxy.cached_entries import CachedEntry
    from proxy.config import Configuration
    from proxy.store.audit import Event
    from proxy.store.cluster import AnswerStore
    from proxy.store.purges import Purged, Scope
    from proxy.store.resets import Reset


async def look_live(configuration: Configuration, limits: Sequence[BoundLimit]) -> Sequence[Room]:
    """Return how limits stand, in their order; keeps the log silent. Raises StoreUnavailable, saying what to do."""
    organization = configuration.organization
    async with _opened(configuration) as store:
        return await look(store, organization.id, organization.zone, limits)


async def reset_live(configuration: Configuration, limits: Sequence[BoundLimit], event: Event) -> Reset:
    """Set to 0 what is used of limits, and leave an audit record; otherwise as `look_live`."""
    organization = configuration.organization
    async with _opened(configuration) as store:
        return await reset(store, organization.id, organization.zone, limits, event)


async def purge_live(configuration: Configuration, scopes: Sequence[Scope], event: Event) -> Purged:
    """Purge cached answers, and leave an audit record; otherwise as `look_live`."""
    async with _opened(configuration) as store:
        return await purge(store, configuration.organization.id, scopes, event)


async def entries_live(configuration: Configuration, plan: Keyed) -> tuple[CachedEntry, ...]:
    """Return what stands in the cache under the keys of a request; otherwise as `look_live`."""
    async with _opened(configuration) as state, _opened_cache(configuration, state) as cache:
        return await read_cached(state, cache, configuration.organization.id, plan)


async def report_live(configuration: Configuration) -> CacheReport:
    """Return the state of the cache as far as the stores have it; otherwise as `look_live`."""
    async with _opened(configuration) as state, _opened_cache(configuration, state) as cache:
        return await read_report(state, cache, configuration.organization.id)


@asynccontextmanager
async def _opened(configuration: Configuration) -> AsyncIterator[Store]:
    logs.silence()
    anchor = Keys(configuration.organization.id).leases
    with _addressed(Purpose.STATE):
        url = _url(Purpose.STATE, configuration)
        store = Store(url, name=Purpose.STATE.value, metrics=Metrics(), anchor=anchor)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def _opened_cache(configuration: Configuration, state: Store) -> AsyncIterator[AnswerStore]:
    """Open the store of cached answers, which is `state` itself where one server is both."""
    state_url, url = (_url(purpose, configuration) for purpose in (Purpose.STATE, Purpose.CACHE))
    with _addressed(Purpose.CACHE):
        store = answer_store(url, state_url=state_url, state=state, name=Purpose.CACHE.value, metrics=Metrics())
    if store is state:
        yield store
        return
    await store.start()
    try:
        yield store
    finally:
        await store.close()


def _url(purpose: Purpose, configuration: Configuration) -> str:
    """Return where a store is. Raises StoreUnavailable for an embedded one of a gateway that does not run."""
    configured = configuration.state_url if purpose is Purpose.STATE else configuration.cache_state_url
    url = configured or find_url(purpose, configuration.data_dir)
    if url is None:
        raise StoreUnavailable(f"no gateway runs on data_dir {configuration.data_dir}; start it")
    return url


@contextmanager
def _addressed(purpose: Purpose) -> Iterator[None]:
    """Say which setting it is whose address is of no use."""
    try:
        yield
    except ValueError as error:
        raise StoreUnavailable(f"`{purpose.value}`: {error}") from error
