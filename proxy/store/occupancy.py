"""How full the server of a store is: what it holds and how much memory that takes, as it says itself.

Knows no key; what the numbers mean is known by whoever asks.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxy.store.connection import Store

if TYPE_CHECKING:
    from proxy.store.cluster import AnswerStore


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Keys on the server, its memory in bytes, and the bound of that; 0: no bound."""

    keys: int
    used_bytes: int
    max_bytes: int


async def read_occupancy(store: AnswerStore) -> Occupancy | None:
    """Ask a server; None for a cluster, which is many. Raises StoreUnavailable."""
    if not isinstance(store, Store):
        return None
    keys, memory = await asyncio.gather(store.command("DBSIZE"), store.memory())
    return Occupancy(int(keys), int(memory.get("used_memory", 0)), int(memory.get("maxmemory", 0)))
