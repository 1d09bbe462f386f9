from __future__ import annotations

import io
import json
from typing import Any

import msgspec
import pytest

from proxy.usage_file import lines_from_end, read_lines


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


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        pytest.param(b"a\nb\n", [b"b", b"a"], id="the last comes first"),
        pytest.param(b"a\nb\nto", [b"b", b"a"], id="a torn last line is none"),
        pytest.param(b"to", [], id="nothing but a torn line"),
        pytest.param(b"", [], id="an empty file"),
        pytest.param(b"a\n\nb\r\n", [b"b\r", b"", b"a"], id="an empty line is one"),
        pytest.param(
            b"a" * 3_000_000 + b"\nb\n", [b"b", b"a" * 3_000_000], id="a line longer than what is read at once"
        ),
        pytest.param(b"\n" * (1 << 20), [b""] * (1 << 20), id="blocks that end where lines do"),
    ],
)
def test_lines_are_read_from_the_end(content: bytes, lines: list[bytes]) -> None:
    assert list(lines_from_end(io.BytesIO(content))) == lines


def test_lines_across_blocks_are_whole() -> None:
    lines = [str(number).encode() * (number % 977) for number in range(20_000)]
    file = io.BytesIO(b"".join(each + b"\n" for each in lines))
    assert list(lines_from_end(file)) == lines[::-1]
