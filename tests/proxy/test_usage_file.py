from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from proxy.usage_file import read_lines


class Line(msgspec.Struct, frozen=True):
    """What a reader may want of a record."""

    request_id: str
    outcome: str = ""
    input_tokens: int = 0


def line(request_id: str, **members: Any) -> bytes:  # noqa: ANN401  members of a record
    record = {"request_id": request_id, "outcome": "completed", "input_tokens": 10, "model": None, **members}
    return json.dumps(record).encode() + b"\n"


ORPHAN = line("a", outcome="orphaned", input_tokens=900)


@pytest.mark.parametrize(
    ("lines", "input_tokens"),
    [
        pytest.param([line("a"), line("a")], [10], id="a line delivered twice counts once"),
        pytest.param([ORPHAN, line("a")], [10], id="the truth replaces an orphan"),
        pytest.param([line("a"), ORPHAN], [10], id="an orphan does not replace the truth"),
        pytest.param([ORPHAN, ORPHAN], [900], id="an orphan counts when nothing else is known"),
        pytest.param([line("a"), line("a", input_tokens=3)], [3], id="the last record counts"),
        pytest.param([], [], id="an empty file"),
    ],
)
def test_every_request_counts_once(lines: list[bytes], input_tokens: list[int]) -> None:
    reading = read_lines(lines, Line)
    assert [each.input_tokens for each in reading.lines] == input_tokens
    assert reading.unreadable == 0


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(b"\n", id="an empty line"),
        pytest.param(b"garbage\n", id="garbage"),
        pytest.param(b"\xff\xfe\n", id="no UTF-8"),
        pytest.param(b"[]\n", id="no object"),
        pytest.param(b'{"outcome":"completed"}\n', id="a record without its id"),
        pytest.param(line("x", input_tokens="many"), id="a count that is none"),
    ],
)
def test_a_broken_line_loses_itself_only(broken: bytes) -> None:
    reading = read_lines([line("a"), broken, line("b")], Line)
    assert [each.request_id for each in reading.lines] == ["a", "b"]
    assert reading.unreadable == 1


@pytest.mark.parametrize("length", [40, -1], ids=["cut short", "without its end"])
def test_a_torn_last_line_may_still_be_written_and_is_told(length: int) -> None:
    reading = read_lines([line("a"), line("b")[:length]], Line)
    assert [each.request_id for each in reading.lines] == ["a"]
    assert reading.unreadable == 1
