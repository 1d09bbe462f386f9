"""Durations by how long they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from proxy.durations import BUCKETS_SECONDS, Durations

if TYPE_CHECKING:
    from collections.abc import Sequence


def counted(*seconds: float) -> Durations:
    durations = Durations()
    for each in seconds:
        durations.observe(each)
    return durations


@pytest.mark.parametrize(
    ("seconds", "counts"),
    [
        pytest.param([], {}, id="none"),
        pytest.param([0.0], {0: 1}, id="no time at all"),
        pytest.param([0.001], {0: 1}, id="a bound is within its bucket"),
        pytest.param([0.0011, 0.002], {1: 2}, id="between two bounds"),
        pytest.param([0.2, 600.0, 601.0], {7: 1, 18: 1, 19: 1}, id="what is above all bounds has a place of its own"),
    ],
)
def test_each_is_counted_once_where_it_belongs(seconds: Sequence[float], counts: dict[int, int]) -> None:
    durations = counted(*seconds)
    assert {place: count for place, count in enumerate(durations.counts) if count} == counts
    assert len(durations.counts) == len(BUCKETS_SECONDS) + 1
    assert durations.sum == pytest.approx(sum(seconds))


def test_what_was_counted_apart_is_as_if_it_were_counted_together() -> None:
    together, apart = counted(0.2, 3.0, 0.2), counted(0.2)
    apart.add(counted(3.0, 0.2))
    assert apart.counts == together.counts
    assert apart.sum == pytest.approx(together.sum)
