"""The limit scripts on a real server, at a time that the test sets, and a gateway's calls to them.

The very text that a gateway sends runs here; only where it asks the server for the time it reads a key instead. Nothing
expires by itself while such a clock stands or leaps: `expire` takes away what would be gone by now. Knows neither what
the scripts do nor what they are given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from proxy.store.reservations import Reservations
from proxy.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence
    from datetime import tzinfo

    import redis

    from proxy.store.keys import Keys
    from proxy.store.reservations import Count

TIME = b"redis.call('TIME')"
CLOCK = "clock"
SCRIPTS = ("admit", "settle", "look", "renew", "expired", "reset", "purge", "see_fingerprint", "catch_up")
SLACK_MILLISECONDS = 1_000
"""Life times run by the server's own clock: they are as much shorter when they are looked at, at most."""


class Clockwork:
    """Scripts at the time of the test (Unix milliseconds)."""

    def __init__(self, client: redis.Redis) -> None:
        """Take a client of an empty server."""
        self.client = client
        self.now = 0
        self._scripts = {}
        self._ends: dict[bytes, tuple[int, int]] = {}
        """When a key ends by the server's clock, and by the test's."""
        for name in SCRIPTS:
            source = Script(name).source
            assert source.count(TIME) == 1
            self._scripts[name] = client.register_script(
                source.replace(TIME, b"redis.call('HMGET', 'clock', 's', 'u')")
            )

    def at(self, now: int) -> None:
        """Set the time."""
        self.now = now
        self.client.hset(CLOCK, mapping={"s": now // 1000, "u": now % 1000 * 1000})

    def run(self, name: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:  # noqa: ANN401  a reply
        """Run a script, and remember when what it wrote will be gone."""
        reply = self._scripts[name](keys=keys, args=list(arguments))
        pipeline = self.client.pipeline(transaction=False)
        for key in keys:
            pipeline.execute_command("PEXPIRETIME", key)
            pipeline.pttl(key)
        told = iter(pipeline.execute())
        for key, moment, life in zip(map(str.encode, keys), told, told, strict=True):
            if life <= 0:
                self._ends.pop(key, None)
            elif key not in self._ends or self._ends[key][0] != moment:
                self._ends[key] = (moment, self.now + life + SLACK_MILLISECONDS)
        return reply

    def expire(self) -> list[str]:
        """Take away what would be gone by now, and return its keys."""
        gone = [key for key, (_, end) in self._ends.items() if end < self.now]
        for key in gone:
            del self._ends[key]
        if gone:
            self.client.delete(*gone)
        return [key.decode() for key in gone]


class ClockworkStore:
    """What reservations need of a store, over scripts at the time of the test: answers are there at once."""

    def __init__(self, clockwork: Clockwork) -> None:
        """Take the scripts."""
        self._clockwork = clockwork

    def send_script(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:  # noqa: ANN401
        """Run a script and return its answer itself."""
        return self._clockwork.run(script.name, keys, arguments)

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:  # noqa: ANN401
        """Run a script."""
        return self.send_script(script, keys, arguments)

    def send(self, *command: Any) -> _Done:  # noqa: ANN401
        """Run a command."""
        return _Done(self._clockwork.client.execute_command(*command))


class _Done:
    """An answer that nobody has to wait for."""

    def __init__(self, answer: Any) -> None:  # noqa: ANN401
        self._answer = answer

    def add_done_callback(self, call: Callable[[_Done], object]) -> None:
        call(self)

    def cancelled(self) -> bool:
        return False

    def exception(self) -> None:
        return None


class SteppedReservations(Reservations):
    """A gateway's reservations at the time of the test."""

    def __init__(self, clockwork: Clockwork, keys: Keys, zone: tzinfo, *, lease_seconds: float) -> None:
        """Take the scripts instead of a store."""
        super().__init__(ClockworkStore(clockwork), keys, zone, lease_seconds=lease_seconds)  # type: ignore[arg-type]
        self._clockwork = clockwork

    def now(self) -> int:
        """Return the time of the test."""
        return self._clockwork.now

    def renew_now(self, request_ids: Sequence[str], counts: Iterable[Count]) -> int:
        """Extend leases at once."""
        return _finish(self.renew(request_ids, counts))


def _finish(coroutine: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: int = end.value
        return value
    raise AssertionError
