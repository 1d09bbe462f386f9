"""How limits stand in the store of the gateway that runs by a configuration, for commands that look and take nothing.

Finds the store as a gateway would; what is read from it is known by `proxy/store/rooms`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy import logs
from proxy.errors import StoreUnavailable
from proxy.metrics import Metrics
from proxy.store.connection import Store
from proxy.store.embedded import Purpose, find_url
from proxy.store.rooms import look

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.limits import BoundLimit
    from policies.room import Room
    from proxy.config import Configuration


async def look_live(configuration: Configuration, limits: Sequence[BoundLimit]) -> Sequence[Room]:
    """Return how limits stand, in their order; keeps the log silent. Raises StoreUnavailable, saying what to do."""
    url = configuration.state_url or find_url(Purpose.STATE, configuration.data_dir)
    if url is None:
        raise StoreUnavailable(f"no gateway runs on data_dir {configuration.data_dir}; start it")
    logs.silence()
    try:
        store = Store(url, name=Purpose.STATE.value, metrics=Metrics())
    except ValueError as error:
        raise StoreUnavailable(f"`state`: {error}") from error
    await store.start()
    try:
        return await look(store, configuration.organization.id, configuration.organization.zone, limits)
    finally:
        await store.close()
