"""Full collections: that they come, and that long ones do not come again soon. Time moves because the test moves it."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from proxy.garbage import LEAST_SECONDS, SHARE_OF_TIME, collect_seldom

if TYPE_CHECKING:
    from collections.abc import Iterator


class Ring:
    """Something that only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


class Clock:
    """A clock that goes on while one sleeps, and so long while garbage is collected; notes when it sleeps, and ends."""

    def __init__(self, collection_seconds: float, sleeps: int) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self._collection_seconds = collection_seconds
        self._sleeps = sleeps

    async def sleep(self, seconds: float) -> None:
        if len(self.slept) == self._sleeps:
            raise EOFError
        self.slept.append(seconds)
        self.now += seconds

    def count(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            self.now += self._collection_seconds


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    assert gc.get_threshold() == before


async def collect(clock: Clock) -> None:
    gc.callbacks.append(clock.count)
    try:
        with pytest.raises(EOFError):
            await collect_seldom(now=lambda: clock.now, sleep=clock.sleep)
    finally:
        gc.callbacks.remove(clock.count)


async def test_garbage_that_has_grown_old_is_collected() -> None:
    ring = Ring()
    gc.collect()
    freed = weakref.ref(ring)
    del ring
    gc.collect(1)
    assert freed() is not None
    await collect(Clock(0.0, sleeps=1))
    assert freed() is None


@pytest.mark.parametrize(
    ("took_seconds", "pause_seconds"),
    [
        pytest.param(0.001, LEAST_SECONDS, id="a short collection is followed by another in a minute"),
        pytest.param(0.6, 1200.0, id="a long one not before it is a small part of the time"),
    ],
)
async def test_the_longer_collections_take_the_rarer_they_are(took_seconds: float, pause_seconds: float) -> None:
    assert SHARE_OF_TIME == 0.0005
    clock = Clock(took_seconds, sleeps=3)
    await collect(clock)
    assert clock.slept == pytest.approx([LEAST_SECONDS, pause_seconds, pause_seconds])


async def test_no_full_collection_comes_of_itself_meanwhile() -> None:
    clock = Clock(0.0, sleeps=1)
    full: list[str] = []

    async def sleep(seconds: float) -> None:
        if full or clock.slept:
            raise EOFError
        await clock.sleep(seconds)
        gc.callbacks.append(note)
        kept = [[] for _ in range(300_000)]  # several times what CPython waits for
        gc.callbacks.remove(note)
        assert len(kept) == 300_000

    def note(phase: str, info: dict[str, int]) -> None:
        if info["generation"] == 2:
            full.append(phase)

    with pytest.raises(EOFError):
        await collect_seldom(now=lambda: clock.now, sleep=sleep)
    assert full == []
