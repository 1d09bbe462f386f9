"""A gateway behind a control plane under test: it has a configuration, and a store that is away.

Tests replace what they ask of it; the control plane itself is the real one, on a real socket.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from aiohttp import ClientSession

from proxy.admin.app import Access, control_plane, serve
from proxy.config import Configuration
from proxy.config_values import Address
from proxy.errors import StoreUnavailable
from proxy.listening import listening, url_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from policies.cacheability import Keyed
    from policies.limits import BoundLimit
    from policies.room import Room
    from proxy.cache_report import CacheReport
    from proxy.cached_entries import CachedEntry
    from proxy.store.audit import Entry, Event, Stretch
    from proxy.store.purges import Purged, Scope
    from proxy.store.resets import Reset

ADMIN_KEY: Final = "admin-key"
ADMIN_KEY_NAME: Final = "ops"
METRICS_PAGE: Final = b"# the metrics page\n"


@dataclass
class QuietGateway:
    """It is ready, its page of metrics says nothing, and what needs the store fails."""

    configuration: Configuration = field(default_factory=Configuration)
    data_url: str = "http://127.0.0.1:9"

    async def metrics_page(self) -> bytes:
        """Return a page."""
        return METRICS_PAGE

    def reasons_not_ready(self) -> Sequence[str]:
        """Find none."""
        return []

    async def rooms(self, limits: Sequence[BoundLimit]) -> Sequence[Room]:
        """Fail."""
        del limits
        raise StoreUnavailable("The store is away.")

    async def reset(self, limits: Sequence[BoundLimit], event: Event) -> Reset:
        """Fail."""
        del limits, event
        raise StoreUnavailable("The store is away.")

    async def purge(self, scopes: Sequence[Scope], event: Event) -> Purged:
        """Fail."""
        del scopes, event
        raise StoreUnavailable("The store is away.")

    async def cached_entries(self, plan: Keyed) -> Sequence[CachedEntry]:
        """Fail."""
        del plan
        raise StoreUnavailable("The store is away.")

    async def cache_report(self) -> CacheReport:
        """Fail."""
        raise StoreUnavailable("The store is away.")

    async def audit_entries(self, stretch: Stretch, *, oldest_first: bool) -> AsyncIterator[Entry]:
        """Fail."""
        del stretch, oldest_first
        raise StoreUnavailable("The store is away.")
        yield  # which makes it the generator that is asked for


@contextlib.asynccontextmanager
async def plane(
    gateway: QuietGateway, *, key: str | None = ADMIN_KEY, metrics_key: str | None = None
) -> AsyncIterator[ClientSession]:
    """Open the control plane of a gateway and a client of it, which sends a key (None: none)."""
    access = Access({sha256(ADMIN_KEY.encode()).hexdigest(): ADMIN_KEY_NAME}, metrics_key, ("gateway.example",))
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    with listening(Address("127.0.0.1", 0), setting="admin_listen", count=1) as [sock]:
        serving = contextlib.asynccontextmanager(serve)(control_plane(gateway, lambda: access), sock)
        async with serving, ClientSession(url_of(sock), headers=headers) as session:
            yield session
