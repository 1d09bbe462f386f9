from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

import pytest

from proxy.commands import usage
from proxy.commands.usage import Line, Sum, sum_by
from proxy.records import USAGE_FILE_NAME
from proxy.usage_file import read_lines

if TYPE_CHECKING:
    from pathlib import Path

NOON = 1_767_268_800_000  # 2026-01-01T12:00:00Z
HOUR = 3_600_000


def line(request_id: str, **members: Any) -> bytes:  # noqa: ANN401  members of a record
    record = {
        "request_id": request_id,
        "started_milliseconds": NOON,
        "organization": "org",
        "project": "research",
        "owner": "alice",
        "key": "key_alice",
        "endpoint": "completions",
        "model": "m",
        "outcome": "completed",
        "cache": "miss",
        "input_tokens": 10,
        "output_tokens": 5,
        "cost_microdollars": 1_500_000,
        "saved_microdollars": 0,
        "outbox_id": "1-0",
        **members,
    }
    return json.dumps(record).encode() + b"\n"


LINES = [
    line("a"),
    line("b", owner="bob", model="m-b", started_milliseconds=NOON + 24 * HOUR),
    line("c", project="sales", cache="hit", input_tokens=0, output_tokens=0, cost_microdollars=0, saved_microdollars=7),
]
PROVIDED = line(
    "d",
    owner="bob",
    key="key_bob",
    started_milliseconds=NOON + 24 * HOUR,
    cache="partial",
    saved_microdollars=12,
    provided=[
        {
            "project": "sales",
            "owner": "anna",
            "is_service_account": False,
            "key": "key_anna",
            "input_tokens": 3,
            "output_tokens": 2,
            "microdollars": 4,
        },
        {
            "project": "research",
            "owner": "alice",
            "is_service_account": False,
            "key": "key_alice",
            "input_tokens": 6,
            "output_tokens": 1,
            "microdollars": 7,
        },
    ],
)
"""12 saved, of which nobody is known to have paid for one."""


def call(*arguments: str) -> int:
    parser = ArgumentParser(prog="tidegate")
    usage.add_parser(parser.add_subparsers())  # type: ignore[arg-type]  argparse's own is wider
    parsed = parser.parse_args(["usage", *arguments])
    status: int = parsed.run(parsed)
    return status


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / USAGE_FILE_NAME).write_bytes(b"".join(LINES))
    return tmp_path


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        pytest.param(("user",), {("alice",): 2, ("bob",): 1}, id="by user"),
        pytest.param(("project",), {("research",): 2, ("sales",): 1}, id="by project"),
        pytest.param(("model",), {("m",): 2, ("m-b",): 1}, id="by model"),
        pytest.param(("day",), {("2026-01-01",): 2, ("2026-01-02",): 1}, id="by day"),
        pytest.param(
            ("user", "project"),
            {("alice", "research"): 1, ("alice", "sales"): 1, ("bob", "research"): 1},
            id="by user and project",
        ),
    ],
)
def test_requests_are_summed(groups: tuple[str, ...], expected: dict[tuple[str, ...], int]) -> None:
    sums = sum_by(groups, read_lines(LINES, Line).lines)
    assert {values: total.requests for values, total in sums.items()} == expected


def test_tokens_hits_and_money_are_summed() -> None:
    sums = sum_by(("user",), read_lines(LINES, Line).lines)
    assert sums["alice",] == Sum(
        requests=2, hits=1, input_tokens=10, output_tokens=5, cost_microdollars=1_500_000, saved_microdollars=7
    )


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        pytest.param(("user",), {("alice",): (7, 1), ("anna",): (4, 0), ("bob",): (0, 1)}, id="by user"),
        pytest.param(("project",), {("research",): (7, 2), ("sales",): (4, 0)}, id="by project"),
        pytest.param(("key",), {("key_alice",): (7, 1), ("key_anna",): (4, 0), ("key_bob",): (0, 1)}, id="by key"),
        pytest.param(("model",), {("m",): (11, 2)}, id="by model: that of the request that was served"),
        pytest.param(
            ("user", "day"),
            {
                ("alice", "2026-01-01"): (0, 1),
                ("alice", "2026-01-02"): (7, 0),
                ("anna", "2026-01-02"): (4, 0),
                ("bob", "2026-01-02"): (0, 1),
            },
            id="by user and day: the day on which it was served",
        ),
    ],
)
def test_what_was_provided_counts_for_who_paid(
    groups: tuple[str, ...], expected: dict[tuple[str, ...], tuple[int, int]]
) -> None:
    sums = sum_by(groups, read_lines([LINES[0], PROVIDED], Line).lines)
    assert {values: (total.provided_microdollars, total.requests) for values, total in sums.items()} == expected


def test_what_was_saved_counts_for_who_was_served() -> None:
    sums = sum_by(("user",), read_lines([PROVIDED], Line).lines)
    assert sums == {
        ("alice",): Sum(provided_microdollars=7),
        ("anna",): Sum(provided_microdollars=4),
        ("bob",): Sum(requests=1, input_tokens=10, output_tokens=5, cost_microdollars=1_500_000, saved_microdollars=12),
    }


def test_a_request_that_was_refused_before_its_decision_counts() -> None:
    reading = read_lines([line("a", model=None, endpoint=None)], Line)
    assert sum_by(("model", "endpoint"), reading.lines)["-", "-"].requests == 1


def test_the_table_is_aligned_and_totalled(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (data_dir / USAGE_FILE_NAME).open("ab") as file:
        file.write(PROVIDED)
    assert call("--data-dir", str(data_dir), "--by", "user") == 0
    assert capsys.readouterr().out.splitlines() == [
        "user   requests  hits  input tokens  output tokens  cost USD  saved USD  provided USD",
        "alice         2     1            10              5  1.500000   0.000007      0.000007",
        "anna          0     0             0              0  0.000000   0.000000      0.000004",
        "bob           2     0            20             10  3.000000   0.000012      0.000000",
        "total         4     1            30             15  4.500000   0.000019      0.000011",
    ]


def test_json_is_one_object_a_group(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--data-dir", str(data_dir), "--by", "project,day", "--json") == 0
    rows = [json.loads(row) for row in capsys.readouterr().out.splitlines()]
    assert [(row["project"], row["day"], row["requests"]) for row in rows] == [
        ("research", "2026-01-01", 1),
        ("research", "2026-01-02", 1),
        ("sales", "2026-01-01", 1),
    ]
    assert (rows[0]["cost_microdollars"], rows[0]["provided_microdollars"]) == (1_500_000, 0)


@pytest.mark.parametrize(
    ("arguments", "requests"),
    [
        pytest.param(["--since", "2026-01-02"], 1, id="a date"),
        pytest.param(["--since", "2026-01-01T12:00"], 3, id="a moment is included"),
        pytest.param(["--since", "2026-01-01T12:01+00:00"], 1, id="a moment with its offset"),
        pytest.param(["--since", "2026-01-01T13:00", "--time-zone", "Europe/Berlin"], 3, id="a moment in a zone"),
        pytest.param(["--since", "2027-01-01"], 0, id="nothing since"),
    ],
)
def test_earlier_requests_are_left_out(
    data_dir: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], requests: int
) -> None:
    assert call("--data-dir", str(data_dir), "--json", *arguments) == 0
    rows = [json.loads(row) for row in capsys.readouterr().out.splitlines() if row]
    assert sum(row["requests"] for row in rows) == requests


def test_days_are_those_of_the_zone(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--data-dir", str(data_dir), "--by", "day", "--time-zone", "Pacific/Kiritimati", "--json") == 0
    days = [json.loads(row)["day"] for row in capsys.readouterr().out.splitlines()]
    assert days == ["2026-01-02", "2026-01-03"]


def test_a_missing_file_is_one_line_that_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--data-dir", str(tmp_path)) == 2
    assert "--data-dir" in capsys.readouterr().err


def test_broken_lines_are_told(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (data_dir / USAGE_FILE_NAME).open("ab") as file:
        file.write(b"garbage\n")
    assert call("--data-dir", str(data_dir)) == 0
    assert "1 unreadable" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        pytest.param(["--by", "colour"], "colour", id="an unknown group"),
        pytest.param(["--since", "yesterday"], "yesterday", id="no time"),
        pytest.param(["--time-zone", "Mars/Olympus"], "Mars/Olympus", id="no zone"),
        pytest.param(["--time-zone", "../etc/passwd"], "passwd", id="a path as a zone"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        call(*arguments)
    assert exit_.value.code == 2
    assert word in capsys.readouterr().err


def test_a_name_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / USAGE_FILE_NAME).write_bytes(line("a", owner="\x1b[2Jalice"))
    assert call("--data-dir", str(tmp_path)) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_the_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call("--help")
    assert "tidegate usage --by project,model" in capsys.readouterr().out
