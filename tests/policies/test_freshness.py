from __future__ import annotations

import pytest

from policies.cacheability import Keyed
from policies.freshness import Fit, age_milliseconds, age_seconds, judge, left_seconds

HOUR = Keyed("k", ttl_seconds=3600)
MINUTE_AT_MOST = Keyed("k", ttl_seconds=3600, max_age_seconds=60)
NO_AGE = Keyed("k", ttl_seconds=3600, max_age_seconds=0)
ANY_FINGERPRINT = Keyed("k", ttl_seconds=3600, checks_fingerprint=False)
LONG_AGE = Keyed("k", ttl_seconds=60, max_age_seconds=3600)


@pytest.mark.parametrize(
    ("plan", "age", "expected"),
    [
        pytest.param(HOUR, 0, Fit.GOOD, id="just stored"),
        pytest.param(HOUR, 3_599_999, Fit.GOOD, id="a moment before its end"),
        pytest.param(HOUR, 3_600_000, Fit.STALE, id="at its end"),
        pytest.param(MINUTE_AT_MOST, 59_999, Fit.GOOD, id="younger than the client takes"),
        pytest.param(MINUTE_AT_MOST, 60_000, Fit.TOO_OLD, id="older than the client takes"),
        pytest.param(MINUTE_AT_MOST, 3_600_000, Fit.STALE, id="stale comes before too old"),
        pytest.param(NO_AGE, 0, Fit.TOO_OLD, id="max-age 0 takes nothing stored"),
        pytest.param(LONG_AGE, 60_000, Fit.STALE, id="max-age does not lengthen a life"),
    ],
)
def test_age_is_judged(plan: Keyed, age: int, expected: Fit) -> None:
    assert judge(plan, age) is expected


@pytest.mark.parametrize(
    ("plan", "facts", "expected"),
    [
        pytest.param(HOUR, {"is_retired": True}, Fit.RETIRED, id="a fingerprint that is shown no longer"),
        pytest.param(ANY_FINGERPRINT, {"is_retired": True}, Fit.GOOD, id="unless that is of no interest"),
        pytest.param(ANY_FINGERPRINT, {"is_purged": True}, Fit.PURGED, id="what is purged is never served"),
        pytest.param(HOUR, {"is_purged": True, "is_retired": True}, Fit.PURGED, id="a purge comes before all"),
    ],
)
def test_what_else_is_judged(plan: Keyed, facts: dict[str, bool], expected: Fit) -> None:
    assert judge(plan, 0, **facts) is expected


@pytest.mark.parametrize(
    ("created", "now", "expected"),
    [
        pytest.param(1_000, 1_000, 0, id="at once"),
        pytest.param(1_000, 3_500, 2_500, id="later"),
        pytest.param(3_500, 1_000, 0, id="a writer whose clock is ahead"),
    ],
)
def test_age_is_never_negative(created: int, now: int, expected: int) -> None:
    assert age_milliseconds(created, now) == expected


@pytest.mark.parametrize(
    ("stored_for", "expected"),
    [
        pytest.param(None, 3600, id="an entry without a life of its own"),
        pytest.param(2, 2, id="stored for less than this plan's time"),
        pytest.param(604_800, 3600, id="stored for more"),
    ],
)
def test_age_and_time_left_add_up_to_the_shorter_life(stored_for: int | None, expected: int) -> None:
    for age in (0, 999, 1_000, 1_999):
        assert age_seconds(age) + left_seconds(HOUR, age, stored_for) == expected


def test_what_is_served_past_its_end_has_nothing_left() -> None:
    assert left_seconds(HOUR, 2_500, 1) == 0
