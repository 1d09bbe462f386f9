"""The cache of one worker: answers in its memory, in front of those in the store (SPEC §6).

Finds an answer, judges whether it may be served, and keeps new ones; whatever fails is a miss. Fetches are told apart
by leases in the store, so that other processes wait for what one of them fetches. Knows no limit and no upstream.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from policies import freshness
from policies.freshness import Fit
from proxy.errors import StoreUnavailable
from proxy.store import keys as store_keys
from proxy.store.cache_state import Origin
from proxy.store.entries import StoredAnswer
from proxy.store.reservations import forget_failure
from proxy.store.scripts import Script
from proxy.wire.conversion import to_stream, to_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from policies.cacheability import Keyed
    from policies.requests.asked import Endpoint
    from proxy.memory_level import Kept, MemoryLevel
    from proxy.metrics import Metrics
    from proxy.store.cache_state import CacheState
    from proxy.store.cluster import AnswerStore
    from proxy.store.connection import Reply

LEASE_MILLISECONDS: Final = 3_000
"""How long others wait for a fetch whose process has died."""
RENEWALS_PER_LEASE: Final = 3

_MILLISECONDS: Final = 1_000
_JSON_TYPE: Final = "application/json"
_STREAM_TYPE: Final = "text/event-stream"
_LOOK_UP: Final = Script("look_up")
_HOLD: Final = Script("hold_lease")
_DROP: Final = Script("drop_lease")


class Found:
    """What a look-up came to: an answer that may be served, or why there is none.

    `fit` is None where nothing was found. `has_lease`: the fetch is for the one who asked; `is_elsewhere`: another
    process fetches. `has_failed`: the store could not be asked.
    """

    __slots__ = ("answer", "fit", "has_failed", "has_lease", "is_elsewhere")

    def __init__(self) -> None:
        """Nothing was found."""
        self.answer: StoredAnswer | None = None
        self.fit: Fit | None = None
        self.has_lease = False
        self.is_elsewhere = False
        self.has_failed = False


class AnswerCache:
    """Both levels of one worker, with what is known of purges and fingerprints."""

    def __init__(
        self, store: AnswerStore, state: CacheState, memory: MemoryLevel, *, now: Callable[[], int], metrics: Metrics
    ) -> None:
        """Take a started store and state; `now` is Unix milliseconds of the store's clock."""
        self.state = state
        self.memory = memory
        self._store = store
        self._now = now
        self._metrics = metrics
        self._leases: dict[str, str] = {}
        self._renewer: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to renew leases."""
        self._renewer = asyncio.create_task(self._renew(), name="leases of fetches")

    async def close(self) -> None:
        """Give back what is held."""
        if self._renewer is not None:
            self._renewer.cancel()
            await asyncio.wait([self._renewer])
        for key, owner in tuple(self._leases.items()):
            self.give_up(key, owner)

    # look-up

    def look_up(self, key: str, owner: str | None = None) -> LookUp:
        """Let a look-up leave at once; `owner` asks for the lease of the fetch, should nothing be found."""
        return LookUp(self, key, owner)

    def send(self, key: str, owner: str | None) -> asyncio.Future[Reply]:
        """Ask the store for one answer."""
        entry = store_keys.stored(key)
        if owner is None:
            reply = self._store.send("GET", entry)
        else:
            keys = [entry, store_keys.flight(key)]
            reply = self._store.send_script(_LOOK_UP, keys, [owner, LEASE_MILLISECONDS])
        reply.add_done_callback(forget_failure)
        return reply

    def judge(self, plan: Keyed, key: str, answer: StoredAnswer) -> Fit:
        """Tell whether a stored answer may be served."""
        return freshness.judge(
            plan,
            freshness.age_milliseconds(answer.created_milliseconds, self._now()),
            is_purged=self.state.is_purged(Origin.of(answer, key)),
            is_retired=self.state.is_retired(answer.deployment, answer.fingerprint),
        )

    def in_form(self, key: str, kept: Kept, endpoint: Endpoint, *, is_stream: bool) -> StoredAnswer | None:
        """Return an answer as a stream or whole, None if it cannot be had so."""
        if kept.answer.is_stream is is_stream:
            return kept.answer
        return self.memory.find_other_form(key, kept, lambda answer: in_form(answer, endpoint, is_stream=is_stream))

    # what is kept

    def put(self, key: str, answer: StoredAnswer) -> asyncio.Future[Reply]:
        """Keep an answer for as long as its `ttl_seconds`; the future is the store's reply."""
        self.remember(key, answer)
        life = (answer.ttl_seconds or 0) * _MILLISECONDS
        return self._store.send("SET", store_keys.stored(key), answer.pack(key), "PX", life)

    def remember(self, key: str, answer: StoredAnswer) -> Kept:
        """Keep an answer in memory."""
        kept = self.memory.put(key, answer)
        self._metrics.cache_memory_bytes.set(self.memory.size_bytes)
        self._metrics.cache_memory_entries.set(len(self.memory))
        return kept

    @property
    def is_full(self) -> bool:
        """Whether the store keeps all it is given and is nearly full."""
        return self._store.is_nearly_full

    # leases

    async def ask_for_lease(self, key: str, owner: str) -> bool:
        """Take the lease of a fetch whose stored answer cannot be served, unless somebody has it.

        Raises StoreUnavailable.
        """
        taken = await self._store.send_script(_HOLD, [store_keys.flight(key)], [owner, LEASE_MILLISECONDS])
        return bool(taken)

    def take_lease(self, key: str, owner: str) -> None:
        """Keep a lease that a look-up got, until it is given up."""
        self._leases[key] = owner

    def give_up(self, key: str, owner: str) -> None:
        """Give a lease back, unless it is another's: whoever waits for the fetch finds its answer, or may fetch."""
        if self._leases.get(key) == owner:
            del self._leases[key]
        reply = self._store.send_script(_DROP, [store_keys.flight(key)], [owner])
        reply.add_done_callback(forget_failure)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_MILLISECONDS / RENEWALS_PER_LEASE / _MILLISECONDS)
            for key, owner in self._leases.items():
                reply = self._store.send_script(_HOLD, [store_keys.flight(key)], [owner, LEASE_MILLISECONDS])
                reply.add_done_callback(forget_failure)


class LookUp:
    """One question to both levels. It has left when it is made; `read` it once it is known what was purged."""

    def __init__(self, cache: AnswerCache, key: str, owner: str | None) -> None:
        """Ask memory, and the store where that has nothing."""
        self._cache = cache
        self._key = key
        self._owner = owner
        self._kept = cache.memory.get(key)
        self._reply = cache.send(key, owner) if self._kept is None else None

    async def read(self, plan: Keyed, endpoint: Endpoint, *, is_stream: bool) -> Found:
        """Return what was found; a cache that fails finds nothing."""
        found = Found()
        state = self._cache.state
        try:
            if state.is_behind:
                await state.catch_up()
            if not state.is_current:
                found.has_failed = True
                return found
            if self._kept is not None and not self._take(found, self._kept, plan, endpoint, is_stream=is_stream):
                self._cache.memory.drop(self._key)
                self._reply = self._cache.send(self._key, self._owner)
            if self._reply is not None:
                await self._read_store(found, await self._reply, plan, endpoint, is_stream=is_stream)
        except StoreUnavailable:
            found.has_failed = True
        return found

    async def _read_store(
        self, found: Found, reply: Reply, plan: Keyed, endpoint: Endpoint, *, is_stream: bool
    ) -> None:
        if isinstance(reply, int):
            found.has_lease, found.is_elsewhere = reply == 1, reply == 0
            return
        answer = StoredAnswer.unpack(reply, self._key)
        if answer is not None:
            self._take(found, self._cache.remember(self._key, answer), plan, endpoint, is_stream=is_stream)
        if found.answer is None and self._owner is not None:
            is_ours = await self._cache.ask_for_lease(self._key, self._owner)
            found.has_lease, found.is_elsewhere = is_ours, not is_ours

    def _take(self, found: Found, kept: Kept, plan: Keyed, endpoint: Endpoint, *, is_stream: bool) -> bool:
        found.fit = self._cache.judge(plan, self._key, kept.answer)
        if found.fit is Fit.GOOD:
            found.answer = self._cache.in_form(self._key, kept, endpoint, is_stream=is_stream)
            found.fit = Fit.GOOD if found.answer is not None else None
        return found.answer is not None


def in_form(answer: StoredAnswer, endpoint: Endpoint, *, is_stream: bool) -> StoredAnswer | None:
    """Return an answer as a stream or whole; None if it cannot be converted exactly."""
    if answer.is_stream is is_stream:
        return answer
    if answer.is_stream and answer.usage is None:
        return None  # a whole answer tells its usage
    body = to_stream(endpoint, answer.body) if is_stream else to_whole(endpoint, answer.body)
    if body is None:
        return None
    content_type = _STREAM_TYPE if is_stream else _JSON_TYPE
    return replace(answer, is_stream=is_stream, content_type=content_type, body=body)
