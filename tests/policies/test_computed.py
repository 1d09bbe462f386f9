"""Virtual parameters: computed of what policy has made of a request, and bounded like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ruling import MESSAGES, Rules, apply, ask, clamp, policy_of, ruled

from policies.catalog import Deployment, Model, ModelSettings
from policies.errors import PolicyViolation
from policies.requests.asked import Endpoint

if TYPE_CHECKING:
    from policies.requests.asked import AskedRequest


@pytest.mark.parametrize(
    ("rules", "sent", "param", "said"),
    [
        pytest.param(
            {"prompts": {"max": 1}},
            {"prompt": ["a", "b"]},
            "prompts",
            "prompts (the number of prompts) is 2; policy 'a' allows at most 1.",
            id="too many prompts",
        ),
        pytest.param(
            {"candidates": {"max": 5}},
            {"prompt": ["a", "b"], "best_of": 3},
            "candidates",
            "candidates (prompts × max(n, best_of)) is 6; policy 'a' allows at most 5.",
            id="too many candidates",
        ),
        pytest.param(
            {"worst_case_tokens": {"max": 99}},
            {"prompt": [1] * 10, "max_tokens": 100},
            "worst_case_tokens",
            None,
            id="too many tokens at worst",
        ),
        pytest.param(
            {"prompt_tokens": {"max": 9}},
            {"prompt": [1] * 10},
            "prompt_tokens",
            "prompt_tokens (the most tokens that the input can have) is 10; policy 'a' allows at most 9.",
            id="too long an input in token ids",
        ),
        pytest.param({"prompt_tokens": {"max": 9}}, {"prompt": "x" * 10}, "prompt_tokens", None, id="in text"),
        pytest.param({"prompt_tokens": {"min": 9}}, {"prompt": [1]}, "prompt_tokens", None, id="too short an input"),
    ],
)
def test_what_is_computed_is_refused_outside_a_bound(
    rules: Rules, sent: dict[str, Any], param: str, said: str | None
) -> None:
    with pytest.raises(PolicyViolation) as refused:
        apply(rules, sent)
    assert (refused.value.param, refused.value.code) == (param, "policy_violation")
    assert said is None or refused.value.message == said


def test_candidates_are_counted_after_clamping() -> None:
    rules = {"n": clamp(max=2), "candidates": {"max": 4}}
    assert apply(rules, {"prompt": ["a", "b"], "n": 9})[0]["n"] == 2


@pytest.mark.parametrize(
    ("endpoint", "sent"),
    [
        pytest.param(Endpoint.CHAT, {"messages": MESSAGES, "best_of": 9}, id="best_of in a chat"),
        pytest.param(Endpoint.CHAT, {"messages": MESSAGES, "n_cmpl": 9}, id="a server's own name in a chat"),
        pytest.param(Endpoint.COMPLETIONS, {"prompt": "a", "n_cmpl": 9}, id="in completions"),
        pytest.param(Endpoint.RESPONSES, {"input": "a", "n": 9}, id="n in a response"),
    ],
)
def test_candidates_under_another_name_are_no_way_round_a_bound_on_them(
    endpoint: Endpoint, sent: dict[str, Any]
) -> None:
    with pytest.raises(PolicyViolation, match=r"candidates .* is 9; policy 'a' allows at most 8"):
        ruled(ask(sent, endpoint), policy_of({"candidates": {"max": 8}}))


@pytest.mark.parametrize(
    "named",
    [
        pytest.param(ask({"previous_response_id": "r", "max_output_tokens": 1}, Endpoint.RESPONSES), id="a response"),
        pytest.param(
            ask(
                {"messages": [{"content": [{"type": "file", "file": {"file_id": "f"}}]}], "max_tokens": 1},
                Endpoint.CHAT,
            ),
            id="a file in a chat",
        ),
    ],
)
def test_an_input_that_is_only_named_is_no_way_round_a_bound_on_it(named: AskedRequest) -> None:
    model = Model("m", ModelSettings(deployments=(Deployment(upstream="u"),)))
    for name in ("prompt_tokens", "worst_case_tokens"):
        with pytest.raises(PolicyViolation, match="has no bound, since the request only names some of its input"):
            ruled(named, policy_of({name: {"max": 100}}), model)


@pytest.mark.parametrize("value", ["9", [9], 9.5, -1, True], ids=repr)
@pytest.mark.parametrize("name", ["candidates", "worst_case_tokens"])
def test_a_multiplier_that_some_server_may_read_otherwise_is_no_way_round_a_bound(name: str, value: object) -> None:
    sent = {"messages": MESSAGES, "max_tokens": 5, "best_of": value}
    with pytest.raises(PolicyViolation, match="has no bound, since the request has a best_of that is no whole number"):
        ruled(ask(sent, Endpoint.CHAT), policy_of({name: {"max": 10_000}}))


@pytest.mark.parametrize("value", [-1, {}, "5", 1.5], ids=repr)
def test_a_ceiling_that_some_server_does_not_obey_is_no_way_round_a_bound_on_the_worst_case(value: object) -> None:
    with pytest.raises(PolicyViolation, match="has no bound, since the request gives no token ceiling"):
        ruled(ask({"prompt": [1], "n_predict": value}), policy_of({"worst_case_tokens": {"max": 10_000}}))


def test_an_open_ceiling_is_no_way_round_a_bound_on_the_worst_case() -> None:
    model = Model("m", ModelSettings(deployments=(Deployment(upstream="u"),)))
    with pytest.raises(PolicyViolation, match="has no bound, since the request gives no token ceiling"):
        ruled(ask({"messages": MESSAGES}, Endpoint.CHAT), policy_of({"worst_case_tokens": {"max": 100}}), model)


@pytest.mark.parametrize(
    ("endpoint", "sent", "written"),
    [
        pytest.param(Endpoint.CHAT, {"messages": MESSAGES}, {"max_completion_tokens": 64}, id="the model's, in a chat"),
        pytest.param(Endpoint.COMPLETIONS, {"prompt": [1]}, {"max_tokens": 16}, id="the API's, in completions"),
        pytest.param(
            Endpoint.COMPLETIONS, {"prompt": [1], "max_tokens": 3}, {"max_tokens": 3}, id="none beside another"
        ),
    ],
)
def test_a_bounded_worst_case_is_what_the_upstream_is_told(
    endpoint: Endpoint, sent: dict[str, Any], written: dict[str, Any]
) -> None:
    model = Model("m", ModelSettings(deployments=(Deployment(upstream="u"),), max_output_tokens=64))
    effective, adjustments = ruled(ask(sent, endpoint), policy_of({"worst_case_tokens": {"max": 1000}}), model)
    assert dict(effective.fields) == {**sent, **written}
    assert {each.parameter for each in adjustments} == written.keys() - sent.keys()
    assert {each.policy for each in adjustments} <= {"a"}
