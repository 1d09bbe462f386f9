"""A record says what was asked as far as it says anything; the rest is neither guessed nor passed over."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from policies.catalog import Deployment, ModelSettings, Price
from policies.charges import Charged
from policies.decision import Decision
from policies.errors import Forbidden, InvalidRequest, PolicyViolation, Rejection, UnknownModel
from policies.policy import Limit, Policy, Rule
from policies.principals import AppliedPolicy, Principal
from policies.requests.asked import Action, Endpoint
from policies.rulebook import Rulebook
from policies.simulation import NotSpent, RecordedRequest, Simulated, charge_again, not_spent, simulate

PRINCIPAL = Principal("org", "proj", "alice", "key", policies=(AppliedPolicy("project", "p"),))
MODELS = {
    "m": ModelSettings(deployments=(Deployment(upstream="a"),), price=Price(input=1.0, output=2.0)),
    "free": ModelSettings(deployments=(Deployment(upstream="a"),)),
}
CHAT, EMBEDDINGS, RESPONSES = "chat/completions", "embeddings", "responses"


def recorded(endpoint: str = "completions", **members: Any) -> RecordedRequest:  # noqa: ANN401  members of a record
    """Return a record of a request whose input has 10 tokens; what stands here is read from JSON, as from a file."""
    record = {
        "request_id": "req_1",
        "started_milliseconds": 1_700_000_000_000,
        "endpoint": endpoint,
        "dialect": "openai",
        "model_asked": "m",
        "outcome": "completed",
        "input_bound_tokens": 10,
        "prompts": 1,
        **members,
    }
    return msgspec.json.decode(msgspec.json.encode(record), type=RecordedRequest)


def simulated(record: RecordedRequest, policy: Policy | None = None, **rules: Rule) -> Simulated:
    return simulate(record, PRINCIPAL, Rulebook(MODELS, {"p": policy or Policy(parameters=rules)}))


def decided(record: RecordedRequest, policy: Policy | None = None, **rules: Rule) -> Decision:
    outcome = simulated(record, policy, **rules).outcome
    assert isinstance(outcome, Decision), outcome
    return outcome


CLAMPED = Rule(max=2, on_violation="clamp")


@pytest.mark.parametrize(
    ("record", "rules", "expected"),
    [
        pytest.param(
            recorded(parameters={"n": 5}), {"n": CLAMPED}, [("n", "clamp", 5, 2)], id="a number is known as it was"
        ),
        pytest.param(recorded(parameters={"n": 2}), {"n": CLAMPED}, [], id="one within its bound is left"),
        pytest.param(
            recorded(parameters={"n": 5.0}), {"n": CLAMPED}, [("n", "clamp", 5.0, 2)], id="a whole number as a float"
        ),
        pytest.param(
            recorded(parameters={"echo": True}),
            {"echo": Rule(force=False)},
            [("echo", "force", True, False)],
            id="a boolean is known as it was",
        ),
        pytest.param(
            recorded(parameters={"suffix_count": 1}),
            {"suffix": Rule(forbid="drop")},
            [("suffix", "drop", "\0", None)],
            id="of a text it is known that it was there",
        ),
        pytest.param(recorded(), {"suffix": Rule(forbid="drop")}, [], id="and that it was not"),
        pytest.param(
            recorded(end_user="customer", parameters={"user_count": 1}),
            {"user": Rule(allowed=("customer",))},
            [],
            id="the end user is known by name",
        ),
        pytest.param(
            recorded(unknown_fields=["num_ctx"]),
            {"num_ctx": Rule(force=4)},
            [("num_ctx", "force", "\0", 4)],
            id="of an unknown member it is known that it was there",
        ),
        pytest.param(
            recorded(parameters={"n_predict": -1}, unknown_fields=["n_predict"]),
            {"max_tokens": Rule(max=50, on_violation="clamp")},
            [("n_predict", "clamp", -1, 50), ("max_tokens", "default", None, 16)],
            id="a ceiling is known under every name",
        ),
        pytest.param(
            recorded(CHAT, parameters={"messages_count": 1, "n_cmpl": 9}, unknown_fields=["n_cmpl"]),
            {"n_cmpl": CLAMPED},
            [("n_cmpl", "clamp", 9, 2)],
            id="and how many candidates there are",
        ),
        pytest.param(
            recorded(parameters={"stop_count": 4}),
            {"stop": Rule(add=("end",), on_violation="clamp")},
            [("stop", "add", ["\0"] * 4, ["\0"] * 3 + ["end"])],
            id="texts are added to as many as there were",
        ),
        pytest.param(
            recorded(CHAT, parameters={"messages_count": 2, "service_tier_count": 1}),
            {"service_tier": Rule(force="flex"), "top_p": Rule(default=0.5)},
            [("service_tier", "force", "\0", "flex"), ("top_p", "default", None, 0.5)],
            id="a chat",
        ),
        pytest.param(
            recorded(EMBEDDINGS, parameters={"input_count": 3, "dimensions": 512}, prompts=3),
            {"dimensions": Rule(max=256, on_violation="clamp")},
            [("dimensions", "clamp", 512, 256)],
            id="an embedding",
        ),
        pytest.param(
            recorded(RESPONSES, parameters={"input_count": 1, "stream": True, "stream_options_count": 1}),
            {"stream": Rule(forbid="drop")},
            [("stream", "drop", True, None), ("stream_options", "drop", {}, None)],
            id="a response, and what goes with its stream",
        ),
    ],
)
def test_rules_do_to_a_record_what_they_do_to_a_request(
    record: RecordedRequest, rules: dict[str, Rule], expected: list[tuple[Any, ...]]
) -> None:
    told = simulated(record, **rules)
    assert isinstance(told.outcome, Decision)
    assert [(each.parameter, each.action, each.before, each.after) for each in told.outcome.adjustments] == expected
    assert told.untold == ()


@pytest.mark.parametrize(
    ("record", "policy", "error", "param"),
    [
        pytest.param(
            recorded(parameters={"n": 5}), Policy(parameters={"n": Rule(max=2)}), PolicyViolation, "n", id="a number"
        ),
        pytest.param(
            recorded(parameters={"suffix_count": 1}),
            Policy(parameters={"suffix": Rule(forbid="reject")}),
            PolicyViolation,
            "suffix",
            id="a text",
        ),
        pytest.param(
            recorded(unknown_fields=["x"]), Policy(unknown_parameters="reject"), PolicyViolation, "x", id="unknown"
        ),
        pytest.param(
            recorded(CHAT, parameters={"messages_count": 1, "service_tier_count": 1}),
            Policy(parameters={"service_tier": Rule(max=3)}),
            PolicyViolation,
            "service_tier",
            id="what is no number under a bound of numbers",
        ),
        pytest.param(
            recorded(prompts=4), Policy(parameters={"prompts": Rule(max=3)}), PolicyViolation, "prompts", id="prompts"
        ),
        pytest.param(
            recorded(prompts=4, parameters={"n": 3, "best_of": 5}),
            Policy(parameters={"candidates": Rule(max=19)}),
            PolicyViolation,
            "candidates",
            id="candidates",
        ),
        *(
            pytest.param(
                recorded(endpoint, parameters={name: 9}, unknown_fields=[name]),
                Policy(parameters={"candidates": Rule(max=8)}),
                PolicyViolation,
                "candidates",
                id=f"candidates as {name} of {endpoint}",
            )
            for endpoint, name in (("completions", "n_cmpl"), (RESPONSES, "n"), (RESPONSES, "best_of"))
        ),
        pytest.param(
            recorded(input_bound_tokens=201),
            Policy(parameters={"prompt_tokens": Rule(max=200)}),
            PolicyViolation,
            "prompt_tokens",
            id="the input's bound",
        ),
        pytest.param(
            recorded(prompts=2, parameters={"n": 3, "max_tokens": 50}),  # 10 + 2 x 3 x 50 = 310
            Policy(parameters={"worst_case_tokens": Rule(max=309)}),
            PolicyViolation,
            "worst_case_tokens",
            id="the worst case",
        ),
        pytest.param(recorded(), Policy(models=("gpt-*",)), Forbidden, "model", id="a list of models"),
        pytest.param(recorded(model_asked="none"), Policy(), UnknownModel, "model", id="a model that is gone"),
        pytest.param(recorded(parameters={"logprobs": 6}), Policy(), InvalidRequest, "logprobs", id="a model's bound"),
        pytest.param(
            recorded(CHAT, parameters={"messages_count": 1}),
            Policy(limits=(Limit(of="tokens", limit=9, per="day", by=("user",)),)),
            InvalidRequest,
            "max_completion_tokens",
            id="a limit that has to know a ceiling",
        ),
        pytest.param(
            recorded(RESPONSES, parameters={"max_output_tokens": 9}, input_is_bounded=False),
            Policy(limits=(Limit(of="tokens", limit=9, per="day", by=("user",)),)),
            InvalidRequest,
            None,
            id="a limit that has to know an input",
        ),
    ],
)
def test_rules_refuse_a_record_as_they_refuse_a_request(
    record: RecordedRequest, policy: Policy, error: type[Rejection], param: str | None
) -> None:
    outcome = simulated(record, policy).outcome
    assert isinstance(outcome, error)
    assert outcome.param == param


TIER = {"messages_count": 1, "service_tier_count": 1}


@pytest.mark.parametrize(
    ("record", "rules", "untold"),
    [
        pytest.param(
            recorded(parameters={"prompt_count": 1}),
            {"prompt": Rule(strip_trailing_space=True)},
            [("prompt", "strip_trailing_space")],
            id="whether a prompt ends in a space",
        ),
        pytest.param(recorded(), {"prompt": Rule(strip_trailing_space=True)}, [], id="but not whether there is one"),
        pytest.param(
            recorded(CHAT, parameters=TIER),
            {"service_tier": Rule(allowed=("auto",))},
            [("service_tier", "allowed")],
            id="whether a text is on a list",
        ),
        pytest.param(
            recorded(CHAT, parameters=TIER),
            {"service_tier": Rule(allowed=("auto", "flex"), force="flex")},
            [],
            id="but it is, where it is replaced",
        ),
        pytest.param(
            recorded(unknown_fields=["num_ctx"]),
            {"num_ctx": Rule(max=9, min=1, allowed=(1, 2))},
            [("num_ctx", "allowed"), ("num_ctx", "max"), ("num_ctx", "min")],
            id="whether an unknown member is within its bounds",
        ),
        pytest.param(recorded(), {"num_ctx": Rule(max=9)}, [], id="unless it is not there"),
        pytest.param(
            recorded(end_user="c" * 256, parameters={"user_count": 1}),
            {"user": Rule(allowed=("customer",))},
            [("user", "allowed")],
            id="an end user whose name was cut",
        ),
        pytest.param(
            recorded(CHAT, parameters=TIER),
            {"service_tier": Rule(allowed=("auto",), mode="observe")},
            [("service_tier", "allowed")],
            id="a rule that is observed only",
        ),
        pytest.param(
            recorded(parameters={"stop_count": 4}),
            {"stop": Rule(add=("end",))},
            [("stop", "add")],
            id="whether a text that has no room was sent",
        ),
        pytest.param(recorded(parameters={"stop_count": 3}), {"stop": Rule(add=("end",))}, [], id="but not with room"),
        pytest.param(
            recorded(parameters={"suffix_count": 1}, unknown_fields=["prompts"]),
            {"prompts": Rule(max=3)},
            [],
            id="a member that is called as a computed one",
        ),
    ],
)
def test_what_a_record_cannot_tell_is_told(
    record: RecordedRequest, rules: dict[str, Rule], untold: list[tuple[str, str]]
) -> None:
    told = simulated(record, **rules)
    assert [(each.parameter, each.part) for each in told.untold] == untold
    assert {each.policy for each in told.untold} <= {"p"}
    assert isinstance(told.outcome, Decision)


def test_the_rest_of_a_rule_is_decided() -> None:
    told = simulated(
        recorded(CHAT, parameters={**TIER, "n": 5}), service_tier=Rule(allowed=("auto",)), n=CLAMPED, top_p=Rule(max=1)
    )
    assert isinstance(told.outcome, Decision)
    assert [(each.parameter, each.action) for each in told.outcome.adjustments] == [("n", Action.CLAMP)]
    assert [each.part for each in told.untold] == ["allowed"]


def test_what_forbids_may_let_through_what_another_level_forces() -> None:
    rulebook = Rulebook(
        MODELS,
        {
            "outer": Policy(parameters={"service_tier": Rule(force="flex")}),
            "inner": Policy(parameters={"service_tier": Rule(forbid="reject")}),
        },
    )
    levels = (AppliedPolicy("organization", "outer"), AppliedPolicy("project", "inner"))
    principal = Principal("org", "proj", "alice", "key", policies=levels)
    told = simulate(recorded(CHAT, parameters=TIER), principal, rulebook)
    assert [(each.part, each.policy) for each in told.untold] == [("forbid", "inner")]
    assert isinstance(told.outcome, Decision)


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_the_worst_case_is_that_of_the_record(endpoint: Endpoint) -> None:
    decision = decided(recorded(endpoint, prompts=2, parameters={"input_count": 2, "messages_count": 2}))
    assert (decision.effective.view.prompt_count, decision.worst_case.input_tokens) == (2, 10)


def test_limits_are_asked_for_the_worst_case() -> None:
    limits = tuple(
        Limit(of=quantity, limit=1000, per="day", by=("end_user",))
        for quantity in ("requests", "tokens", "completions", "usd")
    )
    record = recorded(prompts=2, parameters={"n": 3, "max_tokens": 5, "user_count": 1}, end_user="customer")
    # input 10, output 2 x 3 x 5 = 30: 10 x 1 + 30 x 2 micro-dollars
    bound = decided(record, Policy(limits=limits)).limits
    assert [(each.scope, each.ask) for each in bound] == [(("customer",), ask) for ask in (1, 40, 6, 70)]


@pytest.mark.parametrize("missing", ["endpoint", "model_asked"])
def test_what_could_not_be_read_is_not_simulated(missing: str) -> None:
    record = (
        recorded(**{missing: None}) if missing != "endpoint" else msgspec.structs.replace(recorded(), endpoint=None)
    )
    assert not record.was_read
    with pytest.raises(ValueError, match="could not be read"):
        simulated(record)


SPENT = {
    "input_tokens": 100,
    "output_tokens": 80,
    "completions": 4,
    "cost_microdollars": 260,  # 100 x 1 + 80 x 2
    "input_bound_tokens": 120,
    "held_tokens": 120 + 4 * 50,
    "parameters": {"n": 4, "max_tokens": 50},
}


@pytest.mark.parametrize(
    ("members", "rules", "expected"),
    [
        pytest.param({}, {}, NotSpent(), id="nothing changed"),
        pytest.param({}, {"n": CLAMPED}, NotSpent(0, 40, 80), id="half the candidates generate half"),
        pytest.param(
            {"output_tokens": 81, "cost_microdollars": 262},
            {"n": CLAMPED},
            NotSpent(0, 40, 80),
            id="what is left is rounded up",  # 81 x 2 / 4 = 40.5
        ),
        pytest.param(
            {}, {"max_tokens": Rule(max=10, on_violation="clamp")}, NotSpent(0, 40, 80), id="4 x 10 tokens at most"
        ),
        pytest.param(
            {}, {"n": CLAMPED, "max_tokens": Rule(max=10, on_violation="clamp")}, NotSpent(0, 60, 120), id="2 x 10"
        ),
        pytest.param({}, {"max_tokens": Rule(max=20, on_violation="clamp")}, NotSpent(), id="a bound above what came"),
        pytest.param({}, {"n": Rule(min=8, on_violation="clamp")}, NotSpent(), id="more of it saves nothing"),
        pytest.param(
            {"output_tokens": 300, "cost_microdollars": 700},
            {},
            NotSpent(),
            id="an upstream that exceeded its ceiling would do so again",
        ),
        pytest.param(
            {"held_tokens": 120, "parameters": {}, "completions": 1},  # nothing bounded it
            {"max_tokens": Rule(max=10, default=10, on_violation="clamp")},
            NotSpent(0, 70, 140),
            id="a ceiling where there was none",
        ),
        pytest.param(
            {"cost_microdollars": 130},
            {"n": CLAMPED},
            NotSpent(0, 40, 40),
            id="the record's cost counts, not today's price",
        ),
        pytest.param({"model_asked": "free"}, {"n": CLAMPED}, NotSpent(0, 40, 0), id="no price says no share"),
        pytest.param(
            {"input_tokens": 0, "output_tokens": 0, "completions": 0, "cost_microdollars": 0, "cache": "hit"},
            {"n": CLAMPED},
            NotSpent(),
            id="a hit took nothing",
        ),
    ],
)
def test_money_that_would_not_have_been_spent(
    members: dict[str, Any], rules: dict[str, Rule], expected: NotSpent
) -> None:
    record = recorded(**{**SPENT, **members})
    assert not_spent(record, decided(record, **rules)) == expected


def test_a_refused_request_would_have_spent_nothing() -> None:
    spared = not_spent(recorded(**SPENT), None)
    assert (spared, spared.tokens) == (NotSpent(100, 80, 260), 180)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        pytest.param({}, Charged(100, 40, cost_microdollars=180, completions=2), id="as recorded, less what is spared"),
        pytest.param(
            {"outcome": "rejected", "input_tokens": 0, "output_tokens": 0, "cost_microdollars": 0, "completions": 0},
            Charged(120, 100, cost_microdollars=320, known="worst_case", completions=2),
            id="what was refused then, at its worst",
        ),
        pytest.param(
            {"cache": "hit", "saved_input_tokens": 90, "saved_output_tokens": 30, "saved_microdollars": 150},
            Charged(90, 30, cost_microdollars=150, completions=2),
            id="a hit, as if in full",
        ),
        pytest.param(
            {"cache": "hit"},
            Charged(120, 100, cost_microdollars=320, known="worst_case", completions=2),
            id="a hit of which nothing was reported, at its worst",
        ),
        pytest.param(
            {
                "outcome": "rejected",
                "error_code": "not_stored",
                "input_tokens": 0,
                "output_tokens": 0,
                "cost_microdollars": 0,
                "completions": 0,
            },
            Charged(),
            id="what only asked for a stored answer, nothing",
        ),
    ],
)
def test_what_limits_are_charged(members: dict[str, Any], expected: Charged) -> None:
    record = recorded(**{**SPENT, **members})
    assert charge_again(record, decided(record, n=CLAMPED)) == expected
