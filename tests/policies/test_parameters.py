"""Rules at work: what is forwarded, what the client is told, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from ruling import MESSAGES, MODEL, Rules, Told, apply, ask, clamp, policy_of, ruled

from policies.catalog import Deployment, Model, ModelSettings
from policies.errors import PolicyViolation
from policies.merging import EffectivePolicy, merge
from policies.parameters import label_of, observe_rules
from policies.policy import Policy, Rule
from policies.requests.asked import Action, Adjustment, Endpoint

SMALL = Model("m", ModelSettings(deployments=(Deployment(upstream="u"),), max_output_tokens=50))


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
            {"top_k": clamp(max=0.5)},
            {"top_k": 10**400},
            {"top_k": 0.5},
            [("top_k", 10**400, 0.5, "clamp")],
            id="a number that no float holds",
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
    ],
)
def test_a_refusal_names_parameter_value_bound_and_policy(
    rules: Rules, sent: dict[str, Any], param: str, said: str | None
) -> None:
    with pytest.raises(PolicyViolation) as refused:
        apply(rules, sent)
    assert (refused.value.param, refused.value.code) == (param, "policy_violation")
    assert said is None or refused.value.message == said


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [(Endpoint.COMPLETIONS, {"prompt": "x"}), (Endpoint.CHAT, {"messages": MESSAGES})],
    ids=["completions", "chat"],
)
def test_an_absent_penalty_outside_a_bound_is_written(endpoint: Endpoint, fields: dict[str, Any], name: str) -> None:
    assert apply({name: clamp(min=1)}, fields, endpoint) == ({**fields, name: 1}, [(name, None, 1, "default")])


@pytest.mark.parametrize(
    ("rule", "written"),
    [
        pytest.param(clamp(max=9999), 50, id="no more than the model generates"),
        pytest.param(clamp(max=30), 30, id="less than that"),
        pytest.param(clamp(min=60, max=9999), 60, id="but what a bound asks for"),
        pytest.param({"default": 70, "max": 9999}, 70, id="or a default"),
    ],
)
def test_an_open_ceiling_under_a_looser_bound_is_written_as_the_models(rule: dict[str, Any], written: int) -> None:
    effective, _ = ruled(ask({"messages": MESSAGES}, Endpoint.CHAT), policy_of({"max_tokens": rule}), SMALL)
    assert effective.fields["max_completion_tokens"] == written


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
        assert repr(ruled(ask(sent), policy_of(*levels), MODEL)[0].fields) == repr(forwarded)
        return
    with pytest.raises(PolicyViolation, match="temperature may not be sent"):
        ruled(ask(sent), policy_of(*levels), MODEL)


def test_levels_move_each_others_defaults_inside() -> None:
    policy = policy_of({"temperature": {"max": 0.5}}, {"temperature": {"default": 1}})
    effective, [adjustment] = ruled(ask({}), policy, MODEL)
    assert effective.fields == {"temperature": 0.5}
    assert (str(adjustment.action), adjustment.policy) == ("default", "b")


@pytest.mark.parametrize("sent", [{"max_tokens": 9999}, {}, {"max_tokens": 8}])
def test_what_is_forbidden_stays_within_the_bounds_of_other_levels(sent: dict[str, Any]) -> None:
    policy = policy_of({"max_tokens": {"max": 8}}, {"max_tokens": {"forbid": "drop"}})
    assert ruled(ask(sent), policy, MODEL)[0].fields == {"max_tokens": 8}


def test_a_policy_that_makes_a_request_invalid_is_a_violation() -> None:
    with pytest.raises(PolicyViolation, match="What policy makes of the request is not valid: input is missing"):
        apply({"input": {"forbid": "drop"}}, {"input": "x"}, Endpoint.EMBEDDINGS)


def test_the_request_that_was_asked_is_left_alone() -> None:
    asked = ask({"n": 8, "x": [1]})
    effective, _ = ruled(asked, policy_of({"n": clamp(max=2)}), MODEL)
    assert (dict(asked.fields), asked.view.choices, effective.view.choices) == ({"n": 8, "x": [1]}, 8, 2)


# ---------------------------------------------------------------- what is rewritten, added and unknown

ALICE = "pseudonym of alice"


@pytest.mark.parametrize(
    ("rules", "sent", "forwarded", "told"),
    [
        pytest.param(
            {"user": {"pseudonymise": True}},
            {"user": "alice"},
            {"user": ALICE},
            [("user", "alice", ALICE, "pseudonymise")],
            id="a pseudonym for the end user",
        ),
        pytest.param(
            {"user": {"pseudonymise": True}},
            {},
            {"user": "pseudonym of None"},
            [("user", None, "pseudonym of None", "pseudonymise")],
            id="and for whom the client did not name",
        ),
        pytest.param(
            {"max_tokens": clamp(max=10)},
            {"max_tokens": 5, "n_predict": 500, "max_completion_tokens": 11},
            {"max_tokens": 5, "n_predict": 10, "max_completion_tokens": 10},
            [("max_completion_tokens", 11, 10, "clamp"), ("n_predict", 500, 10, "clamp")],
            id="the ceiling under names that the endpoint does not have",
        ),
        pytest.param(
            {"safety_identifier": {"pseudonymise": True}},
            {"safety_identifier": "alice"},
            {"safety_identifier": ALICE},
            [("safety_identifier", "alice", ALICE, "pseudonymise")],
            id="a pseudonym for what only another endpoint has, where the client sent it",
        ),
        pytest.param(
            {"n": clamp(max=4)},
            {"n": 2, "n_cmpl": 99},
            {"n": 2, "n_cmpl": 4},
            [("n_cmpl", 99, 4, "clamp")],
            id="n as a server of its own calls it",
        ),
        pytest.param({"n": clamp(max=4)}, {"n": 2}, {"n": 2}, [], id="which is not written"),
        pytest.param({"safety_identifier": {"pseudonymise": True}}, {}, {}, [], id="and none where the client did not"),
        pytest.param(
            {"max_tokens": clamp(max=10)},
            {"max_tokens": 5, "n_predict": -1},
            {"max_tokens": 5, "n_predict": 10},
            [("n_predict", -1, 10, "clamp")],
            id="what a server takes for no ceiling",
        ),
    ],
)
def test_a_rule_rewrites(rules: Rules, sent: dict[str, Any], forwarded: dict[str, Any], told: Told) -> None:
    assert apply(rules, sent) == (forwarded, told)


@pytest.mark.parametrize(
    ("rules", "sent", "param", "said"),
    [
        pytest.param(
            {"max_tokens": {"max": 10}},
            {"n_predict": -1},
            "n_predict",
            "n_predict is -1; policy 'a' takes a number of tokens there.",
            id="what a server takes for no ceiling",
        ),
    ],
)
def test_a_rule_refuses_to_rewrite(rules: Rules, sent: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(PolicyViolation) as refused:
        apply(rules, sent)
    assert (refused.value.param, refused.value.message, refused.value.policies) == (param, said, ("a",))


@pytest.mark.parametrize(
    ("rule", "endpoint", "sent", "written"),
    [
        pytest.param(None, Endpoint.CHAT, {"messages": MESSAGES}, {"max_completion_tokens": 50}, id="the model's most"),
        pytest.param(
            {"min": 60}, Endpoint.CHAT, {"messages": MESSAGES}, {"max_completion_tokens": 60}, id="no less than a bound"
        ),
        pytest.param({"forbid": "reject"}, Endpoint.COMPLETIONS, {}, {"max_tokens": 16}, id="what no client may send"),
        pytest.param(
            {"forbid": "drop"}, Endpoint.COMPLETIONS, {"max_tokens": 9}, {"max_tokens": 16}, id="for what was dropped"
        ),
    ],
)
def test_a_bounded_worst_case_closes_an_open_ceiling(
    rule: dict[str, Any] | None, endpoint: Endpoint, sent: dict[str, Any], written: dict[str, Any]
) -> None:
    policy = policy_of({"worst_case_tokens": {"max": 400}} | ({} if rule is None else {"max_tokens": rule}))
    effective, _ = ruled(ask(sent, endpoint), policy, SMALL)
    assert effective.fields == {**sent, **written}
    again, adjustments = ruled(ask(dict(effective.fields), endpoint), policy, SMALL)
    assert (again.fields, adjustments) == (effective.fields, ())


@pytest.mark.parametrize(
    ("inner", "forwarded"),
    [
        pytest.param(clamp(allowed=[4, 20]), {"n_predict": 4, "max_tokens": 4}, id="within the bounds of all levels"),
        pytest.param({"forbid": "drop"}, {"max_tokens": 10}, id="and out where it is forbidden"),
    ],
)
def test_what_a_server_takes_for_no_ceiling_is_brought(inner: dict[str, Any], forwarded: dict[str, Any]) -> None:
    policy = policy_of({"max_tokens": clamp(max=10)}, {"max_tokens": inner})
    assert ruled(ask({"n_predict": -1}), policy)[0].fields == forwarded


def unknown(action: str, *ruled_names: str) -> EffectivePolicy:
    rules = {name: Rule(min=0) for name in ruled_names}
    return merge([("p", Policy.model_validate({"unknown_parameters": action, "parameters": rules}))])


def test_unknown_parameters_are_dropped_and_told() -> None:
    effective, adjustments = ruled(ask({"prompt": "p", "top_k": 5, "x": None, "foo": {}}), unknown("drop", "top_k"))
    assert dict(effective.fields) == {"prompt": "p", "top_k": 5, "x": None}
    assert adjustments == (Adjustment("foo", {}, None, Action.DROP, "p"),)


def test_many_unknown_parameters_are_told_by_their_number() -> None:
    effective, adjustments = ruled(ask({f"x{i:03d}": i for i in range(100)}), unknown("drop"))
    assert dict(effective.fields) == {}
    assert [a.parameter for a in adjustments] == [*(f"x{i:03d}" for i in range(32)), "unknown_parameters"]
    assert adjustments[-1] == Adjustment("unknown_parameters", 68, 0, Action.DROP, "p")


def test_unknown_parameters_are_refused() -> None:
    with pytest.raises(PolicyViolation, match=r'"foo" is no parameter of completions; policy \'p\' refuses') as refused:
        ruled(ask({"foo": 1}), unknown("reject"))
    assert refused.value.param == "foo"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("n", "n", id="a parameter of the API"),
        pytest.param("n_predict", "n_predict", id="a name of the ceiling"),
        pytest.param("top_k", "top_k", id="one that a rule names"),
        pytest.param("client's own", "unknown_parameters", id="whatever else a client says"),
    ],
)
def test_a_label_is_never_a_clients_own_word(name: str, expected: str) -> None:
    assert label_of(name, policy_of({"top_k": {"max": 5}})) == expected


@pytest.mark.parametrize(
    ("observed", "sent", "found"),
    [
        pytest.param({"n": clamp(max=2)}, {"n": 8}, [("n", 4, 2, "clamp", "o")], id="a change beyond the enforced"),
        pytest.param({"n": {"max": 2}}, {"n": 8}, [("n", 4, None, "reject", "o")], id="a refusal"),
        pytest.param({"n": {"max": 6}}, {"n": 8}, [], id="nothing where the enforced rule is stricter"),
        pytest.param(
            {"candidates": {"max": 3}, "user": {"forbid": "reject"}},
            {"n": 4, "user": "u"},
            [("candidates", 4, None, "reject", "o"), ("user", "u", None, "reject", "o")],
            id="one refusal hides no other",
        ),
    ],
)
def test_what_is_observed_is_what_would_have_been_done(
    observed: Rules, sent: dict[str, Any], found: list[tuple[Any, ...]]
) -> None:
    rules = {name: Rule(mode="observe", **rule) for name, rule in observed.items()}
    policy = merge([("a", Policy(parameters={"n": Rule(**clamp(max=4))})), ("o", Policy(parameters=rules))])
    asked = ask(sent)
    effective, _ = ruled(asked, policy)
    told = observe_rules(effective, asked, policy, MODEL, str)
    assert [(a.parameter, a.before, a.after, a.action, a.policy) for a in told] == found
    assert dict(effective.fields) == {**sent, "n": 4}


@pytest.mark.parametrize(
    ("endpoint", "rules", "sent"),
    [
        pytest.param(
            Endpoint.CHAT,
            {"service_tier": {"allowed": ["auto"]}},
            {"messages": MESSAGES, "service_tier": True},
            id="a list of texts",
        ),
        pytest.param(
            Endpoint.CHAT,
            {"presence_penalty": {"max": 1}},
            {"messages": MESSAGES, "presence_penalty": True},
            id="a bound on a number",
        ),
        pytest.param(
            Endpoint.EMBEDDINGS, {"dimensions": {"max": 5}}, {"input": "x", "dimensions": True}, id="embeddings"
        ),
    ],
)
def test_true_is_no_way_round_a_bound_on_what_is_not_read(
    endpoint: Endpoint, rules: Rules, sent: dict[str, Any]
) -> None:
    with pytest.raises(PolicyViolation, match=r" is true; policy 'a' allows "):
        apply(rules, sent, endpoint)
