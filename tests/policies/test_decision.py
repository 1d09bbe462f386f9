"""The order of decisions: who may ask comes before what is asked, policy before price, price before limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.cacheability import Bypass, Keyed
from policies.catalog import Deployment, ModelSettings, Price
from policies.decision import Decision, decide
from policies.errors import Forbidden, InvalidRequest, PolicyViolation, Rejection, UnknownModel
from policies.policy import Limit, Policy, Rule
from policies.principals import AppliedPolicy, Principal
from policies.requests.asked import Action, Dialect, Endpoint
from policies.requests.dialects import read_request
from policies.rulebook import Rulebook

DEPLOYMENTS = (Deployment(upstream="a"), Deployment(upstream="b"))
RULEBOOK = Rulebook(
    {
        "m": ModelSettings(deployments=DEPLOYMENTS, aliases=("davinci",), price=Price(input=1.0, output=2.0)),
        "other": ModelSettings(deployments=DEPLOYMENTS),
        "single": ModelSettings(deployments=DEPLOYMENTS[:1]),
    },
    {
        "free": Policy(),
        "capped": Policy(parameters={"n": Rule(max=2, on_violation="clamp"), "best_of": Rule(max=3)}),
        "trimmed": Policy(parameters={"prompt": Rule(force="a")}),
        "counted": Policy(limits=(Limit(of="tokens", limit=1000, per="hour", by=("user",)),)),
        "requests": Policy(limits=(Limit(of="requests", limit=1000, per="hour", by=("user",)),)),
        "after": Policy(limits=(Limit(of="tokens", limit=1000, per="hour", by=("user",), hold="none"),)),
        "watched": Policy(limits=(Limit(of="tokens", limit=1000, per="hour", by=("user",), mode="observe"),)),
    },
)


def decided(fields: dict[str, object], *policies: str, models: tuple[str, ...] = ("m",)) -> Decision:
    asked = read_request(
        endpoint=Endpoint.COMPLETIONS,
        dialect=Dialect.OPENAI,
        fields={"model": "davinci", "prompt": "abcd", **fields},
        path_model=None,
        api_version=None,
    )
    principal = Principal(
        "org", "proj", "alice", "key", models=models, policies=tuple(AppliedPolicy("key", name) for name in policies)
    )
    return decide(asked, principal, RULEBOOK, cache_control=None, draw=0.0)


@pytest.mark.parametrize(
    ("fields", "models", "error"),
    [
        pytest.param({"model": "none", "logprobs": 6}, ("m",), UnknownModel, id="the model comes first"),
        pytest.param({"logprobs": 6}, ("other",), Forbidden, id="then who may use it"),
        pytest.param({"logprobs": 6, "best_of": 9}, ("m",), InvalidRequest, id="then what the model takes"),
        pytest.param({"best_of": 9, "n": 9}, ("m",), PolicyViolation, id="then what policy allows"),
    ],
)
def test_refusals_come_in_order(fields: dict[str, object], models: tuple[str, ...], error: type[Rejection]) -> None:
    with pytest.raises(error):
        decided(fields, "capped", models=models)


def test_the_worst_case_is_of_what_policy_left() -> None:
    decision = decided({"n": 2, "max_tokens": 10, "prompt": ["ab", "cd"]}, "capped")
    # 2 prompts x 2 candidates x 10 tokens; input by bytes: 4 + 8 for the request + 16 for each prompt
    assert (decision.worst_case.output_tokens, decision.worst_case.input_tokens) == (40, 44)
    assert decision.worst_case.cost_microdollars == 44 * 1 + 40 * 2


def test_a_clamp_lowers_the_worst_case() -> None:
    decision = decided({"n": 3, "max_tokens": 10}, "capped")
    assert decision.effective.fields["n"] == 2
    assert decision.worst_case.output_tokens == 20


def test_a_limit_that_holds_writes_the_ceiling_it_counts_on() -> None:
    decision = decided({}, "counted")
    assert decision.effective.fields["max_tokens"] == 16
    assert [(a.parameter, a.action) for a in decision.adjustments] == [("max_tokens", Action.DEFAULT)]
    assert [(bound.scope, bound.ask) for bound in decision.limits] == [(("alice",), decision.worst_case.tokens)]


def test_a_limit_that_is_settled_after_leaves_the_ceiling_open() -> None:
    decision = decided({}, "after")
    assert decision.effective.fields.keys() == {"prompt"}
    assert [(bound.ask, bound.takes) for bound in decision.limits] == [(1, 0)]


@pytest.mark.parametrize(
    ("fields", "ask"),
    [
        pytest.param({}, 28 + 16, id="the API's default where it is open"),  # 4 bytes + 8 + 16
        pytest.param({"max_tokens": 5}, 28 + 5, id="and else what was sent"),
    ],
)
def test_an_observed_limit_writes_no_ceiling_but_counts_on_it(fields: dict[str, object], ask: int) -> None:
    decision = decided(fields, "watched")
    assert decision.effective.fields.keys() == {"prompt", *fields}
    assert [bound.ask for bound in decision.limits] == [ask]


@pytest.mark.parametrize("policy", ["after", "watched"])
def test_input_that_nobody_knows_is_no_matter_where_nothing_has_to_be_held(policy: str) -> None:
    asked = read_request(
        endpoint=Endpoint.RESPONSES,
        dialect=Dialect.OPENAI,
        fields={"model": "single", "input": "Hi", "previous_response_id": "resp_1"},
        path_model=None,
        api_version=None,
    )
    principal = Principal("org", "proj", "alice", "key", policies=(AppliedPolicy("key", policy),))
    assert len(decide(asked, principal, RULEBOOK, cache_control=None, draw=0.0).limits) == 1
    counted = replace(principal, policies=(AppliedPolicy("key", "counted"),))
    with pytest.raises(InvalidRequest, match="context_window"):
        decide(asked, counted, RULEBOOK, cache_control=None, draw=0.0)


def test_a_limit_wants_multipliers_that_it_can_count() -> None:
    with pytest.raises(InvalidRequest, match='n_cmpl is "99"; it must be a whole number, since a limit has to know'):
        decided({"n_cmpl": "99"}, "counted")


@pytest.mark.parametrize("policy", ["free", "after", "watched", "requests"])
def test_a_multiplier_that_nobody_can_count_is_no_matter_where_nothing_has_to_be_held(policy: str) -> None:
    assert decided({"n_cmpl": "99"}, policy).effective.fields["n_cmpl"] == "99"


def test_what_was_normalised_is_told_before_what_policy_changed() -> None:
    decision = decided({"echo": [True], "n": 9}, "capped")
    assert [(a.parameter, a.action) for a in decision.adjustments] == [
        ("echo", Action.NORMALISE),
        ("n", Action.CLAMP),
    ]


def test_without_such_a_limit_the_request_stays_as_it_came() -> None:
    decision = decided({"x_unknown": {"a": None}}, "free")
    assert dict(decision.effective.fields) == {"prompt": "abcd", "x_unknown": {"a": None}}
    assert decision.adjustments == ()


@pytest.mark.parametrize(
    ("fields", "kind"),
    [({"temperature": 0}, Keyed), ({"seed": 1}, Keyed), ({"max_tokens": 0}, Keyed), ({}, Bypass)],
)
def test_the_cache_is_decided_on_the_effective_request(fields: dict[str, object], kind: type) -> None:
    assert isinstance(decided(fields, "free").cache, kind)


def test_advice_is_on_what_policy_left() -> None:
    assert decided({"prompt": ["a ", "b "]}, "free").advisories == ("prompt-ends-in-space",)
    assert decided({"prompt": "a "}, "trimmed").advisories == ()


def test_the_same_inputs_give_the_same_decision() -> None:
    fields = {"n": 9, "temperature": 0, "stop": ["x"]}
    assert decided(fields, "capped", "counted") == decided(fields, "capped", "counted")
