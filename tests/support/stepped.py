"""A store whose clock the test sets: the scripts on a real server read a key where they would ask for the time.

For gateways in the test's own process. The keys' lives are the server's business and go by its real clock, so a test
begins far in the future: no calendar window ends on its own while it runs.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from proxy.store.connection import Store
from proxy.store.scripts import Script

if TYPE_CHECKING:
    import pytest
    import redis

_TIME = b"redis.call('TIME')"
_READ = b"redis.call('HMGET', 'clock', 's', 'u')"


class SteppedClock:
    """The clock of all stores in this process, from `begin` to the end of the test; times are Unix milliseconds."""

    def __init__(self, client: redis.Redis, now: int) -> None:
        """Take a client of the server, and what it is now."""
        self._client = client
        self.set(now)

    @classmethod
    def begin(cls, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, now: int) -> SteppedClock:
        """Set the clocks of all stores; `monkeypatch` sets them going again."""
        clock, written = cls(client, now), Script.__dict__["source"].func

        def source(script: Script) -> bytes:
            text: bytes = written(script)
            return text.replace(_TIME, _READ)

        monkeypatch.setattr(Script, "source", property(source))
        monkeypatch.setattr(Script, "sha", property(Script.__dict__["sha"].func))
        monkeypatch.setattr(Store, "clock_offset_seconds", lambda _store: clock.offset_seconds())
        return clock

    def offset_seconds(self) -> float:
        """Return what a store knows of the clock: what it was `told` last."""
        return (self._told + 0.5) / 1000 - time.time()

    def set(self, now: int) -> None:
        """Set the store's clock, and let everybody know it."""
        self.jump(now)
        self._told = now

    def jump(self, now: int) -> None:
        """Set the store's clock alone: gateways still believe in the time before."""
        self._client.hset("clock", mapping={"s": now // 1000, "u": now % 1000 * 1000})
