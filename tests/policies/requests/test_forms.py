"""Every spelling of a value has one form, and forms keep what makes a difference."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from policies.requests.forms import input_form, number, numbers, one_or_many, stop_form

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("form", "value", "expected"),
    [
        pytest.param(number, 0.0, "0", id="0.0 is 0"),
        pytest.param(number, -0.0, "0", id="-0.0 is 0"),
        pytest.param(number, 1e2, "100", id="1e2 is 100"),
        pytest.param(number, 0.5, "0.5", id="a half stays"),
        pytest.param(number, 2**70, str(2**70), id="big integers stay exact"),
        pytest.param(number, True, "true", id="true is no number"),
        pytest.param(number, "1.0", '"1.0"', id="a text is no number"),
        pytest.param(numbers, {"5": 1.0, "6": -0.5}, '{"5": 1, "6": -0.5}', id="the values of a map"),
        pytest.param(numbers, [1.0], "[1.0]", id="no map"),
        pytest.param(one_or_many, ["x"], '"x"', id="an array of one text"),
        pytest.param(one_or_many, [["x"]], '["x"]', id="an array of one array"),
        pytest.param(one_or_many, ["x", "y"], '["x", "y"]', id="two stay two"),
        pytest.param(one_or_many, [1], "[1]", id="a token id is no text"),
        pytest.param(one_or_many, [], "[]", id="none"),
        pytest.param(stop_form, ["x"], '"x"', id="one text in an array"),
        pytest.param(stop_form, ["x", "y"], '["x", "y"]', id="two texts stay two"),
        pytest.param(stop_form, [["x", "y"]], '[["x", "y"]]', id="an array of texts is no text"),
        pytest.param(stop_form, [[]], "[[]]", id="nor is an empty one"),
        pytest.param(input_form, ["x"], '"x"', id="one prompt in an array"),
        pytest.param(input_form, [[1.0, 2]], "[1, 2]", id="one prompt of token ids in an array"),
        pytest.param(input_form, [[1.0], [2]], "[[1], [2]]", id="token ids are integers at any depth"),
    ],
)
def test_one_form_stands_for_all_spellings(form: Callable[[object], object], value: object, expected: str) -> None:
    assert json.dumps(form(value)) == expected
