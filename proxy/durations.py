"""Durations, counted by how long they were: what every histogram of the metrics, and whoever measures, counts with.

Knows neither what was measured nor how it is told.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

# fmt: off
BUCKETS_SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)
# fmt: on
"""Upper bounds of every latency histogram: cache hits take a millisecond, long generations ten minutes."""


class Durations:
    """How many were as long as each of `BUCKETS_SECONDS` says (not cumulated, the unbounded one last), and their sum.

    Takes the same room however many there are.
    """

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        """Begin with nothing observed."""
        self.sum = 0.0
        self.counts = [0.0] * (len(BUCKETS_SECONDS) + 1)

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self.sum += seconds

    def add(self, others: Durations) -> None:
        """Count what others have counted."""
        self.counts = [ours + theirs for ours, theirs in zip(self.counts, others.counts, strict=True)]
        self.sum += others.sum
