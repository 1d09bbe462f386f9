"""Those who close the books of a storm complain of what must not be: planted faults, one a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from bill import Line
from storm_books import Books, Span, close_books
from storm_clients import Told
from storm_log import Passing, fullest
from storm_watch import TAG, Filled, Samples
from storm_world import Promise, make_world

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WORLD = make_world(30, 10.0)
ALICE = WORLD.members[0]
RECORD: dict[str, Any] = {
    "outbox_id": "1-0",
    "request_id": "req_1",
    "outcome": "completed",
    "end_user": "r0x1.ok",
    "project": ALICE.project,
    "owner": ALICE.user,
    "key": ALICE.key,
    "model": "m",
    "status": 200,
    "cache": "bypass",
    "known": "reported",
    "waited_seconds": 0.0,
    "input_tokens": 10,
    "output_tokens": 4,
    "completions": 1,
    "cost_microdollars": 25,  # 10 x 1.5 + 4 x 2.3 = 24.2
    "held_tokens": 60,
    "held_cost_microdollars": 110,
    "saved_input_tokens": 0,
    "saved_output_tokens": 0,
}
ORPHAN = {
    **RECORD,
    "outbox_id": "2-0",
    "outcome": "orphaned",
    "known": "worst_case",
    "input_tokens": 30,
    "output_tokens": 30,
    "cost_microdollars": 114,  # 30 x 1.5 + 30 x 2.3
    "held_cost_microdollars": 114,
}
LEFT = {**RECORD, "outcome": "client_left", "known": "counted"}
BILLED = Line("r0x1", attempts=1, input_tokens=10, output_tokens=4, ended_at=5.0)


def _told(**more: Any) -> Told:  # noqa: ANN401  any member
    return Told("r0x1", ALICE, is_stream=True, started=1.0, ended=2.0, status=200, request_id="req_1", **more)


def _limit(name: str, spent: int, held: int = 0) -> Filled:
    promise = WORLD.by_name[name]
    return Filled("", promise, ALICE.scope(promise.by), spent, held)


def _close(
    records: Sequence[Mapping[str, Any]],
    line: Line,
    told: Told | None = None,
    limits: Sequence[Filled] = (),
    lost: Span | None = None,
) -> Books:
    return close_books(WORLD, [dict(each) for each in records], {line.name: line}, [told or _told()], limits, lost)


@pytest.mark.parametrize(
    ("records", "line", "told", "limits"),
    [
        pytest.param([RECORD], BILLED, _told(is_whole=True), [_limit("project-tokens", 14)], id="all books agree"),
        pytest.param([RECORD, RECORD], BILLED, None, [], id="a record that a drainer handed out twice"),
        pytest.param([ORPHAN, RECORD], BILLED, None, [_limit("user-usd", 25)], id="a truth after an orphan"),
        pytest.param([ORPHAN], BILLED, None, [_limit("user-usd", 114)], id="an orphan at its worst case"),
        pytest.param(
            [LEFT],
            Line("r0x1", 1, 10, 6),
            _told(is_left=True, events=3),
            [],
            id="one that left, charged between what it got and what was written",
        ),
    ],
)
def test_they_are_content_with(
    records: Sequence[Mapping[str, Any]], line: Line, told: Told | None, limits: Sequence[Filled]
) -> None:
    assert _close(records, line, told, limits).violations == []


@pytest.mark.parametrize(
    ("records", "line", "told", "limits", "complaint"),
    [
        pytest.param([RECORD], Line("r0x1", 1, 10, 5), None, [], "billed 10+5", id="a token too few"),
        pytest.param(
            [{**RECORD, "cost_microdollars": 24}], BILLED, None, [], "24 micro-dollars", id="a price rounded down"
        ),
        pytest.param(
            [RECORD, {**RECORD, "outbox_id": "3-0"}], BILLED, None, [], "charged 2 times", id="a request charged twice"
        ),
        pytest.param(
            [RECORD, {**RECORD, "request_id": "req_2", "outbox_id": "3-0"}],
            BILLED,
            None,
            [],
            "sent once",
            id="a request charged twice under two ids",
        ),
        pytest.param([RECORD], BILLED, None, [_limit("project-tokens", 15)], "says 15", id="a limit that counts more"),
        pytest.param([RECORD], BILLED, None, [_limit("user-usd", 24)], "says 24", id="a limit that counts less"),
        pytest.param(
            [RECORD], BILLED, None, [_limit("user-concurrency", 0, 1)], "still holds 1", id="room that is held for ever"
        ),
        pytest.param(
            [{**ORPHAN, "held_tokens": 61}], BILLED, None, [], "held (61, 114)", id="an orphan below its worst case"
        ),
        pytest.param([ORPHAN], Line("r0x1", 1, 40, 30), None, [], "charged only", id="an orphan below the bill"),
        pytest.param(
            [ORPHAN], BILLED, _told(is_whole=True), [], "is an orphan", id="an orphan that was answered to its end"
        ),
        pytest.param(
            [LEFT], Line("r0x1", 1, 10, 6), _told(is_left=True, events=5), [], "had 5", id="one that left with more"
        ),
        pytest.param([LEFT], Line("r0x1", 1, 10, 3), _told(is_left=True), [], "billed 10+3", id="one charged too much"),
        pytest.param([], BILLED, None, [], "in no record", id="a line of the bill without a record"),
    ],
)
def test_they_complain_of(
    records: Sequence[Mapping[str, Any]], line: Line, told: Told | None, limits: Sequence[Filled], complaint: str
) -> None:
    assert complaint in " ".join(_close(records, line, told, limits).violations)


def test_records_may_be_missing_of_the_time_that_a_store_has_lost() -> None:
    assert _close([], BILLED, lost=Span(4.0, 6.0)).violations == []
    assert _close([], BILLED, lost=Span(5.5, 6.0)).violations != []


BUCKET = Promise("rate", "requests", 10, ("organization",), "1s", 5)


@pytest.mark.parametrize(
    ("moments", "level"),
    [
        pytest.param([0.0] * 5, 5.0, id="the burst at once"),
        pytest.param([0.0] * 5 + [0.1], 5.0, id="one more when one has refilled"),
        pytest.param([0.0] * 5 + [0.05], 5.5, id="one more too early"),
        pytest.param([0.0, 9.0, 9.0], 2.0, id="a long pause saves up no more than the burst"),
    ],
)
def test_the_most_that_passed_beyond_what_a_rate_allows(moments: Sequence[float], level: float) -> None:
    assert fullest([Passing(at, 1) for at in moments], BUCKET) == pytest.approx(level)


@pytest.mark.parametrize(
    ("parts", "held", "complaints"),
    [
        pytest.param(400, 1, 0, id="a bucket that is full"),
        pytest.param(401, 1, 1, id="a part of a unit above"),
        pytest.param(0, 6, 1, id="too much held"),
    ],
)
def test_a_sampled_moment_is_too_full(parts: int, held: int, complaints: int) -> None:
    samples = Samples(count=1)
    samples.note(Filled(TAG, BUCKET, ("org",), parts, held), now=7)
    assert len(samples.violations) == complaints
