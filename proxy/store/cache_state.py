"""What one worker knows of purges and of fingerprints: its copy of the cache's state, and how old that is (SPEC §6).

The state stands in a hash of the organization, and every admission tells its epoch, a number that grows with each
purge and each fingerprint that is retired or lives again. A worker whose copy is of another epoch reads it anew before
it answers from the cache; one that has not heard from the store for `CONTACT_SECONDS` answers nothing from it.

Epochs are Unix milliseconds of the store, so they grow even when it loses its data. Where there is no epoch, or one
below what is known here, purges may have been lost: then all that was fetched before is purged. Knows no request, and
neither where answers are kept nor how long they live.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import structlog

from proxy.errors import StoreUnavailable
from proxy.store.keys import Keys
from proxy.store.purges import Scope
from proxy.store.reservations import forget_failure, read_epoch
from proxy.store.scripts import Script
from proxy.store.sightings import Sightings, cut, written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proxy.store.connection import Reply, Store
    from proxy.store.entries import StoredAnswer

CONTACT_SECONDS: Final = 1.0
"""How long what the store has said may be relied on."""
POLL_SECONDS: Final = 0.3
"""How often it is asked where nothing else is: a second has room for one answer that does not come."""
_MAX_READINGS: Final = 5
"""So often it is read in a row where something else is told each time."""

LIFE_MILLISECONDS: Final = 90 * 86_400_000
"""How long the state is known when no worker prolongs it; after that all that was cached is taken for purged."""
_PROLONGING_SECONDS: Final = 3_600.0

_CATCH_UP: Final = Script("catch_up")
_PURGED: Final = "purged:"
_RETIRED: Final = "retired:"
_EPOCH: Final = "epoch"

_log = structlog.get_logger(__name__)


class Origin(NamedTuple):
    """What purges ask of an answer that is stored or under way.

    `generation` is the epoch in which its fetch began, `model` the configured name; `project` and `key` are of the one
    who paid, None where nobody is known: then any of them may have.
    """

    generation: int
    model: str
    project: str | None
    key: str | None
    cache_key: str
    deployment: str

    @classmethod
    def of(cls, answer: StoredAnswer, cache_key: str) -> Self:
        """Return the origin of a stored answer."""
        payer = answer.provider
        project, key = (None, None) if payer is None else (payer.project, payer.key)
        return cls(answer.generation, answer.asked_model, project, key, cache_key, answer.deployment)


@dataclass(frozen=True, slots=True)
class Copy:
    """The hash as it was read: `purged` by field, `retired` as deployment and fingerprint with a colon between."""

    epoch: int
    purged: dict[str, int]
    retired: frozenset[str]
    newest_purge: int

    @classmethod
    def read(cls, fields: Sequence[bytes]) -> Self:
        """Read names and values in turn; what another may have put there is left out."""
        texts = [field.decode("utf-8", "replace") for field in fields]
        found = dict(zip(texts[::2], texts[1::2], strict=True))
        purged = {name: read_epoch(value.encode()) or 0 for name, value in found.items() if name.startswith(_PURGED)}
        retired = frozenset(name.removeprefix(_RETIRED) for name in found if name.startswith(_RETIRED))
        epoch = read_epoch(found.get(_EPOCH, "0").encode()) or 0
        return cls(epoch, purged, retired, max(purged.values(), default=0))

    def is_purged(self, origin: Origin) -> bool:
        """Tell whether a purge concerns an answer.

        So does the lack of an epoch in which it was fetched: it may have been lost with the purges after it.
        """
        if origin.generation > self.epoch:
            return True
        if origin.generation >= self.newest_purge:
            return False
        if origin.project is None or origin.key is None:
            return True
        return any(
            origin.generation < self.purged.get(field, 0) for field in _fields(origin.project, origin.key, origin)
        )


def _fields(project: str, key: str, origin: Origin) -> tuple[str, ...]:
    """Return where the purges stand that concern an answer."""
    return (
        Scope("all").field,
        Scope("model", origin.model).field,
        Scope("project", project).field,
        Scope("key", key).field,
        Scope("entry", origin.cache_key).field,
        f"{_PURGED}deployment:{written(origin.deployment)}",
    )


class CacheState:
    """The copy of one worker. Open with `start`, end with `close`."""

    def __init__(
        self,
        store: Store,
        organization: str,
        *,
        window_seconds: float,
        on_lost: Callable[[], object] = lambda: None,
    ) -> None:
        """Take the store that counts limits, started.

        `window_seconds` is the fingerprint window. `on_lost` is called each time that the store has not been heard for
        `CONTACT_SECONDS`.
        """
        self._store = store
        self._hash = Keys(organization).cache
        self._kept_alive = (self._hash, Keys(organization).fingerprints)
        self._prolonged_at = float("-inf")
        self._on_lost = on_lost
        self._sightings = Sightings(store, Keys(organization), window_seconds=window_seconds, heard=self.note)
        self._copy = Copy.read(())
        self._told: int | None = None
        self._highest = 0
        self._heard_at = float("-inf")
        self._reading: asyncio.Future[Reply] | None = None
        self._follower: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def adopt(self, window_seconds: float) -> None:
        """Go by another fingerprint window from now on."""
        self._sightings.adopt(window_seconds)

    async def start(self) -> None:
        """Read the state, and begin to follow it. Returns when that was tried; never raises if the store is away."""
        with suppress(StoreUnavailable):
            await self.catch_up()
        self._follower = asyncio.create_task(self._follow(), name="state of the cache")
        self._watch()

    async def close(self) -> None:
        """End what goes on in the background. Nothing is current any more."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait([self._follower])
            self._follower = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heard_at = float("-inf")

    # how old the copy is

    @property
    def epoch(self) -> int:
        """The epoch of the copy: the generation of what is fetched from now on."""
        return self._copy.epoch

    @property
    def is_behind(self) -> bool:
        """Whether another epoch was told, last or ever, than the copy is of, or nothing was read yet."""
        epoch = self._copy.epoch
        return not epoch or self._told != epoch or self._highest != epoch

    @property
    def is_current(self) -> bool:
        """Whether the copy may be relied on: not behind, and asked for within `CONTACT_SECONDS` by one who was told."""
        return not self.is_behind and self._is_in_contact

    def note(self, epoch: int | None, asked_at: float) -> None:
        """Take the epoch that the store told one who had asked at that time (`time.monotonic`); None: unreadable.

        One that is lower than the copy's may have been told before it was read, or the store has lost data: the copy is
        behind until that is known.
        """
        self._told = epoch
        if epoch is not None and epoch > self._highest:
            self._highest = epoch
        self._heard_at = max(self._heard_at, asked_at)
        if self._timer is None and self._follower is not None and self._is_in_contact:
            self._watch()

    async def catch_up(self) -> None:
        """Read the state anew if the copy is behind; all who wait share one reading. Raises StoreUnavailable."""
        for _ in range(_MAX_READINGS):
            if not self.is_behind:
                return
            if self._reading is None:
                self._reading = self._read()
            await asyncio.shield(self._reading)
        if self.is_behind:
            raise StoreUnavailable("The epoch of the cache does not stand still enough to be read.")

    # what is known

    def is_purged(self, origin: Origin) -> bool:
        """Tell whether an answer must not be served any more since it was purged."""
        return self._copy.is_purged(origin)

    def is_retired(self, deployment: str, fingerprint: str | None) -> bool:
        """Tell whether a deployment no longer shows a fingerprint; of an answer without one nothing is known."""
        if not self._copy.retired or not fingerprint:
            return False
        return f"{written(deployment)}:{cut(fingerprint)}" in self._copy.retired

    def see(self, deployment: str, model: str, fingerprint: str | None) -> None:
        """Note what an upstream has answered with: no stored answer ever is. Returns at once and never fails."""
        if fingerprint:
            self._sightings.see(deployment, model, fingerprint)

    # behind the scenes

    @property
    def _is_in_contact(self) -> bool:
        return time.monotonic() - self._heard_at < CONTACT_SECONDS

    def _read(self) -> asyncio.Future[Reply]:
        asked_at = time.monotonic()
        reply = self._store.send_script(_CATCH_UP, [self._hash], [self._highest])
        reply.add_done_callback(lambda reply: self._take(reply, asked_at))
        return reply

    def _take(self, reply: asyncio.Future[Reply], asked_at: float) -> None:
        self._reading = None
        if reply.cancelled() or reply.exception() is not None:
            return
        is_lost, *fields = reply.result()
        before, self._copy = self._copy, Copy.read(fields)
        if is_lost:
            tell = _log.warning if before.epoch else _log.info
            tell("what was cached before is not served: the store does not know what was purged", known=before.epoch)
        self.note(self._copy.epoch, asked_at)  # something newer may have been told meanwhile: then it is still behind

    def _watch(self) -> None:
        """Wait until the store has not been heard for too long, and say so once."""
        left = self._heard_at + CONTACT_SECONDS - time.monotonic()
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(left, self._watch)
        else:
            self._timer = None
            self._on_lost()

    async def _follow(self) -> None:
        """Ask for the epoch where no admission is told it, so that a quiet worker is current too."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                self._sightings.tell_the_rest()
                await self._ask()
                self._prolong()
            except StoreUnavailable:
                pass  # it is asked again, and whoever needs it is told that nothing is current
            except Exception:  # noqa: BLE001  the outermost frame of a task
                _log.exception("the state of the cache cannot be followed")

    def _prolong(self) -> None:
        """Let the state live on, from time to time."""
        now = time.monotonic()
        if now - self._prolonged_at >= _PROLONGING_SECONDS:
            self._prolonged_at = now
            for key in self._kept_alive:
                self._store.send("PEXPIRE", key, LIFE_MILLISECONDS).add_done_callback(forget_failure)

    async def _ask(self) -> None:
        asked_at = time.monotonic()
        if asked_at - self._heard_at >= POLL_SECONDS:
            self.note(read_epoch(await self._store.command("HGET", self._hash, _EPOCH)), asked_at)
        await self.catch_up()
