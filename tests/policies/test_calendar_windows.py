"""Calendar windows across clock changes and month ends, in UTC as one works them out from a zone's rules by hand.

Nothing here asks a time zone database for what is expected: an instant is written in UTC, beside it how it comes about.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.windows import Calendar, Span, calendar_span

HOUR = 3_600_000
DAY = 24 * HOUR
YEAR_1986, YEAR_2028, YEAR_2100 = 504_921_600_000, 1_830_297_600_000, 4_102_444_800_000


def utc(text: str) -> int:
    """Return Unix milliseconds of a moment in UTC such as `2026-03-28 23:00`."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def test_the_table_counts_as_one_does_by_hand() -> None:
    # To 2026 it is 56 years of 365 days and 14 leap days (1972 … 2024), then 31 days, 28 days, 27 days and 23 hours.
    assert utc("2026-03-28 23:00") == (56 * 365 + 14 + 31 + 28 + 27) * DAY + 23 * HOUR == 1_774_738_800_000


# A zone, a window, its first moment, the first moment after it, and how many hours lie between.
WINDOWS = [
    # Berlin is at +1, from 2026-03-29 01:00 UTC at +2, from 2026-10-25 01:00 UTC at +1 again.
    ("Europe/Berlin", "day", "2026-03-28 23:00", "2026-03-29 22:00", 23, "29 March: 00:00 +1 to 24:00 +2"),
    ("Europe/Berlin", "day", "2026-10-24 22:00", "2026-10-25 23:00", 25, "25 October: 00:00 +2 to 24:00 +1"),
    ("Europe/Berlin", "week", "2026-03-22 23:00", "2026-03-29 22:00", 167, "Monday 23 March +1 to Monday 30 +2"),
    ("Europe/Berlin", "week", "2026-10-18 22:00", "2026-10-25 23:00", 169, "Monday 19 October +2 to Monday 26 +1"),
    ("Europe/Berlin", "week", "2026-12-27 23:00", "2027-01-03 23:00", 168, "a week over the year's end"),
    ("Europe/Berlin", "month", "2026-01-31 23:00", "2026-02-28 23:00", 672, "February: 28 days"),
    ("Europe/Berlin", "month", "2028-01-31 23:00", "2028-02-29 23:00", 696, "February 2028: 29 days"),
    ("Europe/Berlin", "month", "2026-02-28 23:00", "2026-03-31 22:00", 743, "March: 31 days less an hour"),
    ("Europe/Berlin", "month", "2026-03-31 22:00", "2026-04-30 22:00", 720, "April: 30 days"),
    ("Europe/Berlin", "month", "2026-09-30 22:00", "2026-10-31 23:00", 745, "October: 31 days and an hour"),
    ("Europe/Berlin", "month", "2026-11-30 23:00", "2026-12-31 23:00", 744, "December ends the year"),
    # New York is at -5, from 2026-03-08 07:00 UTC at -4, from 2026-11-01 06:00 UTC at -5 again.
    ("America/New_York", "day", "2026-03-08 05:00", "2026-03-09 04:00", 23, "8 March: 00:00 -5 to 24:00 -4"),
    ("America/New_York", "day", "2026-11-01 04:00", "2026-11-02 05:00", 25, "1 November: 00:00 -4 to 24:00 -5"),
    ("America/New_York", "week", "2026-03-02 05:00", "2026-03-09 04:00", 167, "Monday 2 March -5 to Monday 9 -4"),
    ("America/New_York", "week", "2026-10-26 04:00", "2026-11-02 05:00", 169, "Monday 26 October -4 to Monday 2 -5"),
    ("America/New_York", "month", "2028-02-01 05:00", "2028-03-01 05:00", 696, "February 2028: 29 days"),
    ("America/New_York", "month", "2026-03-01 05:00", "2026-04-01 04:00", 743, "March: 31 days less an hour"),
    ("America/New_York", "month", "2026-06-01 04:00", "2026-07-01 04:00", 720, "June: 30 days"),
    ("America/New_York", "month", "2026-11-01 04:00", "2026-12-01 05:00", 721, "November: 30 days and an hour"),
    ("America/New_York", "month", "2026-12-01 05:00", "2027-01-01 05:00", 744, "December ends the year"),
    # Beirut goes from +2 to +3 at the midnight of 29 March, and from +3 to +2 at that of 25 October 2026: the first
    # midnight does not exist, and after the second would-be midnight it is 23:00 of the 24th once more.
    ("Asia/Beirut", "day", "2026-03-27 22:00", "2026-03-28 22:00", 24, "28 March ends at 24:00 +2"),
    ("Asia/Beirut", "day", "2026-03-28 22:00", "2026-03-29 21:00", 23, "29 March begins at 01:00 +3"),
    ("Asia/Beirut", "day", "2026-10-23 21:00", "2026-10-24 22:00", 25, "24 October: 00:00 +3 to 24:00 +2"),
    ("Asia/Beirut", "day", "2026-10-24 22:00", "2026-10-25 22:00", 24, "25 October begins at 00:00 +2"),
    ("Asia/Beirut", "week", "2026-03-22 22:00", "2026-03-29 21:00", 167, "Monday 23 March +2 to Monday 30 +3"),
    ("Asia/Beirut", "month", "2026-09-30 21:00", "2026-10-31 22:00", 745, "October: 31 days and an hour"),
    # Lord Howe is half an hour off: at +11, from 2026-04-04 15:00 UTC at +10:30, from 2026-10-03 15:30 UTC at +11.
    ("Australia/Lord_Howe", "day", "2026-04-04 13:00", "2026-04-05 13:30", 24.5, "5 April: half an hour more"),
    ("Australia/Lord_Howe", "day", "2026-10-03 13:30", "2026-10-04 13:00", 23.5, "4 October: half an hour less"),
    ("Australia/Lord_Howe", "month", "2026-09-30 13:30", "2026-10-31 13:00", 743.5, "October: half an hour less"),
    # Apia changed sides of the date line, from -10 to +14: after Thursday, 29 December 2011 came Saturday, the 31st.
    ("Pacific/Apia", "day", "2011-12-29 10:00", "2011-12-30 10:00", 24, "29 December 2011 is followed by the 31st"),
    ("Pacific/Apia", "day", "2011-12-30 10:00", "2011-12-31 10:00", 24, "31 December 2011 follows the 29th"),
    ("Pacific/Apia", "week", "2011-12-26 10:00", "2012-01-01 10:00", 144, "a week of six days"),
    ("Pacific/Apia", "month", "2011-12-01 10:00", "2011-12-31 10:00", 720, "a December of 30 days"),
    # Havana sets its clocks back from 01:00 -4 to 00:00 -5 on 1 November 2026: midnight is there twice.
    ("America/Havana", "day", "2026-11-01 04:00", "2026-11-02 05:00", 25, "a day begins at the first of two midnights"),
    ("America/Havana", "month", "2026-10-01 04:00", "2026-11-01 04:00", 744, "and so does a month"),
    # Sao Paulo went from -3 to -2 at the midnight of 4 November 2018, and back at that of 17 February 2019.
    ("America/Sao_Paulo", "day", "2018-11-04 03:00", "2018-11-05 02:00", 23, "a day that began at 01:00"),
    ("America/Sao_Paulo", "day", "2019-02-16 02:00", "2019-02-17 03:00", 25, "a day with 23:00 twice"),
    # St John's went from -2:30 to -3:30 at 00:01 of 7 November 2010: from then on it was the 6th again for 59 minutes.
    ("America/St_Johns", "day", "2010-11-06 02:30", "2010-11-07 02:30", 24, "a day is over when midnight has come"),
    ("America/St_Johns", "day", "2010-11-07 02:30", "2010-11-08 03:30", 25, "though clocks are set back over it"),
    ("America/St_Johns", "month", "2009-11-01 02:30", "2009-12-01 03:30", 721, "and so is a month"),
    ("Asia/Kathmandu", "day", "2026-02-28 18:15", "2026-03-01 18:15", 24, "+5:45: a zone of quarters"),
]


@pytest.mark.parametrize(
    ("zone", "unit", "start", "end", "hours"),
    [pytest.param(*row[:5], id=f"{row[0].partition('/')[2]}, {row[5]}") for row in WINDOWS],
)
def test_calendar_windows_by_hand(zone: str, unit: str, start: str, end: str, hours: float) -> None:
    begins, ends, there = utc(start), utc(end), ZoneInfo(zone)
    assert ends - begins == hours * HOUR
    for now in (begins, (begins + ends) // 2, ends - 1):
        assert calendar_span(Calendar(unit), now, there) == Span(begins, ends)
    assert calendar_span(Calendar(unit), begins - 1, there).end == begins
    assert calendar_span(Calendar(unit), ends, there).start == ends


@pytest.mark.parametrize(
    ("now", "day"),
    [
        pytest.param("2010-11-07 02:29", "2010-11-06 02:30", id="23:59 for the first time"),
        pytest.param("2010-11-07 02:30", "2010-11-07 02:30", id="midnight"),
        pytest.param("2010-11-07 02:31", "2010-11-07 02:30", id="23:01 of the day before, which is over"),
        pytest.param("2010-11-07 03:30", "2010-11-07 02:30", id="midnight again"),
    ],
)
def test_a_day_that_has_begun_stays_when_clocks_are_set_back_over_its_midnight(now: str, day: str) -> None:
    assert calendar_span(Calendar.DAY, utc(now), ZoneInfo("America/St_Johns")).start == utc(day)


ODD_MIDNIGHTS = [
    "Africa/Cairo",
    "America/Asuncion",
    "America/Goose_Bay",
    "America/Havana",
    "America/Santiago",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Antarctica/Casey",
    "Asia/Amman",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Tehran",
    "Atlantic/Azores",
    "Pacific/Apia",
    "Pacific/Kwajalein",
]
"""Zones that changed their clocks at midnight or around it, or their side of the date line."""


@pytest.mark.parametrize("zone", [*ODD_MIDNIGHTS, "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"])
@pytest.mark.parametrize("unit", Calendar)
def test_windows_follow_each_other_for_forty_years(zone: str, unit: Calendar) -> None:
    there = ZoneInfo(zone)
    spans = [calendar_span(unit, YEAR_1986, there)]
    while spans[-1].end < YEAR_2028:
        spans.append(calendar_span(unit, spans[-1].end, there))
    for earlier, later in pairwise(spans):
        assert (earlier.end, earlier.start < earlier.end) == (later.start, True)
        if (later.end - later.start) % DAY:  # clocks are changed within it
            for now in range(later.start, later.end, (later.end - later.start) // 50):
                assert calendar_span(unit, now, there) == later


@given(st.sampled_from(Calendar), st.integers(0, YEAR_2100), st.sampled_from(sorted(available_timezones())))
def test_windows_meet_whatever_the_zone(unit: Calendar, now: int, zone: str) -> None:
    there = ZoneInfo(zone)
    span = calendar_span(unit, now, there)
    assert span.holds(now)
    assert calendar_span(unit, span.end, there).start == span.end
    assert calendar_span(unit, span.start - 1, there).end == span.start
