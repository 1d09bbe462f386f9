"""What is said to change nothing does change nothing: rules are applied with and without it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.catalog import Deployment, Model, ModelSettings
from policies.errors import InvalidRequest, PolicyViolation
from policies.merging import merge
from policies.parameters import apply_rules, observe_rules
from policies.policy import Policy, Rule
from policies.requests.asked import Dialect, Endpoint
from policies.requests.dialects import REQUEST_TYPES, read_request
from policies.rule_advice import Idle, idle_by_itself, idle_observed, idle_within
from policies.rule_checks import PARTS, check_rule, kinds_with

MODEL = Model("m", ModelSettings(deployments=(Deployment(upstream="u"),)))
ENDPOINTS = {Endpoint.COMPLETIONS: {"prompt": "hi"}, Endpoint.CHAT: {"messages": [{"content": "hi"}]}}
SMALL = st.integers(0, 5)
VALUES = {
    "n": SMALL | st.sampled_from([127, 128, 129]),
    "max_tokens": SMALL,
    "cache_level": st.integers(0, 2),
    "echo": st.booleans(),
    "top_k": SMALL,
    "user": st.sampled_from(["a", "b"]),
}


@st.composite
def rules(draw: st.DrawFn, name: str) -> Rule:
    """Draw a rule that a configuration may hold."""
    value = VALUES[name]
    chances: dict[str, st.SearchStrategy[Any]] = {
        "max": SMALL | st.just(128),
        "min": SMALL,
        "allowed": st.lists(value, min_size=1, max_size=4),
        "default": value,
        "force": value,
        "forbid": st.sampled_from(["reject", "drop"]),
        "pseudonymise": st.booleans(),
    }
    if name in {"echo", "user"}:
        del chances["max"], chances["min"]
    said = draw(st.sets(st.sampled_from(sorted(chances)), min_size=1, max_size=3))
    rule = Rule(on_violation=draw(st.sampled_from(["reject", "clamp"])), **{part: draw(chances[part]) for part in said})
    return rule if not check_rule(name, rule) else Rule(forbid="drop")


def endpoints_with(name: str) -> list[Endpoint]:
    """Return the endpoints that have the parameter; those of one that no API has."""
    return [each for each in ENDPOINTS if not kinds_with(name) or REQUEST_TYPES[each].has_parameter(name)]


def outcome(levels: list[tuple[str, Policy]], endpoint: Endpoint, fields: dict[str, Any]) -> object:
    """Return what policy makes of a request: its fields, or that it refuses it."""
    asked = read_request(
        endpoint=endpoint,
        dialect=Dialect.OPENAI,
        fields={"model": "m", **ENDPOINTS[endpoint], **fields},
        path_model=None,
        api_version=None,
    )
    try:
        return dict(apply_rules(asked, merge(levels), MODEL, lambda _: "pseudonym")[0].fields)
    except PolicyViolation:
        return "refused"


@given(st.data())
def test_what_is_idle_can_be_left_out_of_a_policy_within_another(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(VALUES)))
    outer, inner = data.draw(rules(name)), data.draw(rules(name))
    levels = [("outer", Policy(parameters={name: outer}))]
    policy = Policy(parameters={name: inner})
    idle = {found.said.partition(":")[0] for found in (*idle_by_itself(policy), *idle_within(levels, policy))}
    value = data.draw(st.none() | VALUES[name])
    for endpoint in endpoints_with(name):
        for part in idle & set(PARTS):
            if "never written" in "".join(found.verdict[0] for found in idle_within(levels, policy)):
                continue  # which is moved, and not idle
            without = inner.model_copy(update={part: Rule.model_fields[part].default})
            left = [*levels, ("inner", Policy(parameters={name: without}))]
            try:
                assert outcome([*levels, ("inner", policy)], endpoint, {name: value}) == outcome(
                    left, endpoint, {name: value}
                )
            except InvalidRequest:
                break


@given(st.data())
def test_an_observed_rule_that_tells_nothing_never_tells_anything(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(VALUES)))
    enforced, seen = data.draw(rules(name)), data.draw(rules(name)).model_copy(update={"mode": "observe"})
    policy = Policy(parameters={name: seen})
    levels = [("outer", Policy(parameters={name: enforced})), ("inner", policy)]
    if not idle_observed(levels, policy):
        return
    for endpoint in endpoints_with(name):
        try:
            asked = read_request(
                endpoint=endpoint,
                dialect=Dialect.OPENAI,
                fields={"model": "m", **ENDPOINTS[endpoint], name: data.draw(st.none() | VALUES[name])},
                path_model=None,
                api_version=None,
            )
            effective, _ = apply_rules(asked, merge(levels), MODEL, lambda _: "pseudonym")
        except (InvalidRequest, PolicyViolation):
            continue
        assert observe_rules(effective, asked, merge(levels), MODEL, lambda _: "pseudonym") == ()


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param(Rule(max=4), [], id="a bound"),
        pytest.param(
            Rule(min=0, on_violation="clamp"),
            [Idle("parameters.n", "min: 0", "n must be an integer from 1 to 128 anyway")],
            id="zero is said, too",
        ),
        pytest.param(Rule(), [], id="nothing said"),
    ],
)
def test_a_policy_by_itself(rule: Rule, expected: list[Idle]) -> None:
    assert idle_by_itself(Policy(parameters={"n": rule})) == expected


def test_a_value_that_is_false_is_said() -> None:
    levels = [("p", Policy(parameters={"echo": Rule(force=True)}))]
    [found] = idle_within(levels, Policy(parameters={"echo": Rule(force=False)}))
    assert (found.said, found.because) == ("force: false", "policy 'p' forces true")
