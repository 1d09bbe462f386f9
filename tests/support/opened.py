"""A connection to a store as a command has one that asks once."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from proxy.metrics import Metrics
from proxy.store.connection import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    """Open the store at an address."""
    store = Store(url, name="state", metrics=Metrics())
    await store.start()
    try:
        yield store
    finally:
        await store.close()
