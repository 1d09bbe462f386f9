from __future__ import annotations

import json
from typing import Any

import pytest
from exchanges import ALICE, MODELS, STARTED, STARTED_AT, make_exchange
from msgspec.structs import replace

from policies.catalog import Model, Price
from policies.charges import Charged
from policies.policy import Rule
from policies.principals import AppliedPolicy, Principal
from policies.requests.asked import Action, Adjustment, AskedRequest, Dialect, Endpoint
from policies.requests.dialects import read_request
from policies.usage import MAX_TEXT_CHARACTERS, Provider, Saved, Usage, UsageRecord
from proxy.exchange import CacheResult, Exchange, Outcome
from proxy.records import orphan_record, saved_microdollars, usage_record

CHARGED = Charged(
    input_tokens=10,
    output_tokens=20,
    cached_input_tokens=4,
    reasoning_tokens=5,
    cost_microdollars=55,
    known="reported",
    completions=4,
)


def finished(fields: dict[str, Any] | None = None, **options: Any) -> Exchange:  # noqa: ANN401  make_exchange's own
    exchange = make_exchange(fields, **options)
    exchange.status = 200
    exchange.outcome = Outcome.COMPLETED
    exchange.cache = CacheResult.MISS
    exchange.deployment = "instruct-prod"
    exchange.upstream = "llama"
    exchange.attempts = 2
    exchange.attempts_of_unknown_cost = 1
    exchange.answer.model = "m-2026"
    exchange.first_byte = STARTED + 0.125
    exchange.answer.content_events = 1
    exchange.ended = STARTED + 1.5
    return exchange


def record(exchange: Exchange, charged: Charged | None = CHARGED) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(usage_record(exchange, charged))
    return found


def test_the_record_holds_everything_the_specification_names() -> None:
    exchange = finished(
        {"n": 8, "max_tokens": 50, "user": "customer", "num_ctx": 1}, rules={"n": Rule(max=4, on_violation="clamp")}
    )
    exchange.client_request_id = "mine"
    exchange.upstream_request_id = "theirs"
    exchange.upstream_status = 200
    exchange.configuration_version = "3f0c"
    exchange.waited_seconds = 0.25
    assert exchange.decision is not None
    bound = exchange.decision.worst_case
    assert record(exchange) == {
        "request_id": "req_1",
        "client_request_id": "mine",
        "origin": "client",
        "started_milliseconds": 1_700_000_000_250,
        "ended_milliseconds": 1_700_000_001_750,
        "duration_seconds": 1.5,
        "waited_seconds": 0.25,
        "time_to_first_token_seconds": 0.125,
        "organization": "org_acme",
        "project": "proj_research",
        "owner": "alice",
        "is_service_account": False,
        "key": "key_alice",
        "end_user": "customer",
        "route": "/v1/completions",
        "endpoint": "completions",
        "dialect": "openai",
        "model_asked": "davinci",
        "model": "m",
        "model_served": "m-2026",
        "upstream": "llama",
        "deployment": "instruct-prod",
        "upstream_request_id": "theirs",
        "upstream_status": 200,
        "attempts": 2,
        "attempts_of_unknown_cost": 1,
        "status": 200,
        "outcome": "completed",
        "error_code": None,
        "input_tokens": 10,
        "output_tokens": 20,
        "cached_input_tokens": 4,
        "reasoning_tokens": 5,
        "completions": 4,
        "known": "reported",
        "cost_microdollars": 55,
        "input_bound_tokens": bound.input_tokens,
        "input_is_bounded": True,
        "held_tokens": bound.input_tokens + 4 * 50,
        "held_cost_microdollars": bound.cost_microdollars,
        "cache": "miss",
        "cache_reason": None,
        "saved_input_tokens": 0,
        "saved_output_tokens": 0,
        "saved_microdollars": 0,
        "provided": [],
        "prompts": 1,
        "parameters": {"prompt_count": 1, "n": 8, "max_tokens": 50, "user_count": 1},
        "unknown_fields": ["num_ctx"],
        "adjustments": [{"parameter": "n", "rule": "clamp", "policy": "default", "before": 8, "after": 4}],
        "observed": [],
        "policies": ["default"],
        "configuration_version": "3f0c",
    }


def test_what_observed_limits_would_have_refused_stands_beside_what_observed_rules_would_have_done() -> None:
    told = finished()
    assert told.decision is not None
    told.decision = replace(told.decision, observed=(Adjustment("n", 8, 4, Action.CLAMP, "rules"),))
    told.observed_refusals = (Adjustment("tokens-per-day-by-user", 66, 40, Action.REJECT, "limits"),)
    assert record(told)["observed"] == [
        {"parameter": "n", "rule": "clamp", "policy": "rules", "before": 8, "after": 4},
        {"parameter": "tokens-per-day-by-user", "rule": "reject", "policy": "limits", "before": 66, "after": 40},
    ]


def test_every_field_is_written_in_the_record_s_order() -> None:
    assert tuple(record(finished())) == UsageRecord.__struct_fields__


PROMPT = "a text that must stay secret"


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        pytest.param(
            Endpoint.COMPLETIONS,
            {"prompt": [PROMPT, PROMPT], "suffix": PROMPT, "stop": [PROMPT], "x": {PROMPT: PROMPT}, "metadata": PROMPT},
            id="completions",
        ),
        pytest.param(
            Endpoint.CHAT,
            {
                "messages": [{"role": "user", "content": PROMPT}],
                "tools": [{"type": "function", "function": {"name": "f", "description": PROMPT}}],
                "response_format": {"type": PROMPT},
                "prediction": {"content": PROMPT},
            },
            id="chat",
        ),
        pytest.param(Endpoint.EMBEDDINGS, {"input": [PROMPT]}, id="embeddings"),
    ],
)
def test_no_prompt_stands_in_a_record(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    exchange = finished(fields, endpoint=endpoint)
    assert PROMPT.encode() not in usage_record(exchange, CHARGED) + orphan_record(exchange)


def test_a_dropped_text_does_not_stand_in_its_adjustment() -> None:
    exchange = finished({"suffix": PROMPT}, rules={"suffix": Rule(forbid="drop")})
    assert record(exchange)["adjustments"] == [
        {"parameter": "suffix", "rule": "drop", "policy": "default", "before": None, "after": None}
    ]


def test_what_clients_and_upstreams_call_themselves_is_bounded() -> None:
    exchange = finished({"user": "u" * 5000})
    exchange.client_request_id = "c" * 5000
    exchange.upstream_request_id = "r" * 5000
    exchange.answer.model = "m" * 5000
    found = record(exchange)
    names = ("end_user", "client_request_id", "upstream_request_id", "model_served")
    assert {len(found[name]) for name in names} == {MAX_TEXT_CHARACTERS}


def test_header_bytes_that_are_no_text_do_not_break_the_record() -> None:
    exchange = finished()
    exchange.client_request_id = "a\udcff"
    assert record(exchange)["client_request_id"] == "a\\udcff"


def test_a_service_account_is_told_from_a_user() -> None:
    bot = Principal(
        "org_acme",
        "proj_research",
        "bot",
        "key_bot",
        policies=(AppliedPolicy("project", "default"),),
        is_service_account=True,
    )
    found = record(finished(principal=bot))
    assert (found["owner"], found["is_service_account"]) == ("bot", True)


ANNA = Provider("proj_sales", "anna", is_service_account=False, key="key_anna")
BOT = Provider("proj_research", "bot", is_service_account=True, key="key_bot")


def test_a_hit_tells_what_it_saved_and_who_had_paid_for_it() -> None:
    exchange = finished({"temperature": 0})
    exchange.cache = CacheResult.HIT
    exchange.saved = (Saved(Usage(1000, 500), ANNA),)
    found = record(exchange, None)
    # At 1.5 and 2 micro-dollars a token.
    assert found["saved_input_tokens"] == 1000
    assert found["saved_output_tokens"] == 500
    assert found["saved_microdollars"] == saved_microdollars(exchange) == 1500 + 1000
    assert found["provided"] == [
        {
            "project": "proj_sales",
            "owner": "anna",
            "is_service_account": False,
            "key": "key_anna",
            "input_tokens": 1000,
            "output_tokens": 500,
            "microdollars": 2500,
        }
    ]
    assert (found["input_tokens"], found["cost_microdollars"], found["known"]) == (0, 0, "none")


def test_several_stored_answers_are_summed_by_who_paid_and_rounded_one_by_one() -> None:
    exchange = finished({"temperature": 0})
    exchange.cache = CacheResult.PARTIAL
    exchange.saved = (
        Saved(Usage(1, 0), ANNA),  # 1.5 micro-dollars
        Saved(Usage(3, 2), BOT),  # 8.5
        Saved(Usage(1, 1), ANNA),  # 3.5
        Saved(Usage(5, 0), None),  # 7.5, and nobody to thank
        Saved(None, ANNA),
    )
    found = record(exchange)
    assert (found["saved_input_tokens"], found["saved_output_tokens"]) == (10, 3)
    assert found["saved_microdollars"] == saved_microdollars(exchange) == 2 + 9 + 4 + 8
    names = ("owner", "is_service_account", "input_tokens", "output_tokens", "microdollars")
    assert [tuple(each[name] for name in names) for each in found["provided"]] == [
        ("anna", False, 2, 1, 2 + 4),
        ("bot", True, 3, 2, 9),
    ]
    assert (found["cache"], found["input_tokens"], found["cost_microdollars"]) == ("partial", 10, 55)


def test_tokens_that_an_upstream_had_cached_were_cheaper_to_fetch() -> None:
    exchange = finished()
    assert exchange.decision is not None
    settings = MODELS["m"].model_copy(update={"price": Price(input=2.0, output=3.0, cached_input=1.0)})
    exchange.decision = replace(exchange.decision, model=Model("m", settings))
    exchange.saved = (Saved(Usage(10, 1, cached_input_tokens=4), ANNA),)
    assert saved_microdollars(exchange) == 6 * 2 + 4 * 1 + 3


@pytest.mark.parametrize("cache", [pytest.param(each, id=each.value) for each in CacheResult])
def test_what_no_stored_answer_served_saves_nothing(cache: CacheResult) -> None:
    exchange = finished()
    exchange.cache = cache
    exchange.answer.usage = Usage(1000, 500)
    assert saved_microdollars(exchange) == 0
    found = record(exchange)
    assert (found["saved_input_tokens"], found["saved_microdollars"], found["provided"]) == (0, 0, [])


def test_a_hit_whose_answer_reported_no_usage_saves_nothing_known() -> None:
    exchange = finished()
    exchange.cache = CacheResult.HIT
    exchange.saved = (Saved(None, ANNA),)
    found = record(exchange, None)
    assert (found["saved_input_tokens"], found["saved_microdollars"], found["provided"]) == (0, 0, [])


def test_a_request_refused_before_its_decision_leaves_a_record_too() -> None:
    exchange = Exchange("req_2", STARTED_AT, STARTED, principal=ALICE, status=400, outcome=Outcome.REJECTED)
    exchange.error_code = "invalid_json"
    found = record(exchange, None)
    assert tuple(found) == UsageRecord.__struct_fields__
    assert (found["model"], found["parameters"], found["held_tokens"]) == (None, {}, 0)
    assert (found["status"], found["outcome"], found["error_code"]) == (400, "rejected", "invalid_json")


def asked(fields: dict[str, Any], endpoint: Endpoint = Endpoint.COMPLETIONS) -> AskedRequest:
    return read_request(endpoint=endpoint, dialect=Dialect.ENGINES, fields=fields, path_model="old", api_version=None)


def refused(asked: AskedRequest, model: Model | None) -> dict[str, Any]:
    """Return the record of a request that policy has refused."""
    exchange = Exchange("req_5", STARTED_AT, STARTED, principal=ALICE, status=400, outcome=Outcome.REJECTED)
    exchange.asked, exchange.model = asked, model
    return record(exchange, None)


def test_a_request_that_policy_refused_tells_what_was_asked() -> None:
    found = refused(asked({"prompt": ["p", "qr"], "n": 9, "user": "customer", "x": 1}), Model("m", MODELS["m"]))
    names = ("endpoint", "dialect", "model_asked", "model", "end_user", "parameters", "unknown_fields", "prompts")
    assert {name: found[name] for name in names} == {
        "endpoint": "completions",
        "dialect": "engines",
        "model_asked": "old",
        "model": "m",
        "end_user": "customer",
        "parameters": {"prompt_count": 2, "n": 9, "user_count": 1},
        "unknown_fields": ["x"],
        "prompts": 2,
    }
    # 3 bytes of text, 8 for the request and 16 for each prompt; the unknown x is a number
    assert (found["input_bound_tokens"], found["input_is_bounded"]) == (3 + 8 + 2 * 16, True)
    assert (found["adjustments"], found["held_tokens"]) == ([], 0)


def test_the_input_for_an_unknown_model_is_measured_as_for_a_new_one() -> None:
    found = refused(asked({"prompt": "p"}), None)
    assert (found["model"], found["input_bound_tokens"]) == (None, 1 + 8 + 16)


def test_an_input_that_is_partly_named_is_told() -> None:
    found = refused(asked({"input": "hello", "previous_response_id": "r"}, Endpoint.RESPONSES), Model("m", MODELS["m"]))
    assert found["input_is_bounded"] is False
    assert found["input_bound_tokens"] >= len("hello")


def test_a_request_that_was_not_admitted_held_nothing() -> None:
    exchange = finished({"max_tokens": 50})
    exchange.status, exchange.outcome = 429, Outcome.REJECTED
    found = record(exchange, None)
    assert (found["held_tokens"], found["held_cost_microdollars"]) == (0, 0)
    assert found["input_bound_tokens"] > 0


def test_who_is_not_known_leaves_no_record() -> None:
    with pytest.raises(ValueError, match="principal"):
        usage_record(Exchange("req_3", STARTED_AT, STARTED), None)


def test_an_orphan_is_booked_at_its_worst_case() -> None:
    exchange = make_exchange({"n": 2, "max_tokens": 50})
    assert exchange.decision is not None
    worst = exchange.decision.worst_case
    found = json.loads(orphan_record(exchange))
    assert tuple(found) == UsageRecord.__struct_fields__
    assert (found["outcome"], found["known"]) == ("orphaned", "worst_case")
    assert (found["input_tokens"], found["output_tokens"]) == (worst.input_tokens, 100)
    assert found["cost_microdollars"] == worst.cost_microdollars > 0
    assert (found["ended_milliseconds"], found["duration_seconds"]) == (None, None)


def test_nothing_is_orphaned_before_a_decision() -> None:
    with pytest.raises(ValueError, match="decision"):
        orphan_record(Exchange("req_4", STARTED_AT, STARTED, principal=ALICE))


def test_a_record_is_one_line() -> None:
    exchange = finished({"user": "a\nb\r\u2028c"})
    assert b"\n" not in usage_record(exchange, CHARGED)
