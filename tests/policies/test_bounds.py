"""Which values the bounds of one or several levels let through, and what is said of one outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ruling import ask, clamp, policy_of, ruled

from policies.bounds import find_broken, inside, is_number, largest_of
from policies.errors import PolicyViolation

if TYPE_CHECKING:
    from policies.merging import MergedRule


def rule_of(*levels: dict[str, Any]) -> MergedRule:
    return policy_of(*({"n": level} for level in levels)).parameters["n"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(1, True, id="an integer"),
        pytest.param(0.5, True, id="a float"),
        pytest.param(True, False, id="no switch"),
        pytest.param("1", False, id="no text"),
        pytest.param(None, False, id="not nothing"),
    ],
)
def test_numbers_are_what_bounds_compare_with(value: object, *, expected: bool) -> None:
    assert is_number(value) is expected


@pytest.mark.parametrize(
    ("levels", "value", "policy"),
    [
        pytest.param([{"max": 4}], 4, None, id="the bound itself is inside"),
        pytest.param([{"max": 4}], 4.5, "a", id="above"),
        pytest.param([{"min": 4}], 3, "a", id="below"),
        pytest.param([{"max": 4}], "3", "a", id="what is no number is outside"),
        pytest.param([{"max": 4}], True, "a", id="as is a switch"),
        pytest.param([{"allowed": [1, "x"]}], 1.0, None, id="on a list, in another spelling"),
        pytest.param([{"allowed": [1]}], True, "a", id="true is no 1"),
        pytest.param([{"allowed": [1, 2]}, {"allowed": [2]}], 1, "b", id="on the outer list only"),
        pytest.param([clamp(max=4), {"min": 9}], 8, "b", id="the bound that refuses before the one that clamps"),
        pytest.param([{"add": ["x"]}, {"allowed": ["own"]}], ["own"], None, id="in an array that texts are added to"),
        pytest.param([{"add": ["x"]}, {"allowed": ["own"]}], ["own", "x"], None, id="less what is added"),
        pytest.param([{"add": ["x"]}, {"allowed": [["own", "x"]]}], "own", None, id="on a list that has what is added"),
        pytest.param([{"add": ["x"]}, {"allowed": ["own"]}], "x", None, id="nothing but what is added"),
        pytest.param([{"add": ["x"]}, {"allowed": ["own"]}], ["other", "x"], "b", id="another beside what is added"),
    ],
)
def test_a_value_breaks_the_bound(levels: list[dict[str, Any]], value: object, policy: str | None) -> None:
    broken = find_broken(value, rule_of(*levels))
    assert (broken and broken.policy) == policy


@pytest.mark.parametrize(
    ("levels", "value", "expected"),
    [
        pytest.param([{"max": 4}], 3.0, 3.0, id="a value inside, as it is spelled"),
        pytest.param([{"max": 4, "min": 2}], 9, 4, id="the maximum"),
        pytest.param([{"max": 4, "min": 2}], -9, 2, id="the minimum"),
        pytest.param([{"allowed": [1, 4, 9]}], 6, 4, id="the nearest on a list"),
        pytest.param([{"allowed": [1, 3]}], 2, 1, id="of two as near, the smaller"),
        pytest.param([{"allowed": [1, 4, 9]}, {"max": 3}], 6, 1, id="the nearest that other bounds let through"),
        pytest.param([{"allowed": [1, 4]}, {"allowed": [1, 9]}], 9, 1, id="the nearest on every list"),
        pytest.param([{"max": 0.5}], 10**400, 0.5, id="from a number that no float holds"),
        pytest.param([{"max": 1, "min": 0.5}], -(10**400), 0.5, id="on either side"),
    ],
)
def test_inside_is_the_nearest_value_that_all_bounds_let_through(
    levels: list[dict[str, Any]], value: float, expected: float
) -> None:
    assert repr(inside("n", value, rule_of(*levels))) == repr(expected)


@pytest.mark.parametrize(
    ("levels", "value"),
    [
        pytest.param([{"allowed": ["x"]}], 3, id="no number on the list"),
        pytest.param([{"max": 4}], "x", id="no number outside"),
        pytest.param([{"max": 1}, {"min": 2}], 3, id="bounds that cross"),
    ],
)
def test_where_nothing_is_inside_it_is_a_violation(levels: list[dict[str, Any]], value: object) -> None:
    with pytest.raises(PolicyViolation):
        inside("n", value, rule_of(*levels))


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        pytest.param([{"min": 4}], None, id="no end"),
        pytest.param([{"max": 4}, {"max": 3}], 3, id="the maximum"),
        pytest.param([{"allowed": [1, 9, "x"]}, {"allowed": [1, 4]}], 1, id="the largest on every list"),
    ],
)
def test_the_largest_value(levels: list[dict[str, Any]], expected: int | None) -> None:
    assert largest_of(rule_of(*levels)) == expected


def test_levels_that_allow_no_common_value_are_named() -> None:
    policy = policy_of({"n": {"allowed": [1, 2]}}, {"n": {"allowed": [3, 4]}})
    with pytest.raises(PolicyViolation) as refused:
        ruled(ask({"n": 3}), policy)
    assert refused.value.message == "n is 3; policies 'a' and 'b' together allow no value."


@pytest.mark.parametrize(
    ("n", "broken"),
    [
        pytest.param(4, "a", id="on no list"),
        pytest.param(3, "a", id="not on the outer one"),
        pytest.param(1, "b", id="not on the inner one"),
    ],
)
def test_a_refusal_names_all_levels_whose_lists_leave_what_is_allowed(n: int, broken: str) -> None:
    policy = policy_of({"n": {"allowed": [1, 2]}}, {"n": {"allowed": [2, 3]}})
    with pytest.raises(PolicyViolation) as refused:
        ruled(ask({"n": n}), policy)
    assert refused.value.message == f"n is {n}; policies 'a' and 'b' together allow only 2."
    assert refused.value.policies == (broken,)


def test_a_list_that_another_one_cuts_nothing_from_is_named_alone() -> None:
    policy = policy_of({"n": {"allowed": [2]}}, {"n": {"allowed": [2, 3]}})
    with pytest.raises(PolicyViolation) as refused:
        ruled(ask({"n": 3}), policy)
    assert refused.value.message == "n is 3; policy 'a' allows only 2."


@pytest.mark.parametrize(
    ("allowed", "sent", "said"),
    [
        pytest.param(
            [{"type": "text"}],
            {"type": "json", "strict": True},
            """response_format is an object of 2 members; policy 'a' allows only {"type":"text"}.""",
            id="an object of the policy's is written out, the client's is not",
        ),
        pytest.param(
            ["auto", ["é", None, True]],
            [1],
            """response_format is an array of 1 items; policy 'a' allows only "auto", ["é",null,true].""",
            id="as is a list",
        ),
        pytest.param(
            [{"schema": "x" * 80}],
            1,
            f"""response_format is 1; policy 'a' allows only {{"schema":"{"x" * 48}….""",
            id="a long one is cut after 60 characters",
        ),
    ],
)
def test_what_the_policy_says_is_written_as_json(allowed: list[Any], sent: object, said: str) -> None:
    rule = policy_of({"response_format": {"allowed": allowed}}).parameters["response_format"]
    with pytest.raises(PolicyViolation) as refused:
        inside("response_format", sent, rule)
    assert refused.value.message == said
