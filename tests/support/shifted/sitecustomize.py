"""A wall clock that is wrong by CLOCK_AHEAD_SECONDS, in every Python whose PYTHONPATH begins with this folder."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _shift(seconds: float, real: Callable[[], float], real_ns: Callable[[], int]) -> None:
    nanoseconds = round(seconds * 1e9)
    time.time = lambda: real() + seconds
    time.time_ns = lambda: real_ns() + nanoseconds


_shift(float(os.environ["CLOCK_AHEAD_SECONDS"]), time.time, time.time_ns)
