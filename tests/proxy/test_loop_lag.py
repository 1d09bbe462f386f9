"""How late the event loop comes, by a clock and a sleep that the test moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from proxy.loop_lag import watch_lag

if TYPE_CHECKING:
    from collections.abc import Sequence


class Stalls:
    """A clock that goes on while one sleeps, and by a stall longer than was asked for."""

    def __init__(self, stalls: Sequence[float]) -> None:
        self.stalls = list(stalls)
        self.now = 1000.0

    async def sleep(self, seconds: float) -> None:
        if not self.stalls:
            raise EOFError
        self.now += seconds + self.stalls.pop(0)


@pytest.mark.parametrize(
    ("stalls", "lags"),
    [
        pytest.param([0, 0, 0], [0, 0, 0], id="a loop that is never held up is never late"),
        pytest.param([0.02, 0, 0.01], [0.02, 0, 0.01], id="a short stop is told of once"),
        pytest.param(
            [0, 0.35, 0, 0, 0, 0],
            [0, 0.35, 0.25, 0.15, 0.05, 0],
            id="a long stop counts for all that was due meanwhile",
        ),
    ],
)
async def test_it_tells_how_late_what_is_due_ten_times_a_second_is_done(
    stalls: Sequence[float], lags: Sequence[float]
) -> None:
    clock, told = Stalls(stalls), []
    with pytest.raises(EOFError):
        await watch_lag(told.append, now=lambda: clock.now, sleep=clock.sleep)
    assert told == pytest.approx(lags, abs=1e-9)
