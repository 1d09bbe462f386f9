"""What came of all requests of a file, summed: by group, by rule, by limit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from policies.principals import AppliedPolicy, Principal
from policies.simulation import RecordedRequest, Untold
from proxy.config import Configuration
from proxy.simulation import Effect, Findings, FullLimit, Principals, Ruling, simulate_all

CLAMP = {"parameters": {"n": {"max": 2, "on_violation": "clamp"}}}
PLAIN: dict[str, Any] = {
    "organization": {"id": "org", "policy": "all"},
    "upstreams": {"only": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}},
    "models": {
        "m": {"deployments": [{"upstream": "only"}], "price": {"input": 1, "output": 2}, "max_output_tokens": 64},
        "dear": {"deployments": [{"upstream": "only"}], "price": {"input": 10, "output": 20}},
    },
    "policies": {"all": {}, "team": {}, "person": {}, "one": {}},
    "projects": [{"id": "research", "policy": "team"}, {"id": "sales", "models": ["m"]}],
    "users": [{"id": "alice", "policy": "person"}],
    "keys": [
        {"id": "key_a", "project": "research", "user": "alice", "policy": "one", "sha256": "ab" * 32},
        {"id": "key_b", "project": "sales", "service_account": "alice", "sha256": "cd" * 32},
    ],
}


def configuration(**policies: Any) -> Configuration:  # noqa: ANN401  policies as configured
    return Configuration.model_validate({**PLAIN, "policies": {**PLAIN["policies"], **policies}})


def recorded(number: int = 0, **members: Any) -> RecordedRequest:  # noqa: ANN401  members of a record
    """Return a request that generated 4 candidates of 10 tokens: 100 + 40 x 2 micro-dollars."""
    record = {
        "request_id": f"req_{number}",
        "started_milliseconds": 1_700_000_000_000 + number * 1000,
        "ended_milliseconds": 1_700_000_000_500 + number * 1000,
        "project": "research",
        "owner": "alice",
        "key": "key_a",
        "endpoint": "completions",
        "dialect": "openai",
        "model_asked": "m",
        "outcome": "completed",
        "input_tokens": 100,
        "output_tokens": 40,
        "completions": 4,
        "cost_microdollars": 180,
        "input_bound_tokens": 100,
        "held_tokens": 300,
        "prompts": 1,
        "parameters": {"n": 4, "max_tokens": 50},
        **members,
    }
    return msgspec.json.decode(msgspec.json.encode(record), type=RecordedRequest)


def found(*records: RecordedRequest, **policies: Any) -> Findings:  # noqa: ANN401  policies as configured
    return simulate_all(configuration(**policies), records, [lambda record: record.project])


def test_nothing_comes_of_a_policy_that_says_nothing() -> None:
    findings = found(recorded(1), recorded(2, project="sales", key="key_b"))
    assert findings == Findings(groups={("research",): Effect(requests=1), ("sales",): Effect(requests=1)})


def test_refused_adjusted_and_untold_requests_are_summed_by_group() -> None:
    team = {
        "parameters": {
            **CLAMP["parameters"],
            "suffix": {"forbid": "reject"},
            "service_tier": {"allowed": ["auto"]},
            "seed": {"max": 5, "mode": "observe", "on_violation": "clamp"},
        }
    }
    chat = {"endpoint": "chat/completions", "parameters": {"messages_count": 1, "max_tokens": 50}, "completions": 1}
    findings = found(
        recorded(1),
        recorded(2),
        recorded(3, parameters={"suffix_count": 1}),
        recorded(4, **{**chat, "parameters": {**chat["parameters"], "service_tier_count": 1, "seed": 9}}),
        recorded(5, project="sales", key="key_b"),
        team=team,
    )
    assert findings.groups == {
        # two lose half of 40 tokens; one all of 100 + 40
        ("research",): Effect(
            requests=4,
            refused_by_rules=1,
            adjusted=2,
            untold=1,
            tokens_not_spent=2 * 20 + 140,
            microdollars_not_spent=2 * 40 + 180,
        ),
        ("sales",): Effect(requests=1),
    }
    assert findings.rules == {Ruling("n", "clamp", "team"): 2, Ruling("suffix", "reject", "team"): 1}
    assert findings.observed == {Ruling("seed", "clamp", "team"): 1}
    assert findings.untold == {Untold("service_tier", "allowed", "team"): 1}
    assert findings.total.requests == 5
    assert findings.total.microdollars_not_spent == 260


@pytest.mark.parametrize(
    ("record", "policies", "expected"),
    [
        pytest.param(
            recorded(parameters={"n": 4}),
            {"all": {"parameters": {"n": {"max": 3}}}, "one": {"parameters": {"n": {"max": 2}}}},
            Ruling("n", "reject", "one"),
            id="by the innermost bound",
        ),
        pytest.param(
            recorded(), {"all": {"models": ["dear"]}}, Ruling("model", "reject", "all"), id="by a list of models"
        ),
        pytest.param(
            recorded(project="sales", model_asked="dear"), {}, Ruling("model", "reject", None), id="by a project's list"
        ),
        pytest.param(recorded(model_asked="gone"), {}, Ruling("model", "reject", None), id="for want of the model"),
        pytest.param(
            recorded(endpoint="responses", input_is_bounded=False, parameters={}),
            {"all": {"limits": [{"of": "tokens", "limit": 9, "per": "day", "by": ["user"]}]}},
            Ruling("input_unbounded", "reject", None),
            id="for want of a bound",
        ),
    ],
)
def test_who_refuses_is_told(record: RecordedRequest, policies: dict[str, Any], expected: Ruling) -> None:
    assert found(record, **policies).rules == {expected: 1}


def test_limits_refuse_in_the_order_of_the_starts() -> None:
    limited = {"limits": [{"of": "tokens", "limit": 700, "per": "day", "by": ["user"]}]}
    # each holds 100 + 4 x 50 = 300 and takes 140: 140, 280, 420; then 420 + 300 > 700
    findings = found(*(recorded(number) for number in (4, 3, 2, 1)), all=limited)
    assert findings.limits == {FullLimit("tokens-per-day-by-user", "all"): 1}
    assert findings.total == Effect(requests=4, refused_by_limits=1, tokens_not_spent=140, microdollars_not_spent=180)


def test_limits_that_are_observed_are_told_by_what_they_would_have_refused() -> None:
    limits = [
        {"of": "tokens", "limit": 400, "per": "day", "by": ["user"], "name": "tokens", "mode": "observe"},
        {"of": "requests", "limit": 3, "per": "day", "by": ["user"], "name": "requests"},
    ]
    # each holds 300 and takes 140: 0 + 300 fits, 140 + 300 and 280 + 300 would not; the fourth request is refused
    findings = found(*map(recorded, range(4)), all={"limits": limits})
    assert findings.observed_limits == {FullLimit("tokens", "all"): 2}
    assert findings.limits == {FullLimit("requests", "all"): 1}


def test_what_rules_clamp_leaves_room_in_limits() -> None:
    limited = {"limits": [{"of": "tokens", "limit": 700, "per": "day", "by": ["user"]}]}
    # each holds 100 + 2 x 50 = 200 and takes 100 + 20: 120, 240, 360, 480
    assert not found(*map(recorded, range(4)), all=limited, team=CLAMP).limits


def test_who_was_refused_then_and_is_served_now_is_counted() -> None:
    refused = {"outcome": "rejected", "input_tokens": 0, "output_tokens": 0, "completions": 0, "cost_microdollars": 0}
    assert found(recorded(**refused)).total == Effect(requests=1, served_again=1)


def test_a_hit_needs_no_tokens_and_saves_no_money() -> None:
    limited = {"limits": [{"of": "tokens", "limit": 10, "per": "day", "by": ["user"]}]}
    hit = {"cache": "hit", "input_tokens": 0, "output_tokens": 0, "completions": 0, "cost_microdollars": 0}
    assert found(recorded(**hit), all=limited, team=CLAMP).total == Effect(requests=1, adjusted=1)


def test_what_could_not_be_read_is_counted_apart() -> None:
    unread = recorded(endpoint=None, dialect=None, model_asked=None, key="key_x")
    assert found(unread) == Findings(unread=1)


def test_keys_and_projects_that_are_not_configured_are_listed() -> None:
    findings = found(
        recorded(1, key="key_x", project="gone"),
        recorded(2, key="key_x"),
        recorded(3),
        all={"parameters": {"n": {"max": 3, "on_violation": "clamp"}}},
    )
    assert (findings.keys, findings.projects) == ({"key_x": 2}, {"gone": 1})
    assert findings.rules == {Ruling("n", "clamp", "all"): 3}


@pytest.mark.parametrize(
    ("members", "levels", "models"),
    [
        pytest.param({}, ("organization", "project", "user", "key"), ("*",), id="all that is configured"),
        pytest.param({"key": "key_x"}, ("organization", "project", "user"), ("*",), id="an unknown key"),
        pytest.param({"project": "gone"}, ("organization", "user", "key"), ("*",), id="an unknown project"),
        pytest.param({"owner": "eve"}, ("organization", "project", "key"), ("*",), id="an unknown user"),
        pytest.param(
            {"is_service_account": True}, ("organization", "project", "key"), ("*",), id="a service account is no user"
        ),
        pytest.param(
            {"project": "sales", "key": "key_b", "is_service_account": True},
            ("organization",),
            ("m",),
            id="a project with models",
        ),
    ],
)
def test_a_sender_has_the_levels_of_its_ids(
    members: dict[str, Any], levels: tuple[str, ...], models: tuple[str, ...]
) -> None:
    record = recorded(**members)
    policies = {"organization": "all", "project": "team", "user": "person", "key": "one"}
    assert Principals(configuration()).of(record) == Principal(
        "org",
        record.project,
        record.owner,
        record.key,
        models=models,
        policies=tuple(AppliedPolicy(level, policies[level]) for level in levels),  # type: ignore[arg-type]  levels
        is_service_account=record.is_service_account,
    )


def test_records_of_another_organization_are_told() -> None:
    findings = found(recorded(1, organization="org"), recorded(2, organization="other"), recorded(3))
    assert findings.organizations == {"other": 1}
    assert findings.total.requests == 3
