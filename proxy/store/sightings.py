"""Which fingerprints deployments have shown: telling the store of it, and reading what all workers have told.

What is told often tells nothing, so a worker tells each fingerprint of a deployment at most ten times a window, and at
the end of such a time what it kept to itself. The layout of KEYS and ARGV of `see_fingerprint` is known here and in the
head of the script; which of them are retired is decided there, as in `policies/fingerprints`. Knows no stored answer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

import msgspec
import structlog

from policies.fingerprints import MOST_KEPT, Sighting
from policies.usage import bounded
from proxy.errors import StoreUnavailable
from proxy.store.keys import Keys
from proxy.store.reservations import store_now
from proxy.store.scripts import Script

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from proxy.store.connection import Argument, Reply, Store

_MAX_CHARACTERS: Final = 128
"""Servers may call themselves what they like; longer fingerprints are cut."""
_TELLINGS_PER_WINDOW: Final = 10
_LONGEST_SILENCE_SECONDS: Final = 60.0
_MILLISECONDS: Final = 1_000

_SEE: Final = Script("see_fingerprint")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Shown:
    """What one deployment has shown: the model that it was last asked for, and its fingerprints, by the first time."""

    deployment: str
    model: str
    sightings: tuple[Sighting, ...]


@dataclass(slots=True)
class _Told:
    """What one worker told of a fingerprint: when (monotonic), and of which later showing it did not yet (Unix ms)."""

    at: float
    model: str
    untold: int = 0


class Sightings:
    """What one worker has seen of fingerprints; `heard` is called with the epoch in answer, and when it was asked."""

    def __init__(self, store: Store, keys: Keys, *, window_seconds: float, heard: Callable[[int, float], None]) -> None:
        """Take a store; `window_seconds` is how long a fingerprint may be missing before it is retired."""
        self._store = store
        self._called = [keys.cache, keys.fingerprints]
        self._heard = heard
        self._told: dict[str, dict[str, _Told]] = {}
        self.adopt(window_seconds)

    def adopt(self, window_seconds: float) -> None:
        """Go by another window from now on."""
        self._window = round(window_seconds * _MILLISECONDS)
        self._silence = min(window_seconds / _TELLINGS_PER_WINDOW, _LONGEST_SILENCE_SECONDS)

    def see(self, deployment: str, model: str, fingerprint: str) -> None:
        """Note that an upstream has answered with a fingerprint. Returns at once and never fails."""
        fingerprint, now = cut(fingerprint), time.monotonic()
        told = self._told.setdefault(deployment, {})
        before = told.get(fingerprint)
        if before is None:
            if len(told) >= MOST_KEPT and not self._make_room(told, now):
                return  # it shows another one each time: nothing can be told from them
            before = told[fingerprint] = _Told(now, model)
        elif now - before.at < self._silence:
            before.untold, before.model = store_now(self._store), model
            return
        before.model = model
        self._tell(deployment, fingerprint, before, store_now(self._store))

    def tell_the_rest(self) -> None:
        """Tell what was kept back for long enough. Returns at once and never fails."""
        now = time.monotonic()
        for deployment, told in self._told.items():
            for fingerprint, each in told.items():
                if each.untold and now - each.at >= self._silence:
                    self._tell(deployment, fingerprint, each, each.untold)

    def _make_room(self, told: dict[str, _Told], now: float) -> bool:
        """Forget the fingerprint that was told of longest ago, unless that was just now; say whether there is room."""
        oldest = min(told, key=lambda fingerprint: told[fingerprint].at)
        if now - told[oldest].at < self._silence:
            return False
        del told[oldest]
        return True

    def _tell(self, deployment: str, fingerprint: str, told: _Told, at: int) -> None:
        told.at, told.untold = time.monotonic(), 0
        arguments: list[Argument] = [written(deployment), told.model, fingerprint, at, self._window, MOST_KEPT]
        reply = self._store.send_script(_SEE, self._called, arguments)
        asked_at = told.at

        def finish(reply: asyncio.Future[Reply]) -> None:
            error = None if reply.cancelled() else reply.exception()
            if reply.cancelled() or isinstance(error, StoreUnavailable):
                told.untold = max(told.untold, at)
            elif error is not None:
                _log.error("a fingerprint could not be told", deployment=deployment, exc_info=error)
            else:
                self._heard(reply.result(), asked_at)

        reply.add_done_callback(finish)


async def read_fingerprints(store: Store, organization: str) -> tuple[Shown, ...]:
    """Return what all deployments have shown, in alphabetical order. Raises StoreUnavailable."""
    fields = iter(await store.command("HGETALL", Keys(organization).fingerprints))
    found = (_read(deployment, packed) for deployment, packed in zip(fields, fields, strict=True))
    return tuple(sorted((each for each in found if each is not None), key=lambda each: each.deployment))


def _read(deployment: bytes, packed: bytes) -> Shown | None:
    """Read what one deployment has shown; None for what another may have put there."""
    try:
        model, sightings = _decode(packed)
        name = unquote(deployment.decode())
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return Shown(name, model, tuple(sorted(sightings, key=lambda each: each.first)))


@lru_cache(maxsize=4_096)
def written(deployment: str) -> str:
    """Write a deployment's name so that it can stand before a colon."""
    return quote(deployment, safe="/")


def cut(fingerprint: str) -> str:
    """Return a fingerprint as it is told: never longer than so much, and text in UTF-8."""
    return bounded(fingerprint, _MAX_CHARACTERS) or ""


_decode: Final = msgspec.msgpack.Decoder(tuple[str, tuple[Sighting, ...]]).decode
