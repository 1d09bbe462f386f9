"""Requests of this worker that wait for room: they sleep, and are woken when some comes back (SPEC §5).

What other workers give back is found by looking again after a pause. Knows counts by their keys only; whose turn it is
is decided by the store.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class Sleepers:
    """Who sleeps, by the counts that they wait for, in the order in which they came."""

    def __init__(self) -> None:
        self._asleep: dict[str, dict[str, Sleeper]] = {}

    @contextmanager
    def place(self, request_id: str, keys: Sequence[str]) -> Iterator[Sleeper]:
        """Let a request sleep for some counts; when it no longer does, the next ones are woken."""
        sleeper = Sleeper()
        for key in keys:
            self._asleep.setdefault(key, {})[request_id] = sleeper
        try:
            yield sleeper
        finally:
            for key in keys:
                del self._asleep[key][request_id]
                if not self._asleep[key]:
                    del self._asleep[key]
            self.wake(keys)

    def wake(self, keys: Iterable[str]) -> None:
        """Wake the first one of each of some counts, in which there may be room; who is awake already is passed by."""
        for key in keys if self._asleep else ():
            sleeper = next((each for each in self._asleep.get(key, {}).values() if not each.is_awake), None)
            if sleeper is not None:
                sleeper.wake()


class Sleeper:
    """One request that waits."""

    __slots__ = ("_woken",)

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    @property
    def is_awake(self) -> bool:
        """Whether it was woken since it fell asleep last."""
        return self._woken.is_set()

    def wake(self) -> None:
        """End its sleep, or the next one if it has not begun yet."""
        self._woken.set()

    async def sleep(self, seconds: float) -> None:
        """Sleep until woken, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()
