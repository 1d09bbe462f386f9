from __future__ import annotations

import pytest

from policies.retries import (
    MAX_SAVED_RETRIES,
    Again,
    Cause,
    Failed,
    GiveUp,
    after_failure,
    asked_wait_milliseconds,
    can_spend,
    earn,
    is_retryable,
)

UNREACHABLE, STALE, REFUSED, UNKNOWN = Cause.UNREACHABLE, Cause.STALE, Cause.REFUSED, Cause.UNKNOWN


@pytest.mark.parametrize(
    ("history", "candidates", "expected"),
    [
        pytest.param([Failed(0, REFUSED)], 2, Again(1, 0), id="fail over at once"),
        pytest.param([Failed(0, UNREACHABLE)], 2, Again(1, 0), id="fail over from one that is away"),
        pytest.param([Failed(0, REFUSED, 60_000)], 2, Again(1, 0), id="a long Retry-After means the next one"),
        pytest.param([Failed(0, REFUSED)], 1, Again(0, 50), id="alone it is tried again after a pause"),
        pytest.param([Failed(0, REFUSED), Failed(0, REFUSED)], 1, Again(0, 100), id="the pause grows"),
        pytest.param([Failed(0, REFUSED, 700)], 1, Again(0, 700), id="a short Retry-After is waited for"),
        pytest.param([Failed(0, REFUSED, 1001)], 1, GiveUp(), id="a longer one is passed on"),
        pytest.param([Failed(0, REFUSED, may_repeat=False)], 1, GiveUp(), id="told not to repeat"),
        pytest.param([Failed(0, REFUSED, may_repeat=False)], 2, Again(1, 0), id="told not to repeat, there is another"),
        pytest.param([Failed(0, UNREACHABLE)], 1, Again(0, 50), id="refused connections are tried again"),
        pytest.param([Failed(0, UNREACHABLE, may_repeat=False)], 1, GiveUp(), id="slow connects are not"),
        pytest.param([Failed(0, UNKNOWN)], 2, GiveUp(), id="no answer may be billed: nothing follows"),
        pytest.param([Failed(0, STALE)], 2, Again(0, 0), id="what was not read is sent to the same one, at once"),
        pytest.param([Failed(0, REFUSED), Failed(1, STALE)], 3, Again(1, 0), id="be it the second"),
        pytest.param([Failed(0, STALE), Failed(0, UNKNOWN)], 2, GiveUp(), id="the second time it may be billed"),
        pytest.param([Failed(0, STALE), Failed(0, UNREACHABLE)], 2, Again(1, 0), id="gone altogether, so the next one"),
        pytest.param([Failed(0, REFUSED)] * 3, 1, GiveUp(), id="three attempts are all"),
        pytest.param([Failed(0, REFUSED)] * 2 + [Failed(0, STALE)], 1, GiveUp(), id="one that was not read is one too"),
        pytest.param(
            [Failed(0, REFUSED), Failed(1, REFUSED), Failed(2, REFUSED)], 5, GiveUp(), id="three in all, not each"
        ),
        pytest.param(
            [Failed(0, REFUSED, 5000), Failed(1, REFUSED, 300)], 2, Again(1, 300), id="the one that is ready sooner"
        ),
        pytest.param(
            [Failed(0, REFUSED, 200), Failed(1, REFUSED, 300)], 2, Again(0, 200), id="which may be the first again"
        ),
    ],
)
def test_what_follows_failed_attempts(history: list[Failed], candidates: int, expected: Again | GiveUp) -> None:
    assert after_failure(history, candidates, 0.0) == expected


def test_pauses_are_spread() -> None:
    waits = [after_failure([Failed(0, REFUSED)], 1, jitter) for jitter in (0.0, 0.5, 0.999)]
    assert waits == [Again(0, 50), Again(0, 75), Again(0, 100)]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, False),
        (400, False),
        (401, False),
        (404, False),
        (408, True),
        (409, False),
        (429, True),
        (500, True),
        (503, True),
        (600, False),
        (999, False),
    ],
)
def test_statuses_that_may_change(status: int, *, expected: bool) -> None:
    assert is_retryable(status) is expected


@pytest.mark.parametrize(
    ("retry_after_ms", "retry_after", "expected"),
    [
        pytest.param("6500", "7", 6500, id="milliseconds win"),
        pytest.param(None, "7", 7000, id="seconds"),
        pytest.param(None, "0.5", 500, id="a fraction"),
        pytest.param("soon", "2", 2000, id="garbage in one leaves the other"),
        pytest.param(None, "Wed, 21 Oct 2026 07:28:00 GMT", 1001, id="a date is longer than we wait"),
        pytest.param(None, "-1", None, id="the past is nothing"),
        pytest.param(None, "inf", None, id="nor is for ever"),
        pytest.param(None, "nan", None, id="nor is no number"),
        pytest.param(None, None, None, id="nothing asked"),
    ],
)
def test_the_wait_that_an_upstream_asks_for(
    retry_after_ms: str | None, retry_after: str | None, expected: int | None
) -> None:
    assert asked_wait_milliseconds(retry_after_ms, retry_after) == expected


def test_repetitions_add_a_tenth_of_the_load() -> None:
    saved, repeated = 0.0, 0
    for _ in range(1000):
        saved = earn(saved)
        if can_spend(saved):
            saved -= 1
            repeated += 1
    assert 98 <= repeated <= 100


def test_savings_are_bounded() -> None:
    saved = 0.0
    for _ in range(1000):
        saved = earn(saved)
    assert saved == MAX_SAVED_RETRIES
