from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.retries import (
    LONG_WAIT_MILLISECONDS,
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
UNUSABLE, BROKEN = Cause.UNUSABLE, Cause.BROKEN

NOW, SOON = "Wed, 21 Oct 2026 23:59:58 GMT", "Thu, 22 Oct 2026 00:00:02 GMT"

follows = partial(after_failure, max_attempts=3, max_wait_milliseconds=1000)


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
        pytest.param([Failed(0, REFUSED)] * 2 + [Failed(0, STALE)], 1, Again(0, 0), id="one that was not read is none"),
        pytest.param(
            [*[Failed(0, REFUSED)] * 2, Failed(0, STALE), Failed(0, REFUSED)], 1, GiveUp(), id="but its repetition is"
        ),
        pytest.param([Failed(0, STALE), Failed(0, REFUSED)], 1, Again(0, 50), id="pauses count what was read"),
        pytest.param(
            [Failed(0, STALE), Failed(0, UNREACHABLE), Failed(1, STALE)],
            3,
            Again(2, 0),
            id="what is gone a second time is like one that is away",
        ),
        pytest.param(
            [Failed(0, STALE), Failed(0, UNUSABLE), Failed(1, STALE)],
            2,
            Again(1, 100),
            id="and is tried again when no other is left",
        ),
        pytest.param([Failed(0, STALE), Failed(0, STALE)], 1, Again(0, 50), id="after a pause"),
        pytest.param([Failed(0, UNUSABLE)], 2, Again(1, 0), id="what another one can mend goes there at once"),
        pytest.param([Failed(0, UNUSABLE)], 1, GiveUp(), id="and never to the same one"),
        pytest.param([Failed(0, BROKEN)], 2, Again(1, 0), id="so does what broke"),
        pytest.param([Failed(0, BROKEN)], 1, GiveUp(), id="which may have been billed"),
        pytest.param([Failed(0, UNUSABLE), Failed(1, BROKEN)], 2, GiveUp(), id="neither of two"),
        pytest.param([Failed(0, UNUSABLE), Failed(1, BROKEN)], 3, Again(2, 0), id="the third of three"),
        pytest.param([Failed(0, UNUSABLE), Failed(1, BROKEN), Failed(2, UNUSABLE)], 9, GiveUp(), id="but three in all"),
        pytest.param(
            [Failed(0, REFUSED, 500), Failed(1, UNUSABLE)], 2, Again(0, 500), id="back to one that asked to wait"
        ),
        pytest.param([Failed(0, REFUSED, 1001), Failed(1, UNUSABLE)], 2, GiveUp(), id="but not for so long"),
        pytest.param(
            [Failed(0, REFUSED), Failed(1, BROKEN)], 2, Again(0, 100), id="or to one that was busy, after a pause"
        ),
        pytest.param([Failed(0, REFUSED, 1), Failed(0, BROKEN)], 1, GiveUp(), id="the latest of one candidate counts"),
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
    assert follows(history, candidates, 0.0) == expected


@pytest.mark.parametrize(
    ("history", "candidates", "max_attempts", "max_wait", "expected"),
    [
        pytest.param([Failed(0, REFUSED)], 2, 1, 1000, GiveUp(), id="one attempt, and no other deployment"),
        pytest.param([Failed(0, UNREACHABLE)], 2, 1, 1000, GiveUp(), id="nor for one that is away"),
        pytest.param([Failed(0, STALE)], 2, 1, 1000, Again(0, 0), id="but what was not read was no attempt"),
        pytest.param([Failed(0, STALE), Failed(0, STALE)], 2, 1, 1000, GiveUp(), id="once"),
        pytest.param([Failed(0, REFUSED), Failed(1, REFUSED)], 2, 2, 1000, GiveUp(), id="two attempts"),
        pytest.param([Failed(0, REFUSED)] * 5, 1, 6, 10_000, Again(0, 800), id="pauses of 50, 100, 200, 400, 800 ms"),
        pytest.param([Failed(0, REFUSED)] * 8, 1, 9, 10_000, Again(0, 5000), id="up to half of the longest at least"),
        pytest.param([Failed(0, REFUSED, 4000)], 1, 2, 4000, Again(0, 4000), id="a longer wait that is allowed"),
        pytest.param([Failed(0, REFUSED, 4001)], 1, 2, 4000, GiveUp(), id="and one beyond it"),
        pytest.param([Failed(0, REFUSED)], 1, 2, 0, Again(0, 0), id="no wait: again at once"),
        pytest.param([Failed(0, REFUSED, 1)], 1, 2, 0, GiveUp(), id="unless it is asked for"),
    ],
)
def test_attempts_and_waits_are_the_models(
    history: list[Failed], candidates: int, max_attempts: int, max_wait: int, expected: Again | GiveUp
) -> None:
    assert (
        after_failure(history, candidates, 0.0, max_attempts=max_attempts, max_wait_milliseconds=max_wait) == expected
    )


failures = st.lists(
    st.tuples(st.sampled_from(Cause), st.one_of(st.none(), st.integers(0, 3000)), st.booleans()), min_size=20
)


@given(failures, st.integers(1, 4), st.integers(1, 6), st.integers(0, 2000), st.floats(0, 1, exclude_max=True))
def test_whatever_fails_attempts_stay_within_their_bounds(
    causes: list[tuple[Cause, int | None, bool]], candidates: int, max_attempts: int, max_wait: int, jitter: float
) -> None:
    history: list[Failed] = []
    again: Again | GiveUp = Again(0, 0)
    while isinstance(again, Again):
        assert 0 <= again.candidate < candidates
        assert 0 <= again.wait_milliseconds <= max_wait
        before = [failed for failed in history if failed.candidate == again.candidate]
        assert all(failed.cause in {UNREACHABLE, STALE, REFUSED} for failed in before)
        assert before == [] or before[-1].cause is STALE or before[-1].may_repeat
        assert all(failed.cause is not UNKNOWN for failed in history)
        cause, wait, may_repeat = causes[len(history)]
        history.append(Failed(again.candidate, cause, wait, may_repeat))
        again = after_failure(history, candidates, jitter, max_attempts=max_attempts, max_wait_milliseconds=max_wait)
    assert len(history) <= max_attempts + any(failed.cause is STALE for failed in history)
    tried = {failed.candidate for failed in history}
    assert tried == set(range(len(tried))), "the order that was arranged is kept"
    assert len(tried) == candidates or len(history) >= max_attempts or history[-1].cause is UNKNOWN


def test_pauses_are_spread() -> None:
    waits = [follows([Failed(0, REFUSED)], 1, jitter) for jitter in (0.0, 0.5, 0.999)]
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
    ("retry_after_ms", "retry_after", "date", "expected"),
    [
        pytest.param("6500", "7", None, 6500, id="milliseconds win"),
        pytest.param(None, "7", None, 7000, id="seconds"),
        pytest.param(None, "0.5", None, 500, id="a fraction"),
        pytest.param(None, "0", None, 0, id="at once"),
        pytest.param("soon", "2", None, 2000, id="garbage in one leaves the other"),
        pytest.param("soon", SOON, NOW, 4000, id="be it a date"),
        pytest.param(None, SOON, NOW, 4000, id="a date is as far off as the answer's own says"),
        pytest.param(None, SOON, SOON, 0, id="which may be now"),
        pytest.param(None, NOW, SOON, None, id="or past"),
        pytest.param(None, SOON, None, LONG_WAIT_MILLISECONDS, id="nobody knows how far: longer than anybody waits"),
        pytest.param(None, SOON, "today", LONG_WAIT_MILLISECONDS, id="nor by a date that is none"),
        pytest.param(None, "soon", NOW, None, id="garbage asks for nothing"),
        pytest.param(None, "", NOW, None, id="nor does an empty field"),
        pytest.param(None, "-1", None, None, id="the past is nothing"),
        pytest.param(None, "inf", None, None, id="nor is for ever"),
        pytest.param(None, "nan", None, None, id="nor is no number"),
        pytest.param(None, None, NOW, None, id="nothing asked"),
    ],
)
def test_the_wait_that_an_upstream_asks_for(
    retry_after_ms: str | None, retry_after: str | None, date: str | None, expected: int | None
) -> None:
    assert asked_wait_milliseconds(retry_after_ms, retry_after, date) == expected


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
