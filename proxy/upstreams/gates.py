"""How many attempts one worker has under way at each upstream, and the line of those who wait for room (SPEC §8).

One event loop uses a gate, so that nothing here is awaited but a place. Knows nothing of requests, deployments and
the order in which they are tried, nor how many workers share an upstream's cap but by `share_of`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from proxy.errors import UpstreamBusy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.metrics import Metrics

    Place = asyncio.Future[int | None]
    """What a waiter is told: which of its gates it has entered; None when its time is over."""


def share_of(cap: int, worker: int, workers: int) -> int:
    """Return one worker's part of a cap: all parts make the cap, unless it is below one for each worker."""
    return max(1, cap // workers + (worker < cap % workers))


class Gate:
    """The attempts under way at one upstream, at most `room` at once (None: any number), and the line before it.

    Who has entered must leave once. Places go to those in line in the order in which they came; nobody overtakes
    them, as there is no room while somebody waits.
    """

    __slots__ = (
        *("_inside", "_line", "_queue_length", "_queue_seconds", "_room", "_waiting"),
        *("max_wait_seconds", "outstanding"),
    )

    def __init__(
        self, room: int | None, queue_length: int, max_wait_seconds: float, *, upstream: str, metrics: Metrics
    ) -> None:
        self._line: OrderedDict[Place, int] = OrderedDict()
        self._inside = metrics.upstream_outstanding.labels(upstream)
        self._waiting = metrics.upstream_waiting.labels(upstream)
        self._queue_seconds = metrics.upstream_queue_seconds.labels(upstream)
        self.outstanding = 0
        """How many attempts are under way."""
        self.adopt(room, queue_length, max_wait_seconds)

    @property
    def has_room(self) -> bool:
        """Whether an attempt may begin now."""
        return self._room is None or self.outstanding < self._room

    def try_enter(self) -> bool:
        """Enter if there is room, and tell whether there was."""
        if not self.has_room:
            return False
        self.outstanding += 1
        self._inside.inc()
        return True

    def leave(self) -> None:
        """Give a place back: the first in line has it at once, but where `adopt` has taken it away."""
        self.outstanding -= 1
        self._inside.dec()
        self._let_in()

    def adopt(self, room: int | None, queue_length: int, max_wait_seconds: float) -> None:
        """Take new bounds. More room lets in who waits; with less, those inside finish, and those in line stay."""
        self._room = room
        self._queue_length = queue_length
        self.max_wait_seconds = max_wait_seconds
        self._let_in()

    @property
    def has_line(self) -> bool:
        """Whether one more may wait."""
        return len(self._line) < self._queue_length

    def join(self, place: Place, index: int) -> None:
        """Stand in line for a place; who is let in is told `index`, and out of this line."""
        if place not in self._line:  # two deployments of a model may be at the same upstream
            self._line[place] = index
            self._waiting.inc()

    def step_out(self, place: Place) -> None:
        """Leave the line, if still in it."""
        if self._line.pop(place, None) is not None:
            self._waiting.dec()

    def _let_in(self) -> None:
        while self._line and self.has_room:
            place, index = next(iter(self._line.items()))
            self.step_out(place)
            if not place.done():  # it was cancelled, or another of its gates was first
                self.try_enter()
                place.set_result(index)

    def observe_wait(self, seconds: float) -> None:
        """Count how long somebody waited who was let in here, or nowhere."""
        self._queue_seconds.observe(seconds)


async def enter_first(gates: Sequence[Gate], *, waits: bool = True) -> int:
    """Enter the first of some gates that has room, or else whichever has room first; return which.

    Who waits stands in the lines of all gates whose lines are not full, for as long as the most patient of these
    allows. Raises UpstreamBusy when the time is over, or all lines are full, or there is no room and it does not wait.
    Cancelled, it has entered none.
    """
    for index, gate in enumerate(gates):
        if gate.try_enter():
            return index
    lines = [(index, gate) for index, gate in enumerate(gates) if waits and gate.has_line]
    if not lines:
        raise UpstreamBusy("Every upstream for this request is busy, and no place to wait is left. Send it again.")
    return await _wait(gates, lines)


async def _wait(gates: Sequence[Gate], lines: Sequence[tuple[int, Gate]]) -> int:
    loop = asyncio.get_running_loop()
    began = loop.time()
    place: Place = loop.create_future()
    longest_seconds = max(gate.max_wait_seconds for _, gate in lines)
    timer = loop.call_later(longest_seconds, _give_up, place)
    for index, gate in lines:
        gate.join(place, index)
    try:
        entered = await place
    except asyncio.CancelledError:
        if not place.cancelled() and (given := place.result()) is not None:  # in the same turn of the loop
            gates[given].leave()
        raise
    finally:
        timer.cancel()
        for _, gate in lines:
            gate.step_out(place)
    (lines[0][1] if entered is None else gates[entered]).observe_wait(loop.time() - began)
    if entered is None:
        raise UpstreamBusy(f"No upstream for this request had room within {longest_seconds:g} s. Send it again.")
    return entered


def _give_up(place: Place) -> None:
    if not place.done():
        place.set_result(None)
