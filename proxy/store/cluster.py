"""Cached answers on a cluster: each command goes to the primary that owns its key's slot.

A `ClusterCache` keeps one `Store` for each primary, with a breaker of its own, and a map of slots that it reads anew
when a node says that a slot is elsewhere, while a primary is away, and from time to time. A command that meets an old
map fails like any other; of a cache that is a miss. What needs one slot only, as all state of an organization does,
needs none of this: a `Store` finds that slot's primary by itself. This file knows no key and no script.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import structlog
from redis.exceptions import RedisError

from proxy.store.addresses import is_cluster, parse
from proxy.store.connection import PROBE_INTERVAL_SECONDS, TIMEOUT_SECONDS, Store, unavailable
from proxy.store.finders import SLOTS, ClusterMap, Dialer, Member, NoPrimary, slot_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from proxy.metrics import Metrics
    from proxy.store.addresses import Node
    from proxy.store.connection import Argument, Reply
    from proxy.store.finders import Range
    from proxy.store.scripts import Script

_NOBODYS = "nobody is known to have the key's slot"
MAP_SECONDS = 5.0
"""How old the map of slots may be while all is well."""

_log = structlog.get_logger(__name__)


class ClusterCache:
    """A client of all primaries of a cluster, for commands of one key each. Open with `start`, end with `close`.

    Every way to fail is `StoreUnavailable`, as with `Store`. A primary that is nearly full and evicts nothing is given
    nothing more; the others are.
    """

    def __init__(self, url: str, *, name: str, metrics: Metrics, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Take a cluster's address; raises ValueError if it is none."""
        address = parse(url)
        self.name = name
        self.timeout_seconds = timeout_seconds
        self.is_nearly_full = False
        self._metrics = metrics
        self._dialer = Dialer(address, timeout_seconds)
        self._map = ClusterMap(self._dialer, address)
        self._stores: dict[Node, Store] = {}
        self._owners: list[Store | None] = [None] * SLOTS
        self._is_doubtful = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Find the primaries and connect to them. Returns when that was tried; never raises if they are away."""
        await self._read_map()
        self._follower = asyncio.get_running_loop().create_task(self._follow(), name=f"slots of {self.name}")

    async def close(self) -> None:
        """Wait shortly for what is under way, then hang up. Commands after this fail."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait([self._follower])
        self._owners = [None] * SLOTS
        await _close(self._stores.values())

    @property
    def is_available(self) -> bool:
        """Whether every primary answered when it was last spoken to."""
        return bool(self._stores) and all(store.is_available for store in self._stores.values())

    def clock_offset_seconds(self) -> float:
        """Return the offset of the primary whose clock is furthest from ours, as `Store` does; 0 until one is heard."""
        return max((store.clock_offset_seconds() for store in self._stores.values()), key=abs, default=0.0)

    def send(self, *arguments: Argument, timeout_seconds: float | None = None) -> asyncio.Future[Reply]:
        """Let a command of one key, which stands first, leave with the others of this tick, as `Store.send` does."""
        owner = self._owner(arguments[1])
        if owner is None:
            return self._fail(_NOBODYS)
        if owner.is_nearly_full and arguments[0] == "SET":
            return self._fail("it is nearly full")
        return owner.send(*arguments, timeout_seconds=timeout_seconds)

    def send_script(
        self, script: Script, keys: Sequence[str | bytes], arguments: Sequence[Argument]
    ) -> asyncio.Future[Reply]:
        """Let a script leave whose keys are all in the slot of the first."""
        owner = self._owner(keys[0])
        return self._fail(_NOBODYS) if owner is None else owner.send_script(script, keys, arguments)

    def _owner(self, key: Argument) -> Store | None:
        return self._owners[slot_of(key if isinstance(key, str | bytes) else str(key))]

    def _fail(self, reason: str) -> asyncio.Future[Reply]:
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        reply.set_exception(unavailable(self.name, reason))
        return reply

    async def _follow(self) -> None:
        """Keep the map good, but ask no more often than one knocks at a store."""
        while True:
            await self._wait_for_doubt()
            try:
                await self._read_map()
            except Exception:  # noqa: BLE001  outermost frame: the map has to be read again
                _log.exception("the map of a cluster could not be read", store=self.name)
            await asyncio.sleep(PROBE_INTERVAL_SECONDS)

    async def _wait_for_doubt(self) -> None:
        """Return when the map may be wrong, and at the latest when it is old."""
        loop = asyncio.get_running_loop()
        old_at = loop.time() + MAP_SECONDS
        while self.is_available and loop.time() < old_at and not self._is_doubtful.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_doubtful.wait(), PROBE_INTERVAL_SECONDS)
        self._is_doubtful.clear()

    async def _read_map(self) -> None:
        """Ask for the map, and have a store for each primary in it; without an answer all stays as it was."""
        try:
            async with asyncio.timeout(self.timeout_seconds):
                ranges = await self._map.read()
        except (RedisError, OSError, TimeoutError, NoPrimary):
            return
        primaries = {each.primary for each in ranges}
        new = {node: self._store(node) for node in primaries - self._stores.keys()}
        await asyncio.gather(*(store.start() for store in new.values()))
        gone = [self._stores.pop(node) for node in self._stores.keys() - primaries]
        self._stores.update(new)
        self._owners = self._owners_of(ranges)
        await _close(gone)

    def _store(self, node: Node) -> Store:
        finder = Member(self._dialer, node, self._is_doubtful.set)
        return Store(finder, name=self.name, metrics=self._metrics, timeout_seconds=self.timeout_seconds)

    def _owners_of(self, ranges: Iterable[Range]) -> list[Store | None]:
        owners: list[Store | None] = [None] * SLOTS
        for each in ranges:
            owners[each.start : each.end + 1] = [self._stores[each.primary]] * (each.end + 1 - each.start)
        return owners


AnswerStore: TypeAlias = Store | ClusterCache
"""What may keep cached answers."""


def answer_store(url: str, *, state_url: str, state: Store, name: str, metrics: Metrics) -> AnswerStore:
    """Return what keeps the cached answers at `url`: `state` itself where one server is both.

    On a cluster that is both, answers spread over all primaries while `state` is on one. Not started, unless it is
    `state`. Raises ValueError if `url` is no address.
    """
    if is_cluster(url):
        return ClusterCache(url, name=name, metrics=metrics)
    return state if url == state_url else Store(url, name=name, metrics=metrics)


async def _close(stores: Iterable[Store]) -> None:
    await asyncio.gather(*(store.close() for store in stores))
