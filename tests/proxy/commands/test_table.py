"""Aligned columns: widths of characters, what is cut, and what a terminal never gets to see."""

from __future__ import annotations

import sys

import pytest

from proxy.commands.table import WIDTH, cut, labelled, lay_out, printable, section, usd, width_of, wrapped


@pytest.mark.parametrize(
    ("rows", "right", "width", "expected"),
    [
        pytest.param([("a", "b"), ("long", "c")], (), 100, ["a     b", "long  c"], id="columns are aligned"),
        pytest.param([("n", "x"), ("1", "10")], (0, 1), 100, ["n   x", "1  10"], id="numbers stand to the right"),
        pytest.param([("a", ""), ("b", "c")], (), 100, ["a", "b  c"], id="nothing stands behind a line's end"),
        pytest.param([("a", "x" * 30)], (), 20, ["a  " + "x" * 16 + "…"], id="what is too wide is cut"),
        pytest.param(
            [("x" * 20, "y" * 12)], (), 20, ["xxxxxxxx…  yyyyyyyy…"], id="the widest columns give until all fits"
        ),
        pytest.param([("x" * 12, "1" * 9)], (1,), 20, ["xxxxxxxx…  111111111"], id="numbers are never cut"),
        pytest.param([("x" * 9, "1" * 30)], (1,), 20, ["xxxxxxx…  " + "1" * 30], id="a text keeps eight columns"),
        pytest.param([("日本", "a"), ("ab", "b")], (), 100, ["日本  a", "ab    b"], id="wide characters take two"),
        pytest.param([("e\u0301", "a"), ("ab", "b")], (), 100, ["e\u0301   a", "ab  b"], id="an accent takes none"),
        pytest.param([("a\x1b[2J\n", "b")], (), 100, ["a\\x1b[2J\\n  b"], id="nothing steers the terminal"),
        pytest.param([("x" * 1_000_000,)], (), 10, ["x" * 9 + "…"], id="a cell may be as long as a request"),
        pytest.param([], (), 10, [], id="no rows are no lines"),
    ],
)
def test_rows_become_lines(
    rows: list[tuple[str, ...]], right: tuple[int, ...], width: int, expected: list[str]
) -> None:
    assert list(lay_out(rows, right=right, width=width)) == expected


def test_an_indented_table_keeps_within_its_width() -> None:
    [line] = lay_out([("x" * 30,)], width=12, indent="  ")
    assert line == "  " + "x" * 9 + "…"


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        pytest.param("abc", 3, "abc", id="fits"),
        pytest.param("abcd", 3, "ab…", id="cut"),
        pytest.param("日本語", 5, "日本…", id="wide, cut between characters"),
        pytest.param("日本語", 4, "日…", id="wide, and no half of one"),
    ],
)
def test_a_cut_text_says_that_it_was_cut(text: str, width: int, expected: str) -> None:
    assert cut(text, width) == expected
    assert width_of(cut(text, width)) <= width


@pytest.mark.parametrize(
    ("microdollars", "expected"),
    [(0, "0.000000"), (7, "0.000007"), (1_500_000, "1.500000"), (12 * 10**9, "12000.000000")],
)
def test_money_has_all_its_decimals(microdollars: int, expected: str) -> None:
    assert usd(microdollars) == expected


def test_every_control_character_is_shown() -> None:
    assert printable("a\u202eb\u0085\udcff é") == "a\\u202eb\\x85\\udcff é"


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        pytest.param([("a", "1"), ("b", "10")], ["", "title", "  a   1", "  b  10"], id="a table below its title"),
        pytest.param([], ["", "title        none"], id="nothing to tell"),
    ],
)
def test_a_section_has_a_title(rows: list[tuple[str, ...]], lines: list[str]) -> None:
    assert list(section("title", rows, right=(1,))) == lines


def test_texts_stand_beside_their_label() -> None:
    assert list(labelled("label", ["a", "b"])) == ["label        a", " " * 13 + "b"]


def test_a_long_text_is_wrapped_and_steers_no_terminal() -> None:
    assert wrapped("x" * 90 + " \x1b", "  ") == ["  " + "x" * 90 + " \\x1b"]
    assert wrapped("x" * 90 + " " + "y" * 9, "  ") == ["  " + "x" * 90, "  " + "y" * 9]


def test_a_section_may_be_as_wide_as_its_rows() -> None:
    row = ("x" * WIDTH, "y" * WIDTH)
    assert list(section("title", [row], width=sys.maxsize))[2] == f"  {row[0]}  {row[1]}"
    assert width_of(list(section("title", [row]))[2]) == WIDTH
