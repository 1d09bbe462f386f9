"""`n` and `best_of` under rules on either: a valid pair, the policy that asked for it, or a refusal."""

from __future__ import annotations

from typing import Any

import pytest
from ruling import MESSAGES, Rules, Told, apply, ask, clamp, policy_of, ruled

from policies.errors import PolicyViolation
from policies.requests.asked import Endpoint


@pytest.mark.parametrize(
    ("rules", "sent", "forwarded", "told"),
    [
        pytest.param(
            {"best_of": clamp(max=4), "n": clamp(max=4)},
            {"n": 8, "best_of": 8},
            {"n": 4, "best_of": 4},
            [("best_of", 8, 4, "clamp"), ("n", 8, 4, "clamp")],
            id="both to their caps",
        ),
        pytest.param(
            {"best_of": clamp(max=2), "n": clamp(max=4)},
            {"n": 8, "best_of": 8},
            {"n": 2, "best_of": 2},
            [("best_of", 8, 2, "clamp"), ("n", 8, 2, "clamp")],
            id="n to best_of's cap",
        ),
        pytest.param(
            {"best_of": clamp(max=2)},
            {"n": 3, "best_of": 3},
            {"n": 2, "best_of": 2},
            [("best_of", 3, 2, "clamp"), ("n", 3, 2, "clamp")],
            id="n follows a lowered best_of",
        ),
        pytest.param(
            {"best_of": clamp(max=2)}, {"n": 3}, {"n": 2}, [("n", 3, 2, "clamp")], id="an absent best_of counts as n"
        ),
        pytest.param(
            {"best_of": clamp(max=4)},
            {"best_of": 10},
            {"best_of": 4},
            [("best_of", 10, 4, "clamp")],
            id="best_of alone",
        ),
        pytest.param({"n": clamp(max=4)}, {"n": 8}, {"n": 4}, [("n", 8, 4, "clamp")], id="n alone"),
        pytest.param(
            {"n": clamp(max=4)},
            {"n": 8, "best_of": 9},
            {"n": 4, "best_of": 9},
            [("n", 8, 4, "clamp")],
            id="n lowered leaves best_of",
        ),
        pytest.param(
            {"n": clamp(max=4)},
            {"n": 8, "best_of": 8, "stream": True},
            {"n": 4, "best_of": 4, "stream": True},
            [("n", 8, 4, "clamp"), ("best_of", 8, 4, "clamp")],
            id="on a stream best_of follows n",
        ),
        pytest.param(
            {"best_of": clamp(max=2)},
            {"n": 3, "stream": True},
            {"n": 2, "stream": True},
            [("n", 3, 2, "clamp")],
            id="an absent best_of counts as n on a stream too",
        ),
        pytest.param(
            {"best_of": {"default": 4}},
            {"n": 2},
            {"n": 2, "best_of": 4},
            [("best_of", None, 4, "default")],
            id="a default best_of",
        ),
        pytest.param({"best_of": {"default": 4}}, {"n": 8}, {"n": 8}, [], id="a default best_of gives way to n"),
        pytest.param(
            {"best_of": {"default": 4}},
            {"n": 2, "stream": True},
            {"n": 2, "stream": True},
            [],
            id="a default best_of gives way to a stream",
        ),
        pytest.param(
            {"n": {"default": 4}},
            {"best_of": 2},
            {"best_of": 2, "n": 2},
            [("n", None, 2, "default")],
            id="a default n gives way to best_of",
        ),
        pytest.param(
            {"n": {"force": 4}},
            {"best_of": 2},
            {"best_of": 4, "n": 4},
            [("n", None, 4, "force"), ("best_of", 2, 4, "clamp")],
            id="best_of follows a forced n",
        ),
        pytest.param(
            {"best_of": {"force": 4}},
            {"n": 8},
            {"n": 4, "best_of": 4},
            [("best_of", None, 4, "force"), ("n", 8, 4, "clamp")],
            id="n follows a forced best_of",
        ),
        pytest.param(
            {"n": clamp(min=3)},
            {"best_of": 2},
            {"best_of": 3, "n": 3},
            [("n", None, 3, "default"), ("best_of", 2, 3, "clamp")],
            id="best_of follows a raised n",
        ),
        pytest.param(
            {"best_of": {"min": 2}},
            {},
            {"best_of": 2},
            [("best_of", None, 2, "default")],
            id="a least best_of is written",
        ),
        pytest.param(
            {"best_of": {"min": 2}},
            {"stream": True},
            {"stream": True, "n": 2, "best_of": 2},
            [("n", None, 2, "default"), ("best_of", None, 2, "default")],
            id="and n with it on a stream",
        ),
        pytest.param(
            {"best_of": {"forbid": "drop"}},
            {"n": 2, "best_of": 3},
            {"n": 2},
            [("best_of", 3, None, "drop")],
            id="best_of dropped leaves n",
        ),
        pytest.param(
            {"stream": {"force": True}},
            {"best_of": 3},
            {"best_of": 1, "stream": True},
            [("stream", None, True, "force"), ("best_of", 3, 1, "clamp")],
            id="best_of follows n on a forced stream",
        ),
        pytest.param(
            {"n": clamp(max=2), "best_of": clamp(min=2), "stream": {"force": True}},
            {"best_of": 3},
            {"best_of": 2, "stream": True, "n": 2},
            [("stream", None, True, "force"), ("n", None, 2, "default"), ("best_of", 3, 2, "clamp")],
            id="both move where only a pair between them fits on a stream",
        ),
        pytest.param(
            {"n": {"min": 3, "max": 4, "default": 4}, "best_of": clamp(min=2, max=3)},
            {"best_of": 1},
            {"best_of": 3, "n": 3},
            [("n", None, 3, "default"), ("best_of", 1, 3, "clamp")],
            id="both move where neither fits the other",
        ),
        pytest.param(
            {"n": clamp(allowed=[1, 8]), "best_of": clamp(min=4, max=4)},
            {"n": 8},
            {"n": 1, "best_of": 4},
            [("n", 8, 1, "clamp"), ("best_of", None, 4, "default")],
            id="a best_of that must be written may be below n",
        ),
    ],
)
def test_n_and_best_of_stay_a_valid_pair(
    rules: Rules, sent: dict[str, Any], forwarded: dict[str, Any], told: Told
) -> None:
    assert apply(rules, sent) == (forwarded, told)


@pytest.mark.parametrize(
    ("rules", "sent", "param", "said"),
    [
        pytest.param(
            {"best_of": {"max": 2}},
            {"n": 3},
            "n",
            "n, which counts as best_of, is 3; policy 'a' allows at most 2.",
            id="n for best_of",
        ),
        pytest.param(
            {"n": {"force": 8}, "best_of": {"max": 4}},
            {},
            "n",
            "No values of n and best_of fit both the request and policy 'a'.",
            id="a policy against itself",
        ),
        pytest.param(
            {"best_of": {"min": 2}, "n": {"max": 1}},
            {"stream": True},
            "n",
            "No values of n and best_of fit both the request and policy 'a'.",
            id="no pair on a stream",
        ),
    ],
)
def test_no_pair_is_refused_by_the_name_of_what_rules_it_out(
    rules: Rules, sent: dict[str, Any], param: str, said: str | None
) -> None:
    with pytest.raises(PolicyViolation) as refused:
        apply(rules, sent)
    assert (refused.value.param, refused.value.code) == (param, "policy_violation")
    assert said is None or refused.value.message == said


@pytest.mark.parametrize(
    ("levels", "sent", "policies"),
    [
        pytest.param(
            [{"stream": {"force": True}}], {"best_of": 3}, {"stream": "a", "best_of": "a"}, id="best_of for a stream"
        ),
        pytest.param(
            [{"n": {"max": 9}}, {"best_of": clamp(max=2)}],
            {"n": 3, "best_of": 3},
            {"n": "b", "best_of": "b"},
            id="n for best_of",
        ),
    ],
)
def test_what_is_brought_to_agree_names_the_policy_behind_it(
    levels: list[Rules], sent: dict[str, Any], policies: dict[str, str]
) -> None:
    _, adjustments = ruled(ask(sent), policy_of(*levels))
    assert {each.parameter: each.policy for each in adjustments} == policies


def test_no_agreement_names_the_policy_that_forbids_as_well() -> None:
    policy = policy_of({"best_of": {"min": 2}}, {"n": {"forbid": "drop"}})
    with pytest.raises(PolicyViolation, match="No values of n and best_of fit") as refused:
        ruled(ask({"stream": True}), policy)
    assert refused.value.policies == ("a", "b")


CHAT = {"messages": MESSAGES}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("endpoint", "rules", "sent", "forwarded", "told"),
    [
        pytest.param(
            Endpoint.CHAT,
            {"logprobs": {"forbid": "drop"}},
            {"logprobs": True, "top_logprobs": 5},
            {},
            [("logprobs", True, None, "drop"), ("top_logprobs", 5, None, "drop")],
            id="top_logprobs goes with logprobs",
        ),
        pytest.param(
            Endpoint.CHAT,
            {"logprobs": {"force": False}},
            {"logprobs": True, "top_logprobs": 5},
            {"logprobs": False},
            [("logprobs", True, False, "force"), ("top_logprobs", 5, None, "drop")],
            id="also where it is forced off",
        ),
        pytest.param(Endpoint.CHAT, {"top_logprobs": {"force": 0}}, {}, {}, [], id="and is not forced without"),
        pytest.param(
            Endpoint.CHAT,
            {"n": clamp(max=4)},
            {"top_logprobs": 5},
            {"top_logprobs": 5},
            [],
            id="but stays as sent where policy touches neither",
        ),
        pytest.param(
            Endpoint.CHAT,
            {"tools": {"forbid": "drop"}},
            {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": True},
            {},
            [
                ("tools", TOOLS, None, "drop"),
                ("tool_choice", "required", None, "drop"),
                ("parallel_tool_calls", True, None, "drop"),
            ],
            id="the choice of tools goes with the tools",
        ),
        pytest.param(
            Endpoint.RESPONSES,
            {"tools": {"forbid": "drop"}},
            {"tools": TOOLS, "tool_choice": "required", "max_tool_calls": 3},
            {},
            [
                ("tools", TOOLS, None, "drop"),
                ("tool_choice", "required", None, "drop"),
                ("max_tool_calls", 3, None, "drop"),
            ],
            id="in responses too",
        ),
        pytest.param(
            Endpoint.COMPLETIONS,
            {"stream": {"forbid": "drop"}},
            {"stream": True, "stream_options": {"include_usage": True}},
            {},
            [("stream", True, None, "drop"), ("stream_options", {"include_usage": True}, None, "drop")],
            id="stream_options goes with the stream",
        ),
    ],
)
def test_what_says_nothing_without_another_goes_with_it(
    endpoint: Endpoint, rules: Rules, sent: dict[str, Any], forwarded: dict[str, Any], told: Told
) -> None:
    base = CHAT if endpoint is Endpoint.CHAT else {}
    assert apply(rules, {**base, **sent}, endpoint) == ({**base, **forwarded}, told)
