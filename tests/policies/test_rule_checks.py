"""What is wrong with a rule is said when it is read, not when it meets a request."""

from __future__ import annotations

from typing import Any

import pytest

from policies.merging import MergedRule, Part
from policies.policy import Rule
from policies.rule_checks import check_rule, lets_nothing_through


def clamp(**bounds: object) -> dict[str, Any]:
    return {**bounds, "on_violation": "clamp"}


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
        pytest.param("user", {"mode": "observe"}, "the rule says nothing", id="only how it would be said"),
        pytest.param("suffix", {"override": True}, None, id="an override that lifts what stands outside"),
        pytest.param(
            "stream_options.include_usage", {"force": True}, "such as stream_options", id="a part of a parameter"
        ),
        pytest.param("prompt", {"strip_trailing_space": True}, None, id="prompts may be stripped"),
        pytest.param("stop", {"strip_trailing_space": True}, "is for prompt, not for stop", id="stripped stops"),
        pytest.param("stop", {"add": ["a", "b", "c", "d"]}, None, id="as many stops as there may be"),
        pytest.param("stop", {"add": list("abcde")}, "add holds 5 texts; stop takes at most 4", id="more stops"),
        pytest.param("user", {"add": ["a"]}, "add is for stop, not for user", id="added to a text"),
        pytest.param("x", {"add": ["a"]}, "add is for stop, not for x", id="added to what nobody knows"),
        pytest.param("user", {"pseudonymise": True}, None, id="a pseudonym for the end user"),
        pytest.param("safety_identifier", {"pseudonymise": True}, None, id="under its newer name"),
        pytest.param(
            "suffix",
            {"pseudonymise": True},
            "is for user and safety_identifier, not for suffix",
            id="a pseudonym elsewhere",
        ),
        pytest.param(
            "user",
            {"pseudonymise": True, "default": "a"},
            "pseudonymise leaves nothing for default",
            id="a pseudonym and a default",
        ),
        pytest.param(
            "stop", {"forbid": "drop", "add": ["a"]}, "forbid leaves nothing for add", id="forbidden and added to"
        ),
        pytest.param("stop", {"force": "b", "add": ["a"]}, "force leaves nothing for add", id="forced and added to"),
        pytest.param("models", {"allowed": ["gpt-*"]}, "stands beside `parameters`", id="models are no parameter"),
        pytest.param("unknown_parameters", {"forbid": "drop"}, "stands beside `parameters`", id="nor are unknown ones"),
        pytest.param("n_predict", {"max": 5}, "say `max_tokens`", id="a server's own name of the ceiling"),
        pytest.param("prompts", {"max": 5, "mode": "observe", "override": True}, None, id="an observed count"),
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
        pytest.param(
            "n", {"default": 9, "max": 4}, "default is 9; the rule itself allows at most 4", id="a default outside"
        ),
        pytest.param(
            "n", {"force": 1, "min": 4}, "force is 1; the rule itself allows at least 4", id="a forced value outside"
        ),
        pytest.param(
            "user",
            {"force": "a", "allowed": ["b", "c"]},
            'force is "a"; the rule itself allows only "b", "c"',
            id="a forced value that is not listed",
        ),
        pytest.param(
            "user",
            {"pseudonymise": True, "force": "a"},
            "pseudonymise leaves nothing for force to say",
            id="a pseudonym and a forced value",
        ),
        pytest.param("n", {"allowed": [1, None]}, "allowed holds null, which is as good as absent", id="null allowed"),
        pytest.param("top_k", {"allowed": [None]}, "allowed holds null", id="null allowed where nothing is known"),
        pytest.param(
            "stop",
            {"force": 5},
            "force is 5; stop must be a string, or an array of at most 4 strings",
            id="a number for stops, which only completions read",
        ),
        pytest.param(
            "stop",
            {"default": list("abcde")},
            'default is ["a","b","c","d","e"]; stop must be',
            id="more stops than there may be by default",
        ),
        pytest.param("stop", {"allowed": [["a"], 5]}, "allowed is 5; stop must be", id="a number among allowed stops"),
        pytest.param("stop", {"default": ["a"]}, None, id="a stop by default"),
        pytest.param(
            "logit_bias", {"force": {"a": 1}}, 'force is {"a":1}; logit_bias must be an object', id="a bias for no id"
        ),
        pytest.param(
            "presence_penalty",
            {"force": "x"},
            'force is "x"; presence_penalty must be a number from -2 to 2',
            id="a text for a penalty",
        ),
        pytest.param("presence_penalty", {"force": 1}, None, id="a penalty"),
        pytest.param("service_tier", {"force": "flex"}, None, id="what no endpoint reads"),
        pytest.param(
            "prompt", {"default": {"id": "pmpt_1"}}, None, id="a responses' prompt is another thing than completions'"
        ),
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


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param(MergedRule(), False, id="no bound lets all through"),
        pytest.param(MergedRule(max=Part(4, "a"), min=Part(4, "b")), False, id="one value is left"),
        pytest.param(MergedRule(max=Part(4, "a"), min=Part(5, "b")), True, id="bounds that cross"),
        pytest.param(
            MergedRule(allowed=(Part((1, 9), "a"),), max=Part(4, "b")), False, id="one of the allowed is inside"
        ),
        pytest.param(MergedRule(allowed=(Part((8, 9), "a"),), max=Part(4, "b")), True, id="none of them is"),
        pytest.param(MergedRule(allowed=(Part((), "b"),)), True, id="nothing is allowed"),
    ],
)
def test_bounds_that_contradict_each_other_are_found(rule: MergedRule, *, expected: bool) -> None:
    assert lets_nothing_through(rule) is expected
