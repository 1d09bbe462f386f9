from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import windows
from policies.windows import MAX_COUNT, MAX_LEVEL, Calendar, Level, Rolling, Span, Tank, Unwindowed, Window, make_tank

if TYPE_CHECKING:
    from random import Random

BERLIN = ZoneInfo("Europe/Berlin")
DAY = 86_400_000
NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("per", "window"),
    [
        pytest.param(None, Unwindowed(), id="nothing is no window"),
        pytest.param("second", Rolling(1_000), id="a second refills"),
        pytest.param("minute", Rolling(60_000), id="a minute refills"),
        pytest.param("hour", Rolling(3_600_000), id="an hour refills"),
        pytest.param("day", Calendar.DAY, id="a day is the calendar's"),
        pytest.param("week", Calendar.WEEK, id="a week is the calendar's"),
        pytest.param("month", Calendar.MONTH, id="a month is the calendar's"),
        pytest.param("90s", Rolling(90_000), id="a duration refills"),
        pytest.param("1d", Rolling(DAY), id="a duration of a day refills too"),
        pytest.param("250ms", Rolling(250), id="a duration may be short"),
    ],
)
def test_windows_are_read(per: str | None, window: Window) -> None:
    assert windows.parse_window(per) == window


@pytest.mark.parametrize("per", ["", "0s", "-1s", "90", "s", "minutes", "Minute", "1.5h", "99999d", "\uff11s", "1s\n"])
def test_what_is_no_window_is_refused_with_what_can_be_written(per: str) -> None:
    with pytest.raises(ValueError, match="is no window: write second, minute"):
        windows.parse_window(per)


def milliseconds(text: str, zone: ZoneInfo = BERLIN) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp() * 1000)


@pytest.mark.parametrize(
    ("unit", "now", "start", "end"),
    [
        pytest.param(Calendar.DAY, "2026-07-01T00:00", "2026-07-01", "2026-07-02", id="a day begins at midnight"),
        pytest.param(
            Calendar.DAY, "2026-07-01T23:59:59.999", "2026-07-01", "2026-07-02", id="and ends before the next"
        ),
        pytest.param(Calendar.DAY, "2026-03-29T12:00", "2026-03-29", "2026-03-30", id="a day may have 23 hours"),
        pytest.param(Calendar.DAY, "2026-10-25T12:00", "2026-10-25", "2026-10-26", id="or 25"),
        pytest.param(
            Calendar.WEEK, "2026-11-29T12:00", "2026-11-23", "2026-11-30", id="on Sunday the week began on Monday"
        ),
        pytest.param(Calendar.WEEK, "2026-11-30T00:00", "2026-11-30", "2026-12-07", id="a week may cross months"),
        pytest.param(Calendar.MONTH, "2026-12-31T12:00", "2026-12-01", "2027-01-01", id="December ends the year"),
        pytest.param(Calendar.MONTH, "2028-02-29T12:00", "2028-02-01", "2028-03-01", id="February may be long"),
    ],
)
def test_calendar_windows_follow_the_time_zone(unit: Calendar, now: str, start: str, end: str) -> None:
    assert windows.calendar_span(unit, milliseconds(now), BERLIN) == Span(milliseconds(start), milliseconds(end))


def test_a_midnight_that_does_not_exist_is_the_first_moment_after_it() -> None:
    zone = ZoneInfo("Africa/Cairo")  # 2026-04-24 begins at 01:00
    span = windows.calendar_span(Calendar.DAY, milliseconds("2026-04-23T12:00", zone), zone)
    assert span.end == milliseconds("2026-04-24T01:00", zone)
    assert windows.calendar_span(Calendar.DAY, span.end, zone).start == span.end


@given(
    st.sampled_from(Calendar),
    st.integers(0, 4 * 10**12),
    st.sampled_from(["UTC", "Europe/Berlin", "America/Sao_Paulo"]),
)
def test_every_moment_lies_in_its_calendar_window(unit: Calendar, now: int, zone: str) -> None:
    assert windows.calendar_span(unit, now, ZoneInfo(zone)).holds(now)


@given(
    limit=st.integers(0, MAX_COUNT),
    window=st.integers(1, 10 * 366 * DAY),
    burst=st.none() | st.integers(1, MAX_COUNT),
)
def test_a_tank_is_never_faster_than_its_limit_and_always_exact(limit: int, window: int, burst: int | None) -> None:
    tank = make_tank(Rolling(window), limit, burst)
    assert tank.capacity * tank.period <= MAX_LEVEL
    assert tank.amount * window <= limit * tank.period
    assert tank.capacity <= (limit if burst is None or limit == 0 else burst)


@given(limit=st.integers(1, 10**9), window=st.integers(1_000, 31 * DAY))
def test_a_usual_tank_is_slower_by_less_than_one_in_a_million(limit: int, window: int) -> None:
    tank = make_tank(Rolling(window), limit, None)
    assert tank.amount / tank.period >= limit / window * (1 - 1e-6) or tank.amount < 10**3


steps = st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 8), st.floats(0, 1)), max_size=60)


@given(limit=st.integers(1, 20), window=st.integers(100, 20_000), burst=st.integers(1, 20), steps=steps)
def test_in_any_span_at_most_burst_and_what_refilled_passes(
    limit: int, window: int, burst: int, steps: list[tuple[int, int, float]]
) -> None:
    """Hold, then settle to less a step later: what was used in any span stays within the promise of SPEC §5."""
    tank = make_tank(Rolling(window), limit, burst)
    level, now, under_way = Level(at=0), 0, 0
    used: list[tuple[int, int]] = []
    for wait, ask, share in steps:
        now += wait
        actual = int(under_way * share)
        level = windows.take(windows.give_back(level, tank, now, held=under_way), tank, now, spend=actual)
        used.append((now, actual))
        under_way = ask if windows.fits(level, tank, ask, now) else 0
        level = windows.take(level, tank, now, hold=under_way)
    for i, (begin, _) in enumerate(used):
        for j in range(i, len(used)):
            passed = sum(amount for _, amount in used[i : j + 1])
            assert passed * window <= burst * window + limit * (used[j][0] - begin)


def test_giving_back_does_not_give_refilled_room_a_second_time() -> None:
    tank = Tank(10, 1, 1_000)
    level = windows.take(Level(at=NOW), tank, NOW, spend=10)
    level = windows.take(windows.leaked(level, tank, NOW + 10_000), tank, NOW + 10_000, spend=10)
    level = windows.give_back(level, tank, NOW + 10_000, spent=10, since=NOW)
    assert windows.left(level, tank) == 0


def test_a_tank_holds_no_more_than_is_told_apart_but_forgets_nothing_that_it_holds() -> None:
    week = Tank(11, 11, 604_800_000)
    most = windows.MAX_LEVEL // week.period
    assert windows.take(Level(at=NOW), week, NOW, hold=most + 9).held == most
    assert windows.take(Level(held=most + 5, at=NOW), week, NOW, hold=1).held == most + 5


def test_what_is_held_does_not_refill() -> None:
    tank = Tank(10, 1, 1_000)
    level = windows.take(Level(at=NOW), tank, NOW, hold=10)
    assert windows.left(windows.leaked(level, tank, NOW + DAY), tank) == 0


@pytest.mark.parametrize(
    ("level", "ask", "wait"),
    [
        pytest.param(Level(), 5, 0, id="an empty tank takes its capacity at once"),
        pytest.param(Level(spent=5), 1, 12_000, id="a full one takes one when one has refilled"),
        pytest.param(Level(spent=5, carry=4_000), 1, 8_000, id="less what has refilled of it already"),
        pytest.param(Level(spent=5), 5, 60_000, id="and all when all has"),
        pytest.param(Level(spent=2, held=3), 1, 12_000, id="what is held counts as if it were spent"),
        pytest.param(Level(), 6, None, id="more than its capacity never fits"),
    ],
)
def test_when_an_ask_fits(level: Level, ask: int, wait: int | None) -> None:
    tank = Tank(5, 1, 12_000)
    assert windows.fits_in(level, tank, ask) == wait


@given(st.integers(0, 5), st.integers(0, 11_999), st.integers(1, 5))
def test_an_ask_fits_exactly_when_it_was_said_to(spent: int, carry: int, ask: int) -> None:
    tank, level = Tank(5, 1, 12_000), Level(spent, carry if spent else 0, 0, NOW)
    wait = windows.fits_in(level, tank, ask)
    assert wait is not None
    assert windows.fits(level, tank, ask, NOW + wait)
    assert wait == 0 or not windows.fits(level, tank, ask, NOW + wait - 1)


def told_late(level: Level, tank: Tank, now: int, ends: list[tuple[int, int]]) -> Level:
    """Book requests that ended so long ago and took so much, in the order in which they are told."""
    for age, taken in ends:
        level = windows.take_late(level, tank, windows.booking_time(level, now, age), taken)
    return windows.leaked(level, tank, now)


@pytest.mark.parametrize(
    ("at", "ends", "left"),
    [
        pytest.param(0, [(18_000, 3)], Level(2, 6_000, 0, NOW), id="one has been refilling since"),
        pytest.param(0, [(18_000, 1)] * 3, Level(2, 6_000, 0, NOW), id="three that ended at once refill once"),
        pytest.param(
            0, [(18_000, 2), (6_000, 2)], Level(3, 6_000, 0, NOW), id="one after the other, as if told in time"
        ),
        pytest.param(
            0, [(6_000, 2), (18_000, 2)], Level(4, 6_000, 0, NOW), id="what comes after a later one has not refilled"
        ),
        pytest.param(NOW, [(18_000, 3)], Level(3, 0, 0, NOW), id="nor has what is older than the level"),
        pytest.param(NOW + DAY, [(0, 3)], Level(3, 0, 0, NOW), id="a level from before the clock was set back"),
        pytest.param(NOW, [(0, 4), (0, 4)], Level(5, 0, 0, NOW), id="a tank is filled to its capacity and no more"),
        pytest.param(0, [(30_000, 50)], Level(3, 6_000, 0, NOW), id="and refills from then on"),
    ],
)
def test_what_is_told_late(at: int, ends: list[tuple[int, int]], left: Level) -> None:
    assert told_late(Level(at=at), Tank(5, 1, 12_000), NOW, ends) == left


def test_a_level_above_its_capacity_stays_when_more_is_told_late() -> None:
    assert windows.take_late(Level(7, 0, 0, NOW), Tank(5, 1, 12_000), NOW, 3) == Level(7, 0, 0, NOW)


def test_what_does_not_refill_keeps_all_that_is_told_late() -> None:
    assert windows.take_late(Level(at=NOW), Tank(5), NOW, 50) == Level(50, 0, 0, NOW)


@given(ends=st.lists(st.tuples(st.integers(0, 90_000), st.integers(0, 9)), max_size=20), order=st.randoms())
def test_late_ends_refill_as_if_told_in_time_and_never_more(ends: list[tuple[int, int]], order: Random) -> None:
    tank, in_time = Tank(1_000, 1, 12_000), Level()
    ends.sort(reverse=True)
    for age, taken in ends:
        in_time = windows.take(in_time, tank, NOW - age, spend=taken)
    in_time = windows.leaked(in_time, tank, NOW)
    assert told_late(Level(), tank, NOW, ends) == in_time
    order.shuffle(ends)
    assert windows.left(told_late(Level(), tank, NOW, ends), tank) <= windows.left(in_time, tank)


def test_a_clock_that_goes_back_refills_nothing() -> None:
    tank = Tank(5, 1, 12_000)
    level = Level(5, 0, 0, NOW)
    assert windows.leaked(level, tank, NOW - DAY) == Level(5, 0, 0, NOW - DAY)
    assert windows.next_in(level, tank) == 12_000
    assert windows.empty_in(level, tank) == 60_000
