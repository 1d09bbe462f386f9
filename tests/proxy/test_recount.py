from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from admitting import ORGANIZATION

from proxy import recount as module
from proxy.config import Configuration
from proxy.recount import recount
from proxy.store.dataset import DataSet

if TYPE_CHECKING:
    from pathlib import Path

    from proxy.recount import Recounted

NOON = 1_796_036_400_000  # Monday, 2026-11-30T12:00 in Berlin
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
SINCE = NOON - MINUTE
DATA = DataSet(SINCE, NOON, is_complete=False)
A_DAY = {"of": "tokens", "limit": 1_000, "per": "day", "by": ["user"], "name": "day"}
A_MONTH = {"of": "requests", "limit": 100, "per": "month", "by": ["project"], "name": "month"}
AN_HOUR = {"of": "tokens", "limit": 3_600, "per": "hour", "by": ["user"], "name": "hour"}  # one comes back a second
AT_ONCE = {"of": "concurrency", "limit": 5, "by": ["key"], "name": "at-once"}


def configuration(*limits: dict[str, Any], **more: Any) -> Configuration:  # noqa: ANN401  any setting
    plain: dict[str, Any] = {
        "organization": {"id": ORGANIZATION, "time_zone": "Europe/Berlin"},
        "upstreams": {"only": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}},
        "models": {"m": {"deployments": [{"upstream": "only"}]}},
        "policies": {"p": {"limits": limits}},
        "projects": [{"id": "proj", "policy": "p"}],
        "keys": [{"id": "key_alice", "project": "proj", "user": "alice", "sha256": "0" * 64}],
        **more,
    }
    return Configuration.model_validate(plain)


def line(request_id: str, booked: int, tokens: int = 10, **members: Any) -> bytes:  # noqa: ANN401  a record's
    """Write a record of a request that took a second."""
    record = {
        "outbox_id": f"{booked}-0",
        "request_id": request_id,
        "started_milliseconds": booked - SECOND,
        "ended_milliseconds": booked,
        "organization": ORGANIZATION,
        "project": "proj",
        "owner": "alice",
        "key": "key_alice",
        "endpoint": "completions",
        "model_asked": "m",
        "model": "m",
        "outcome": "completed",
        "input_tokens": tokens,
        "held_tokens": 50,
        **members,
    }
    return json.dumps(record).encode() + b"\n"


@pytest.fixture(params=[0, 4_096], ids=["added", "in doubt"])
def in_doubt(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Book none of the records by request, or all."""
    most: int = request.param
    monkeypatch.setattr(module, "IN_DOUBT_RECORDS", most)
    return most


def found(tmp_path: Path, lines: list[bytes], *limits: dict[str, Any], **more: Any) -> Recounted:  # noqa: ANN401
    path = tmp_path / "usage.jsonl"
    path.write_bytes(b"".join(lines))
    return recount(path, configuration(*limits, **more), DATA)


def sums(result: Recounted) -> dict[str, int]:
    """Return what is added to each limit in the end, by its name and scope; whether by request or not."""
    total: dict[str, int] = {}
    for addition in result.additions:
        total[addition.count.key] = -(-addition.recount.taken // addition.count.bound.tank.period)
    for settlement in result.in_doubt:
        for share in settlement.shares:
            total[share.key] = total.get(share.key, 0) + share.taken
    return {":".join(key.split(":")[4:5] + key.split(":")[7:8]): amount for key, amount in total.items()}


@pytest.mark.usefixtures("in_doubt")
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([line("a", SINCE - 2), line("b", SINCE - 1, 5)], {"day:alice": 15, "month:proj": 2}, id="a sum"),
        pytest.param([line("a", SINCE), line("b", NOON)], {}, id="what was booked into these data"),
        pytest.param([line("a", SINCE - 1), line("a", SINCE + 5)], {}, id="also if it was booked before as well"),
        pytest.param([line("a", SINCE - 3), line("a", SINCE - 2, 7)], {"day:alice": 7, "month:proj": 1}, id="twice"),
        pytest.param(
            [line("a", SINCE - 3, 900, outcome="orphaned"), line("a", SINCE - 2, 7)],
            {"day:alice": 7, "month:proj": 1},
            id="the truth after an orphan",
        ),
        pytest.param([line("a", SINCE - 3, 9, outcome="orphaned")], {"day:alice": 9, "month:proj": 1}, id="an orphan"),
        pytest.param([line("a", SINCE - 3, 0, outcome="rejected", held_tokens=0)], {}, id="a refusal took nothing"),
        pytest.param([line("a", NOON - 13 * HOUR)], {"month:proj": 1}, id="the day before"),
        pytest.param([line("a", NOON - 12 * HOUR + 500)], {"month:proj": 1}, id="admitted the day before"),
        pytest.param([line("a", NOON - 12 * HOUR + SECOND)], {"day:alice": 10, "month:proj": 1}, id="at midnight"),
        pytest.param([line("a", NOON - 30 * DAY)], {}, id="the month before"),
        pytest.param(
            [line("a", SINCE - 2, owner="bob", key="gone")], {"day:bob": 10, "month:proj": 1}, id="a key that has gone"
        ),
        pytest.param([line("a", SINCE - 2, model="gone")], {"day:alice": 10, "month:proj": 1}, id="a model likewise"),
        pytest.param([line("a", SINCE - 2, project="gone")], {}, id="a project without policy"),
        pytest.param([line("a", SINCE - 2, organization="org_other")], {}, id="another organization"),
        pytest.param([], {}, id="an empty file"),
    ],
)
def test_what_counted(tmp_path: Path, lines: list[bytes], expected: dict[str, int]) -> None:
    result = found(tmp_path, lines, A_DAY, A_MONTH, AT_ONCE)
    assert sums(result) == expected
    assert result.limits == len(expected)


@pytest.mark.usefixtures("in_doubt")
def test_a_bucket_is_as_full_as_it_was(tmp_path: Path) -> None:
    old, late, last = SINCE - 3 * HOUR, SINCE - 200 * SECOND, SINCE - 100 * SECOND
    result = found(tmp_path, [line("a", old, 3_000), line("b", late, 500), line("c", last, 7)], AN_HOUR)
    [addition] = result.additions
    assert result.records == 2, "one has refilled altogether"
    assert addition.recount.last == last
    assert addition.recount.taken == 407 * addition.count.bound.tank.period


def test_only_the_last_records_are_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_DOUBT_RECORDS", 2)
    lines = [line(name, SINCE - 10 + number) for number, name in enumerate("abcd")]
    result = found(tmp_path, lines, A_DAY, AN_HOUR)
    assert [each.request_id for each in result.in_doubt] == ["c", "d"]
    assert [[share.taken for share in each.shares] for each in result.in_doubt] == [[10], [10]]
    assert sums(result) == {"day:alice": 40, "hour:alice": 40}
    assert result.records == 4


@pytest.mark.parametrize(
    ("booked", "members"),
    [
        pytest.param(NOON - 13 * HOUR, {"outcome": "completed"}, id="no spool tells it any more"),
        pytest.param(SINCE - 5, {"outcome": "orphaned"}, id="its truth may yet be told"),
    ],
)
def test_what_is_not_in_doubt(tmp_path: Path, booked: int, members: dict[str, Any]) -> None:
    result = found(tmp_path, [line("a", booked - 12 * HOUR, **members)], A_MONTH)
    assert (result.records, result.in_doubt) == (1, [])


def test_broken_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    lines = [
        b"\n",
        line("a", SINCE - 3),
        b"garbage\n",
        b'{"outbox_id":"1-1","unreadable":{}}\n',
        b'{"outbox_id":"x"}\n',
    ]
    result = found(tmp_path, [*lines, line("b", SINCE - 2), line("c", SINCE - 1)[:-9]], A_DAY)
    assert (sums(result), result.unreadable) == ({"day:alice": 20}, 4)


@pytest.mark.parametrize(
    ("limits", "is_read"),
    [
        pytest.param((A_DAY,), False, id="a day"),
        pytest.param((AN_HOUR, AT_ONCE), False, id="an hour"),
        pytest.param((A_DAY, A_MONTH), True, id="a month"),
        pytest.param(({**AN_HOUR, "per": "90d"},), True, id="a long duration"),
        pytest.param((), False, id="no limit"),
    ],
)
def test_the_file_is_read_as_far_back_as_a_limit_reaches(
    tmp_path: Path, limits: tuple[dict[str, Any], ...], *, is_read: bool
) -> None:
    older = [b"garbage\n", line("a", NOON - 13 * HOUR)]
    assert found(tmp_path, older, *limits).unreadable == is_read


def test_data_that_began_before_any_window_need_no_record(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    path.write_bytes(line("a", NOON - SECOND) + line("b", NOON - HOUR))
    assert recount(path, configuration(A_DAY), DataSet(0, NOON, is_complete=False)).records == 0


def test_requests_are_remembered_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_REQUESTS", 3)
    lines = [line(name, SINCE - 10 + number) for number, name in enumerate("aabcda")]
    assert sums(found(tmp_path, lines, A_DAY)) == {"day:alice": 50}, "the first record of all is forgotten to be one"


def test_senders_that_are_forgotten_are_bound_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BINDINGS", 1)
    lines = [line(str(number), SINCE - 10 + number, owner="alice" if number % 2 else "bob") for number in range(5)]
    assert sums(found(tmp_path, lines, A_DAY)) == {"day:alice": 20, "day:bob": 30}


def test_a_reading_that_is_given_up_ends_at_the_next_line(tmp_path: Path) -> None:
    path, asked = tmp_path / "usage.jsonl", iter([False, False, True])
    path.write_bytes(b"".join(line(str(number), SINCE - 9 + number) for number in range(5)))
    assert recount(path, configuration(A_DAY), DATA, lambda: next(asked)).records == 2
