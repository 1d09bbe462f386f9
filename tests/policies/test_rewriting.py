"""Spaces at the end of prompts, and texts of policy's own beside the client's."""

from __future__ import annotations

from typing import Any

import pytest
from ruling import Rules, Told, apply, ask, clamp, policy_of, ruled

from policies.errors import PolicyViolation


@pytest.mark.parametrize(
    ("rules", "sent", "forwarded", "told"),
    [
        pytest.param(
            {"prompt": {"strip_trailing_space": True}},
            {"prompt": "Once upon  "},
            {"prompt": "Once upon"},
            [("prompt", "Once upon  ", "Once upon", "strip")],
            id="spaces at a prompt's end are stripped",
        ),
        pytest.param(
            {"prompt": {"strip_trailing_space": True}},
            {"prompt": ["a ", "b", " "]},
            {"prompt": ["a", "b", ""]},
            [("prompt", ["a ", "b", " "], ["a", "b", ""], "strip")],
            id="of every prompt",
        ),
        pytest.param(
            {"prompt": {"strip_trailing_space": True}}, {"prompt": "a\n"}, {"prompt": "a\n"}, [], id="spaces only"
        ),
        pytest.param(
            {"prompt": {"strip_trailing_space": True}}, {"prompt": [[1], [2]]}, {"prompt": [[1], [2]]}, [], id="of text"
        ),
        pytest.param(
            {"stop": {"add": ["H:"]}},
            {},
            {"stop": ["H:"]},
            [("stop", None, ["H:"], "add")],
            id="a stop of policy's own",
        ),
        pytest.param(
            {"stop": {"add": ["H:"]}},
            {"stop": "x"},
            {"stop": ["x", "H:"]},
            [("stop", "x", ["x", "H:"], "add")],
            id="beside the client's",
        ),
        pytest.param({"stop": {"add": ["H:"]}}, {"stop": "H:"}, {"stop": "H:"}, [], id="that the client sent itself"),
        pytest.param(
            {"stop": {"add": ["H:"]}}, {"stop": ["H:", "x"]}, {"stop": ["H:", "x"]}, [], id="in whatever order"
        ),
        pytest.param(
            {"stop": {"add": ["H:"], "on_violation": "clamp"}},
            {"stop": ["a", "b", "c", "d"]},
            {"stop": ["a", "b", "c", "H:"]},
            [("stop", ["a", "b", "c", "d"], ["a", "b", "c", "H:"], "add")],
            id="the client's last goes where there is no room",
        ),
    ],
)
def test_a_rule_rewrites(rules: Rules, sent: dict[str, Any], forwarded: dict[str, Any], told: Told) -> None:
    assert apply(rules, sent) == (forwarded, told)


@pytest.mark.parametrize(
    ("rules", "sent", "param", "said"),
    [
        pytest.param(
            {"stop": {"add": ["H:"]}},
            {"stop": ["a", "b", "c", "d"]},
            "stop",
            "stop is an array of 4 items; policy 'a' adds 1, which leaves room for 3 of at most 4.",
            id="no room for policy's own stops",
        ),
    ],
)
def test_a_rule_refuses_to_rewrite(rules: Rules, sent: dict[str, Any], param: str, said: str | None) -> None:
    with pytest.raises(PolicyViolation) as refused:
        apply(rules, sent)
    assert (refused.value.param, refused.value.code) == (param, "policy_violation")
    assert said is None or refused.value.message == said


def test_what_is_left_beside_what_is_added_must_be_within_bounds() -> None:
    policy = policy_of({"stop": {"allowed": [["a", "b", "c", "d"]]}}, {"stop": clamp(add=["H:"])})
    with pytest.raises(PolicyViolation, match="stop is an array of 3 items; policy 'a' allows only"):
        ruled(ask({"stop": ["a", "b", "c", "d"]}), policy)


def test_what_is_forced_is_not_cut_for_what_is_added() -> None:
    policy = policy_of({"stop": {"force": ["a", "b", "c", "d"]}}, {"stop": clamp(add=["H:"])})
    with pytest.raises(PolicyViolation, match="policy 'b' adds 1, which leaves room for 3 of at most 4"):
        ruled(ask({}), policy)
