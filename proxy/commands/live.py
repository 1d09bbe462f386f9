"""The store of the gateway that runs by a configuration, for commands: how limits stand in it, and their reset.

Finds the store as a gateway would; what is read and done is known by `proxy/store/rooms` and `proxy/store/resets`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from proxy import logs
from proxy.errors import StoreUnavailable
from proxy.metrics import Metrics
from proxy.store.connection import Store
from proxy.store.embedded import Purpose, find_url
from proxy.store.keys import Keys
from proxy.store.resets import reset
from proxy.store.rooms import look

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from policies.limits import BoundLimit
    from policies.room import Room
    from proxy.config import Configuration
    from proxy.store.audit import Event
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


@asynccontextmanager
async def _opened(configuration: Configuration) -> AsyncIterator[Store]:
    url = configuration.state_url or find_url(Purpose.STATE, configuration.data_dir)
    if url is None:
        raise StoreUnavailable(f"no gateway runs on data_dir {configuration.data_dir}; start it")
    logs.silence()
    try:
        anchor = Keys(configuration.organization.id).leases
        store = Store(url, name=Purpose.STATE.value, metrics=Metrics(), anchor=anchor)
    except ValueError as error:
        raise StoreUnavailable(f"`state`: {error}") from error
    await store.start()
    try:
        yield store
    finally:
        await store.close()
