"""Rules at work: what is forwarded, what the client is told, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from policies.catalog import Deployment, Model, ModelSettings
from policies.errors import InvalidRequest, PolicyViolation
from policies.merging import EffectivePolicy, merge
from policies.parameters import apply_rules, check_rule
from policies.policy import Policy, Rule
from policies.requests.asked import AskedRequest, Dialect, EffectiveRequest, Endpoint
from policies.requests.dialects import read_request

Rules = dict[str, dict[str, Any]]
Told = list[tuple[str, Any, Any, str]]

MODEL = Model("m", ModelSettings(deployments=(Deployment(upstream="u"),), context_window=4096))
MESSAGES = [{"role": "user", "content": "x"}]


def policy_of(*levels: Rules) -> EffectivePolicy:
    """Levels called a, b, …, outermost first."""
    return merge(
        [
            (name, Policy(parameters={parameter: Rule(**rule) for parameter, rule in level.items()}))
            for name, level in zip("abc", levels, strict=False)
        ]
    )


def ask(fields: dict[str, Any], endpoint: Endpoint = Endpoint.COMPLETIONS) -> AskedRequest:
    return read_request(
        endpoint=endpoint, dialect=Dialect.OPENAI, fields={"model": "m", **fields}, path_model=None, api_version=None
    )


def apply(rules: Rules, fields: dict[str, Any], endpoint: Endpoint = Endpoint.COMPLETIONS) -> tuple[Any, Told]:
    effective, adjustments = apply_rules(ask(fields, endpoint), policy_of(rules), MODEL)
    return dict(effective.fields), [(a.parameter, a.before, a.after, str(a.action)) for a in adjustments]


def clamp(**bounds: object) -> dict[str, Any]:
    return {**bounds, "on_violation": "clamp"}


@pytest.mark.parametrize(
    ("rules", "sent", "forwarded", "told"),
    [
        pytest.param({}, {"n": 8}, {"n": 8}, [], id="no rule, no change"),
        pytest.param({"n": clamp(max=4)}, {"n": 3}, {"n": 3}, [], id="a value inside stays"),
        pytest.param({"n": clamp(max=4)}, {"n": 4.0}, {"n": 4.0}, [], id="a value inside keeps its spelling"),
        pytest.param({"n": clamp(max=4)}, {"n": None}, {"n": None}, [], id="null is absent, and 1 is inside"),
        pytest.param({"n": clamp(max=4)}, {"n": 8}, {"n": 4}, [("n", 8, 4, "clamp")], id="down to the maximum"),
        pytest.param(
            {"seed": clamp(min=5)}, {"seed": 1}, {"seed": 5}, [("seed", 1, 5, "clamp")], id="up to the minimum"
        ),
        pytest.param(
            {"logprobs": clamp(allowed=[0, 5])},
            {"logprobs": 3},
            {"logprobs": 5},
            [("logprobs", 3, 5, "clamp")],
            id="to the nearest of the allowed",
        ),
        pytest.param(
            {"temperature": {"default": 0}},
            {},
            {"temperature": 0},
            [("temperature", None, 0, "default")],
            id="a default for what was not sent",
        ),
        pytest.param(
            {"temperature": {"default": 0}},
            {"temperature": None},
            {"temperature": 0},
            [("temperature", None, 0, "default")],
            id="a default for null",
        ),
        pytest.param(
            {"temperature": {"default": 0}},
            {"temperature": 1},
            {"temperature": 1},
            [],
            id="no default for what was sent",
        ),
        pytest.param(
            {"temperature": {"max": 0.5}},
            {},
            {"temperature": 0.5},
            [("temperature", None, 0.5, "default")],
            id="the API's default outside a bound is moved inside, even where values sent are refused",
        ),
        pytest.param({"seed": {"max": 5}}, {}, {}, [], id="what has no default is left absent"),
        pytest.param(
            {"top_p": {"force": 1}}, {"top_p": 0.5}, {"top_p": 1}, [("top_p", 0.5, 1, "force")], id="a forced value"
        ),
        pytest.param({"top_p": {"force": 1}}, {"top_p": 1.0}, {"top_p": 1.0}, [], id="forced to what was sent"),
        pytest.param({"echo": {"force": False}}, {"echo": False}, {"echo": False}, [], id="false forced to false"),
        pytest.param({"user": {"forbid": "drop"}}, {"user": "u"}, {}, [("user", "u", None, "drop")], id="dropped"),
        pytest.param({"user": {"forbid": "drop"}}, {"user": None}, {"user": None}, [], id="null is nothing to drop"),
        pytest.param({"user": {"forbid": "reject"}}, {}, {}, [], id="forbidden and not sent"),
        pytest.param(
            {"top_k": clamp(max=5)},
            {"top_k": 9},
            {"top_k": 5},
            [("top_k", 9, 5, "clamp")],
            id="a rule on a parameter that the API does not know",
        ),
        pytest.param(
            {"top_k": {"default": 5}},
            {},
            {"top_k": 5},
            [("top_k", None, 5, "default")],
            id="a default for a parameter that the API does not know",
        ),
        pytest.param(
            {"stream": {"force": False}},
            {"stream": True, "stream_options": {}},
            {"stream": False},
            [("stream", True, False, "force"), ("stream_options", {}, None, "drop")],
            id="stream_options leave with the stream",
        ),
        pytest.param({"stop": {"allowed": ["a", ["a"]]}}, {"stop": ["a"]}, {"stop": ["a"]}, [], id="an allowed array"),
        pytest.param(
            {"temperature": {"default": 2, "max": 2}, "n": {"max": 9}},
            {"n": 1, "x": 1e-7, "seed": 2**60},
            {"n": 1, "x": 1e-7, "seed": 2**60, "temperature": 2},
            [("temperature", None, 2, "default")],
            id="what no rule touches stays as it is",
        ),
    ],
)
def test_a_rule_makes_of_a_request(rules: Rules, sent: dict[str, Any], forwarded: dict[str, Any], told: Told) -> None:
    assert repr(apply(rules, sent)) == repr((forwarded, told))


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
    ("rule", "sent", "forwarded"),
    [
        pytest.param(clamp(max=64), {"max_tokens": 9999}, {"max_tokens": 64}, id="the old name stays"),
        pytest.param(
            clamp(max=64), {"max_completion_tokens": 9999}, {"max_completion_tokens": 64}, id="the new one too"
        ),
        pytest.param(
            clamp(max=64),
            {"max_tokens": 1, "max_completion_tokens": 9999},
            {"max_tokens": 1, "max_completion_tokens": 64},
            id="each of two",
        ),
        pytest.param(
            clamp(max=64),
            {"max_completion_tokens": 1, "max_tokens": 9999},
            {"max_completion_tokens": 1, "max_tokens": 64},
            id="in either order",
        ),
        pytest.param(clamp(max=64), {}, {"max_completion_tokens": 64}, id="an open ceiling is written"),
        pytest.param({"max": 64}, {}, {"max_completion_tokens": 64}, id="whatever happens on violation"),
        pytest.param(
            clamp(max=64), {"max_tokens": None}, {"max_tokens": None, "max_completion_tokens": 64}, id="null is open"
        ),
        pytest.param({"max": 64, "default": 8}, {}, {"max_completion_tokens": 8}, id="with the policy's default"),
        pytest.param({"default": 8}, {}, {"max_completion_tokens": 8}, id="which needs no bound"),
        pytest.param({"allowed": [16, 32]}, {}, {"max_completion_tokens": 32}, id="with the largest of the allowed"),
        pytest.param({"min": 8}, {}, {}, id="a minimum leaves it open"),
        pytest.param({"force": 8}, {"max_tokens": 9}, {"max_tokens": 8}, id="a forced ceiling keeps its name"),
        pytest.param({"force": 8}, {}, {"max_completion_tokens": 8}, id="a forced ceiling is written"),
        pytest.param({"forbid": "drop"}, {"max_tokens": 9, "max_completion_tokens": 9}, {}, id="dropped by every name"),
        pytest.param(
            clamp(max=64),
            {"max_tokens": 8, "max_output_tokens": 99},
            {"max_tokens": 8, "max_output_tokens": 64},
            id="a name of another endpoint is bound too",
        ),
    ],
)
def test_a_rule_on_max_tokens_binds_the_ceiling_of_a_chat(
    rule: dict[str, Any], sent: dict[str, Any], forwarded: dict[str, Any]
) -> None:
    fields, told = apply({"max_tokens": rule}, {"messages": MESSAGES, **sent}, Endpoint.CHAT)
    assert fields == {"messages": MESSAGES, **forwarded}
    assert {name for name, *_ in told} == {
        name for name in {**sent, **forwarded} if sent.get(name) != forwarded.get(name)
    }


@pytest.mark.parametrize(
    ("rule", "sent", "forwarded"),
    [
        pytest.param({"max": 64}, {}, {"max_tokens": 16}, id="the API's default is written"),
        pytest.param({"max": 8}, {}, {"max_tokens": 8}, id="or the maximum below it"),
        pytest.param({"min": 32}, {}, {"max_tokens": 32}, id="or the minimum above it"),
        pytest.param({"max": 64, "default": 32}, {}, {"max_tokens": 32}, id="or the policy's default"),
        pytest.param(
            {"max": 64},
            {"max_completion_tokens": 9},
            {"max_completion_tokens": 9, "max_tokens": 16},
            id="another endpoint's name closes nothing",
        ),
        pytest.param(
            {"force": 7},
            {"max_completion_tokens": 500, "max_output_tokens": 600},
            {"max_completion_tokens": 7, "max_output_tokens": 7, "max_tokens": 7},
            id="a forced ceiling is forced under every name",
        ),
        pytest.param(
            {"force": 7}, {"max_completion_tokens": "500"}, {"max_completion_tokens": 7, "max_tokens": 7}, id="text"
        ),
        pytest.param({"forbid": "drop"}, {"max_completion_tokens": 500}, {}, id="a forbidden one is under every name"),
    ],
)
def test_a_rule_on_max_tokens_closes_the_ceiling_of_a_completion(
    rule: dict[str, Any], sent: dict[str, Any], forwarded: dict[str, Any]
) -> None:
    assert apply({"max_tokens": rule}, sent)[0] == forwarded


@pytest.mark.parametrize(
    ("rules", "fields", "endpoint"),
    [
        pytest.param({"max_tokens": {"max": 8, "default": 4}}, {"input": "x"}, Endpoint.EMBEDDINGS, id="no ceiling"),
        pytest.param({"temperature": {"force": 0}}, {"input": "x"}, Endpoint.EMBEDDINGS, id="no temperature"),
        pytest.param({"n": {"default": 2}}, {"input": "x"}, Endpoint.EMBEDDINGS, id="no choices"),
        pytest.param({"top_k": {"default": 2}}, {"input": "x"}, Endpoint.EMBEDDINGS, id="nothing unknown"),
        pytest.param({"best_of": {"default": 2}}, {"messages": MESSAGES}, Endpoint.CHAT, id="no best_of in a chat"),
        pytest.param(
            {"logprobs": {"default": 2}}, {"messages": MESSAGES}, Endpoint.CHAT, id="logprobs of another type"
        ),
        pytest.param(
            {"logprobs": {"max": 2}},
            {"messages": MESSAGES, "logprobs": True},
            Endpoint.CHAT,
            id="a bound for numbers does not bind a switch",
        ),
        pytest.param(
            {"logprobs": {"allowed": [2]}},
            {"messages": MESSAGES, "logprobs": True},
            Endpoint.CHAT,
            id="nor do allowed numbers",
        ),
    ],
)
def test_nothing_is_written_where_an_endpoint_has_no_such_parameter(
    rules: Rules, fields: dict[str, Any], endpoint: Endpoint
) -> None:
    assert apply(rules, fields, endpoint) == (fields, [])


@pytest.mark.parametrize(
    ("rules", "sent", "param", "said"),
    [
        pytest.param({"n": {"max": 4}}, {"n": 5}, "n", "n is 5; policy 'a' allows at most 4.", id="above the maximum"),
        pytest.param(
            {"temperature": {"min": 0.5}},
            {"temperature": 0},
            "temperature",
            "temperature is 0; policy 'a' allows at least 0.5.",
            id="below the minimum",
        ),
        pytest.param(
            {"user": {"allowed": ["a", "b"]}},
            {"user": "c"},
            "user",
            'user is "c"; policy \'a\' allows only "a", "b".',
            id="not one of the allowed",
        ),
        pytest.param(
            {"echo": {"allowed": [False]}},
            {"echo": True},
            "echo",
            "echo is true; policy 'a' allows only false.",
            id="true where only false is allowed",
        ),
        pytest.param(
            {"suffix": {"forbid": "reject"}},
            {"suffix": ""},
            "suffix",
            "suffix may not be sent: policy 'a' forbids it.",
            id="forbidden",
        ),
        pytest.param(
            {"best_of": {"max": 2}},
            {"n": 3},
            "n",
            "n, which counts as best_of, is 3; policy 'a' allows at most 2.",
            id="n for best_of",
        ),
        pytest.param(
            {"top_k": {"max": 2}},
            {"top_k": "9"},
            "top_k",
            "top_k is \"9\"; policy 'a' allows at most 2.",
            id="no number under a bound",
        ),
        pytest.param(
            {"top_k": {"max": 2}},
            {"top_k": True},
            "top_k",
            "top_k is true; policy 'a' allows at most 2.",
            id="a boolean under a bound",
        ),
        pytest.param(
            {"user": clamp(allowed=["a"])},
            {"user": "c"},
            "user",
            'user is "c"; policy \'a\' allows only "a".',
            id="what has no nearest is refused",
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
def test_a_refusal_names_parameter_value_bound_and_policy(
    rules: Rules, sent: dict[str, Any], param: str, said: str | None
) -> None:
    with pytest.raises(PolicyViolation) as refused:
        apply(rules, sent)
    assert (refused.value.param, refused.value.code) == (param, "policy_violation")
    assert said is None or refused.value.message == said


def test_candidates_are_counted_after_clamping() -> None:
    rules = {"n": clamp(max=2), "candidates": {"max": 4}}
    assert apply(rules, {"prompt": ["a", "b"], "n": 9})[0]["n"] == 2


def test_an_open_ceiling_is_no_way_round_a_bound_on_the_worst_case() -> None:
    model = Model("m", ModelSettings(deployments=(Deployment(upstream="u"),)))
    with pytest.raises(PolicyViolation, match="has no bound, since the request gives no token ceiling"):
        apply_rules(ask({"messages": MESSAGES}, Endpoint.CHAT), policy_of({"worst_case_tokens": {"max": 100}}), model)


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [(Endpoint.COMPLETIONS, {"prompt": "x"}), (Endpoint.CHAT, {"messages": MESSAGES})],
    ids=["completions", "chat"],
)
def test_an_absent_penalty_outside_a_bound_is_written(endpoint: Endpoint, fields: dict[str, Any], name: str) -> None:
    assert apply({name: clamp(min=1)}, fields, endpoint) == ({**fields, name: 1}, [(name, None, 1, "default")])


def test_levels_that_allow_no_common_value_are_named() -> None:
    policy = policy_of({"n": {"allowed": [1, 2]}}, {"n": {"allowed": [3, 4]}})
    with pytest.raises(PolicyViolation) as refused:
        apply_rules(ask({"n": 3}), policy, MODEL)
    assert refused.value.message == "n is 3; policy 'b' allows no value that the levels above it allow."


FORCED_AND_FORBIDDEN = [{"temperature": {"force": 0}}, {"temperature": {"forbid": "reject"}}]


@pytest.mark.parametrize(
    ("levels", "sent", "forwarded"),
    [
        pytest.param(FORCED_AND_FORBIDDEN, {}, {"temperature": 0}, id="an inner level lifts no force"),
        pytest.param(FORCED_AND_FORBIDDEN, {"temperature": 0.0}, {"temperature": 0.0}, id="what is forced may be sent"),
        pytest.param(FORCED_AND_FORBIDDEN, {"temperature": 1}, None, id="but refuses what is sent"),
        pytest.param(FORCED_AND_FORBIDDEN[::-1], {}, {}, id="what is forbidden is not forced within"),
        pytest.param(FORCED_AND_FORBIDDEN[::-1], {"temperature": 0}, None, id="and stays refused"),
    ],
)
def test_refusing_what_is_sent_is_stricter_than_forcing_it(
    levels: list[Rules], sent: dict[str, Any], forwarded: dict[str, Any] | None
) -> None:
    if forwarded is not None:
        assert repr(apply_rules(ask(sent), policy_of(*levels), MODEL)[0].fields) == repr(forwarded)
        return
    with pytest.raises(PolicyViolation, match="temperature may not be sent"):
        apply_rules(ask(sent), policy_of(*levels), MODEL)


def test_levels_move_each_others_defaults_inside() -> None:
    policy = policy_of({"temperature": {"max": 0.5}}, {"temperature": {"default": 1}})
    effective, [adjustment] = apply_rules(ask({}), policy, MODEL)
    assert effective.fields == {"temperature": 0.5}
    assert (str(adjustment.action), adjustment.policy) == ("default", "b")


@pytest.mark.parametrize("sent", [{"max_tokens": 9999}, {}, {"max_tokens": 8}])
def test_what_is_forbidden_stays_within_the_bounds_of_other_levels(sent: dict[str, Any]) -> None:
    policy = policy_of({"max_tokens": {"max": 8}}, {"max_tokens": {"forbid": "drop"}})
    assert apply_rules(ask(sent), policy, MODEL)[0].fields == {"max_tokens": 8}


def test_a_policy_that_makes_a_request_invalid_is_a_violation() -> None:
    with pytest.raises(PolicyViolation, match="What policy makes of the request is not valid: input is missing"):
        apply({"input": {"forbid": "drop"}}, {"input": "x"}, Endpoint.EMBEDDINGS)


def test_the_request_that_was_asked_is_left_alone() -> None:
    asked = ask({"n": 8, "x": [1]})
    effective, _ = apply_rules(asked, policy_of({"n": clamp(max=2)}), MODEL)
    assert (dict(asked.fields), asked.view.choices, effective.view.choices) == ({"n": 8, "x": [1]}, 8, 2)


# ---------------------------------------------------------------- properties

COUNTS = st.integers(1, 12)
MANNER = st.sampled_from(["clamp", "reject"])


def bounds(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Rules of every kind that `check_rule` has nothing against."""
    limits = {"max": values, "min": values, "allowed": st.lists(values, min_size=1, max_size=3), "default": values}
    bounded = st.fixed_dictionaries({"on_violation": MANNER}, optional=limits)
    others = st.one_of(
        st.fixed_dictionaries({"force": values}),
        st.fixed_dictionaries({"forbid": st.sampled_from(["reject", "drop"])}),
    )
    return st.one_of(bounded, bounded, others)


LEVEL = st.fixed_dictionaries(
    {},
    optional={
        "n": bounds(COUNTS),
        "best_of": bounds(COUNTS),
        "max_tokens": bounds(st.integers(0, 40)),
        "temperature": bounds(st.floats(0, 2)),
        "stream": bounds(st.booleans()).filter(lambda r: not {"max", "min"} & {*r}),
        "logprobs": bounds(st.integers(0, 5)),
        "stop": st.just({"forbid": "drop"}),
    },
)
SENT = st.fixed_dictionaries(
    {},
    optional={
        "n": st.none() | COUNTS | COUNTS.map(float),
        "best_of": st.none() | COUNTS,
        "stream": st.booleans() | st.none(),
        "max_tokens": st.none() | st.integers(0, 60),
        "temperature": st.floats(0, 2) | st.integers(0, 2),
        "logprobs": st.integers(0, 5),
        "stop": st.just("x"),
        "x": st.just({"y": [None]}),
    },
)


def is_inside(
    value: Any,  # noqa: ANN401  a JSON value
    rule: dict[str, Any],
) -> bool:
    if "forbid" in rule:
        return value is None
    allowed = rule.get("allowed")
    return value is None or (
        ("max" not in rule or value <= rule["max"])
        and ("min" not in rule or value >= rule["min"])
        and (allowed is None or value in allowed)
    )


def effective_values(effective: EffectiveRequest) -> dict[str, Any]:
    """Values that count: as given, else by the API's default."""
    fields, n = effective.fields, effective.fields.get("n") or 1
    given = {name: value for name, value in fields.items() if value is not None}
    return {"n": n, "best_of": n, "temperature": 1, "stream": False, "max_tokens": 16, **given}


@given(st.lists(LEVEL, min_size=1, max_size=3), SENT)
def test_whatever_passes_is_within_every_bound_of_every_level(levels: list[Rules], sent: dict[str, Any]) -> None:
    policy = policy_of(*levels)
    try:
        asked = ask(sent)
        effective, adjustments = apply_rules(asked, policy, MODEL)
    except (InvalidRequest, PolicyViolation):
        assume(False)  # noqa: FBT003  hypothesis's own signature
        return
    values = effective_values(effective)
    for level in levels:
        for name, rule in level.items():
            value = effective.fields.get(name) if "forbid" in rule else values.get(name)
            merged = policy.parameters[name]
            is_overruled = "forbid" in rule and (merged.force is not None or bool(merged.bounds))
            assert is_overruled or is_inside(value, rule), (name, rule, dict(effective.fields))
    changed = {a.parameter for a in adjustments}
    assert {k: v for k, v in effective.fields.items() if k not in changed} == {
        k: v for k, v in asked.fields.items() if k not in changed
    }


@given(st.lists(LEVEL, min_size=1, max_size=3), SENT)
def test_applying_rules_again_changes_nothing(levels: list[Rules], sent: dict[str, Any]) -> None:
    policy = policy_of(*levels)
    try:
        effective, _ = apply_rules(ask(sent), policy, MODEL)
    except (InvalidRequest, PolicyViolation):
        assume(False)  # noqa: FBT003  hypothesis's own signature
        return
    again, adjustments = apply_rules(ask(dict(effective.fields)), policy, MODEL)
    assert adjustments == ()
    assert repr(dict(again.fields)) == repr(dict(effective.fields))


PAIR_RULE = st.fixed_dictionaries(
    {"on_violation": st.just("clamp")}, optional={"max": COUNTS, "min": COUNTS, "default": COUNTS}
).filter(lambda rule: rule.get("min", 1) <= rule.get("max", 128))
NAMES = ("n", "best_of")


@given(rules=st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, PAIR_RULE)), sent=SENT, is_stream=st.booleans())
def test_rules_that_clamp_refuse_only_what_no_pair_fits(rules: Rules, sent: dict[str, Any], *, is_stream: bool) -> None:
    try:
        asked = ask({**sent, "stream": None})
    except InvalidRequest:
        assume(False)  # noqa: FBT003  hypothesis's own signature
        return
    pairs = [(n, best_of) for n in range(1, 129) for best_of in range(n, n + 1 if is_stream else 129)]
    is_possible = any(
        all(is_inside(v, rules.get(name, {})) for name, v in zip(NAMES, pair, strict=True)) for pair in pairs
    )
    try:
        apply_rules(asked, policy_of({**rules, "stream": {"force": is_stream}}), MODEL)
    except PolicyViolation:
        assert not is_possible
    else:
        assert is_possible


@given(SENT, st.integers(1, 6), st.integers(1, 6))
def test_two_caps_that_clamp_refuse_nothing(sent: dict[str, Any], n: int, best_of: int) -> None:
    try:
        asked = ask(sent)
    except InvalidRequest:
        assume(False)  # noqa: FBT003  hypothesis's own signature
        return
    effective, _ = apply_rules(asked, policy_of({"n": clamp(max=n), "best_of": clamp(max=best_of)}), MODEL)
    assert (sent.get("best_of") is None) == (effective.fields.get("best_of") is None)
    assert effective.view.candidates <= max(n, best_of)


# ---------------------------------------------------------------- rules as configured


@pytest.mark.parametrize(
    ("name", "rule", "problem"),
    [
        pytest.param("n", {"max": 4}, None, id="a cap"),
        pytest.param("n", {"max": 1000}, None, id="a cap above the range is harmless"),
        pytest.param("max_tokens", {"max": 1024, "default": 256, "on_violation": "clamp"}, None, id="cap and default"),
        pytest.param("logprobs", {"default": True}, None, id="a value that one endpoint takes"),
        pytest.param("top_k", {"force": 5}, None, id="a parameter that the API does not know"),
        pytest.param("candidates", {"max": 16}, None, id="a computed parameter"),
        pytest.param("prompt_tokens", {"max": 16}, None, id="the input's tokens"),
        pytest.param("prompt_tokens", clamp(max=16), "cannot be clamped", id="a clamped input"),
        pytest.param("prompt_tokens", {"force": 16}, "takes max and min only", id="a forced input"),
        pytest.param("user", {}, "the rule says nothing", id="nothing said"),
        pytest.param("model", {"forbid": "drop"}, "model cannot be ruled here: say `models`", id="model"),
        pytest.param("max_completion_tokens", {"max": 1}, "say `max_tokens`", id="another name of the ceiling"),
        pytest.param("max_token", {"max": 1}, "did you mean max_tokens?", id="a slip of the pen"),
        pytest.param("candidate", {"max": 1}, "did you mean candidates?", id="a slip in a computed name"),
        pytest.param("candidates", {"max": 1, "on_violation": "clamp"}, "cannot be clamped", id="clamped candidates"),
        pytest.param("prompts", {"default": 1}, "takes max and min only", id="a default for what is computed"),
        pytest.param("n", {"min": 4, "max": 2}, "min is 4, above max, which is 2", id="bounds that cross"),
        pytest.param("n", {"max": 0}, "max is 0, outside what n may be", id="a cap below the range"),
        pytest.param(
            "temperature", {"min": 3}, "min is 3, outside what temperature may be", id="a least above the range"
        ),
        pytest.param("n", {"max": 2.5}, "max is 2.5, but n is an integer", id="half a choice"),
        pytest.param("stop", {"max": 3}, "max is 3, but stop is no number", id="a cap on text"),
        pytest.param("n", {"default": 9, "max": 4}, "default: n is 9", id="a default outside"),
        pytest.param("n", {"force": 9, "max": 4}, "force: n is 9", id="a forced value outside"),
        pytest.param("n", {"force": 2, "default": 1}, "force leaves nothing for default", id="forced and defaulted"),
        pytest.param(
            "n", {"forbid": "drop", "default": 1}, "forbid leaves nothing for default", id="forbidden default"
        ),
        pytest.param(
            "n", {"default": "2"}, 'default is "2"; n must be an integer from 1 to 128', id="a quoted default"
        ),
        pytest.param("n", {"allowed": [1, 200]}, "allowed is 200; n must be", id="an allowed value out of range"),
        pytest.param("user", {"allowed": []}, "allowed is empty", id="nothing allowed"),
        pytest.param(
            "user", {"allowed": ["a"], "on_violation": "clamp"}, "only numbers can be clamped", id="clamped text"
        ),
    ],
)
def test_a_rule_that_makes_no_sense_is_named(name: str, rule: dict[str, Any], problem: str | None) -> None:
    problems = check_rule(name, Rule(**rule))
    assert problems == [] if problem is None else any(problem in said for said in problems), problems
