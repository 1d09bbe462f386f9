from __future__ import annotations

import pytest

from proxy.wire.fields import Bare, bare_item, member, members, quoted


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (True, "?1"),
        (False, "?0"),
        (0, "0"),
        (-7, "-7"),
        (999_999_999_999_999, "999999999999999"),
        pytest.param(10**15, '"1000000000000000"', id="an integer of 16 digits has no room as a number"),
        (0.5, "0.5"),
        (2.0, "2.0"),
        (-1.125, "-1.125"),
        (100.0, "100.0"),
        pytest.param(1e-7, '"1e-07"', id="a decimal has three digits after the point"),
        pytest.param(1e300, '"1e+300"', id="a decimal has twelve digits before it"),
        pytest.param(float("nan"), '"nan"', id="no number"),
        ("clamp", "clamp"),
        ("a/b:c", "a/b:c"),
        pytest.param("9lives", '"9lives"', id="a token begins with a letter"),
        pytest.param("", '""', id="nothing is no token"),
        pytest.param("two words", '"two words"', id="a space is for strings"),
    ],
)
def test_one_value(value: Bare, written: str) -> None:
    assert bare_item(value) == written


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ('say "hi"', r'"say \"hi\""'),
        ("back\\slash", r'"back\\slash"'),
        pytest.param("line\nbreak", '"line?break"', id="a line break cannot end the header"),
        pytest.param("é漢\x7f", '"???"', id="only printable ASCII is a string"),
    ],
)
def test_text_stays_within_its_quotes(text: str, written: str) -> None:
    assert quoted(text) == written


def test_a_list_of_members_with_parameters() -> None:
    hit = member("tidegate", {"hit": True, "ttl": 30, "detail": None})
    miss = member(quoted("day"), {"q": 5, "stale": False})
    assert members([hit, miss]) == 'tidegate;hit;ttl=30, "day";q=5;stale=?0'
