"""A ceiling is a whole number from 0, candidates one from 1, under whichever of their names."""

from __future__ import annotations

import pytest

from policies.requests.ceilings import (
    ceilings_given,
    find_unreadable_multiplier,
    is_ceiling,
    widest_candidates,
    widest_ceiling,
)


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


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"n": 2, "best_of": 3.0, "n_cmpl": 4}, None, id="whole numbers"),
        pytest.param({"n_cmpl": None}, None, id="null is absent"),
        pytest.param({"n_cmpl": "4"}, "n_cmpl", id="text"),
        pytest.param({"best_of": [4]}, "best_of", id="an array"),
        pytest.param({"best_of": 0.5}, "best_of", id="a fraction"),
    ],
)
def test_a_multiplier_that_is_no_whole_number_is_found(fields: dict[str, object], expected: str | None) -> None:
    assert find_unreadable_multiplier(fields) == expected


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


@pytest.mark.parametrize(
    ("fields", "own", "prompts", "expected"),
    [
        pytest.param({}, 1, 1, 1, id="one unless more are asked for"),
        pytest.param({"n": 3}, 3, 1, 3, id="as the endpoint reads it"),
        pytest.param({"n": 2, "best_of": 9}, 2, 1, 9, id="another endpoint's name widens it"),
        pytest.param({"n_cmpl": 9}, 1, 1, 9, id="a server's own name widens it"),
        pytest.param({"n": 5, "best_of": 2, "n_cmpl": 3}, 5, 1, 5, id="and none narrows it"),
        pytest.param({"n": 7}, 1, 1, 7, id="an endpoint that has none of the names"),
        pytest.param({"n": 2, "n_cmpl": 9}, 6, 3, 27, id="for every prompt"),
        pytest.param({"n_cmpl": 9.0}, 1, 1, 9, id="a whole number as a float"),
        pytest.param({"n_cmpl": 0, "best_of": -1}, 1, 1, 1, id="less than one is none"),
        pytest.param({"n_cmpl": 9.5, "best_of": "9"}, 1, 1, 1, id="half a candidate and a text are none"),
        pytest.param({"n_cmpl": True, "best_of": [9], "n": None}, 1, 1, 1, id="nor are a boolean, a list and null"),
        pytest.param({"n": 3, "best_of": 9, "n_cmpl": 9}, 0, 4, 0, id="where nothing is generated, nothing is"),
        pytest.param({"n_cmpl": 10**4000}, 1, 1, 10**15, id="more than any limit tells apart"),
        pytest.param({"n_cmpl": 10**14}, 20, 20, 10**15, id="in all"),
        pytest.param({"n_cmpl": 1e308}, 1, 1, 10**15, id="also as a float"),
    ],
)
def test_the_most_candidates_of_any_server_count(
    fields: dict[str, object], own: int, prompts: int, expected: int
) -> None:
    assert widest_candidates(fields, own, prompts) == expected
