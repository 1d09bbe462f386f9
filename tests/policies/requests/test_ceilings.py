"""A ceiling is a whole number from 0, under whichever of its names."""

from __future__ import annotations

import pytest

from policies.requests.ceilings import ceilings_given, is_ceiling, widest_ceiling


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, True),
        (5, True),
        (5.0, True),
        (10**40, True),
        (-1, False),
        (1.5, False),
        (True, False),
        ("5", False),
        ([5], False),
        (None, False),
    ],
)
def test_what_bounds_anything(value: object, *, expected: bool) -> None:
    assert is_ceiling(value) is expected


def test_every_name_is_found_and_null_is_absent() -> None:
    fields = {"n_predict": -1, "max_tokens": 5, "max_output_tokens": None, "max_completion_tokens": 7, "n": 3}
    assert ceilings_given(fields) == {"max_tokens": 5, "max_completion_tokens": 7, "n_predict": -1}


@pytest.mark.parametrize(
    ("fields", "own", "expected"),
    [
        pytest.param({}, 16, 16, id="the API's default"),
        pytest.param({}, None, None, id="open"),
        pytest.param({"max_tokens": 5}, 5, 5, id="as given"),
        pytest.param({"max_tokens": 5, "n_predict": 500}, 5, 500, id="a server's own name widens it"),
        pytest.param({"n_predict": 5}, 16, 16, id="and cannot narrow it, since not every server knows the name"),
        pytest.param({"max_tokens": 5, "n_predict": -1}, 5, None, id="what some take for no bound"),
        pytest.param({"n_predict": 5}, None, None, id="open for those who do not know the name"),
    ],
)
def test_the_widest_ceiling_counts(fields: dict[str, object], own: int | None, expected: int | None) -> None:
    assert widest_ceiling(fields, own) == expected
