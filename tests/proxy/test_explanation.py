"""A decision from a configuration and a request alone, and how limits stand beside it."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from policies.cacheability import Keyed
from policies.decision import Decision, decide
from policies.requests.asked import Dialect, Endpoint
from policies.requests.body import decode_body
from policies.requests.dialects import read_request
from policies.room import Room
from policies.windows import Level, Span
from proxy.config import Configuration
from proxy.explanation import Question, describe, explain
from proxy.named_principal import CannotAnswer

KEY = "sk-alice-and-nobody-else"
SETTINGS: dict[str, Any] = {
    "organization": {"policy": "base"},
    "upstreams": {
        "one": {"kind": "openai", "base_url": "http://one", "api_key": "credential-of-one"},
        "two": {"kind": "azure", "base_url": "http://two", "api_key": "credential-of-two"},
    },
    "models": {
        "m": {
            "deployments": [{"upstream": "one"}, {"upstream": "two", "name": "other", "weight": 3}],
            "aliases": ["old"],
            "price": {"input": 1, "output": 2},
        },
        "closed": {"deployments": [{"upstream": "one"}]},
        "unlisted": {"deployments": [{"upstream": "one"}]},
    },
    "policies": {
        "base": {
            "parameters": {"best_of": {"max": 20}, "top_p": {"max": 0.5, "mode": "observe"}},
            "models": ["m", "closed"],
        },
        "default": {
            "parameters": {
                "n": {"max": 4, "on_violation": "clamp"},
                "temperature": {"max": 1, "on_violation": "clamp", "mode": "observe"},
            },
            "limits": [{"of": "requests", "limit": 5, "per": "minute", "by": ["user"]}],
        },
        "own": {"parameters": {"seed": {"force": 7}}, "cache": {"scope": "key"}},
        "person": {"parameters": {"presence_penalty": {"force": 1}}},
    },
    "projects": [
        {"id": "proj", "policy": "default", "models": ["m", "unlisted"]},
        {"id": "other", "policy": "base"},
    ],
    "users": [{"id": "alice", "policy": "person"}],
    "keys": [
        {"id": "key_a", "project": "proj", "user": "alice", "sha256": sha256(KEY.encode()).hexdigest()},
        {"id": "key_b", "project": "proj", "service_account": "batch", "sha256": "cd" * 32, "policy": "own"},
        {"id": "key_c", "project": "proj", "user": "carol", "sha256": "ef" * 32},
    ],
}
CONFIGURATION = Configuration.model_validate(SETTINGS)
ASKED = {"model": "m", "prompt": "Hi"}
USAGE = "stream_options.include_usage"


def asked_by(key: str = "key_a", path: str = "/v1/completions", **fields: Any) -> dict[str, Any]:  # noqa: ANN401  JSON values
    return describe(explain(CONFIGURATION, Question(json.dumps(fields).encode(), path, key=key)))


def with_limits(*limits: dict[str, Any], **cache: Any) -> Configuration:  # noqa: ANN401  settings
    default = {**SETTINGS["policies"]["default"], "limits": list(limits), **({"cache": cache} if cache else {})}
    return Configuration.model_validate({**SETTINGS, "policies": {**SETTINGS["policies"], "default": default}})


def test_everything_that_would_happen_is_told() -> None:
    seen = asked_by(model="old", prompt="Hi", n=9, max_tokens=10, temperature=0)
    assert (seen["verdict"], seen["only_from_cache"]) == ("served", False)
    assert seen["model"] == {"asked": "old", "name": "m"}
    assert seen["effective_request"] == {
        "prompt": "Hi",
        "n": 4,
        "max_tokens": 10,
        "temperature": 0,
        "presence_penalty": 1,
    }
    # "Hi" is 2 bytes, a prompt counts 16 and a request 8 more; 4 candidates of 10 tokens.
    assert seen["worst_case"] == {
        "prompts": 1,
        "candidates": 4,
        "token_ceiling": 10,
        "is_bounded": True,
        "input_tokens": 26,
        "output_tokens": 40,
        "total_tokens": 66,
        "cost_microdollars": 106,
        "usd": 0.000106,
    }
    assert seen["limits"] == [
        {
            "name": "requests-per-minute-by-user",
            "policy": "default",
            "levels": ["project"],
            "quota": "5 requests per minute",
            "of": "requests",
            "limit": 5,
            "per": "minute",
            "burst": None,
            "mode": "enforce",
            "on_exceed": "refuse",
            "max_wait_seconds": None,
            "hold": "worst_case",
            "whose": "user alice",
            "scope": {"user": "alice"},
            "asks": 1,
            "can_ever_fit": True,
        }
    ]
    assert (seen["cache"]["verdict"], seen["cache"]["reason"]) == ("keyed", "deterministic")


def test_every_adjustment_is_told_with_its_rule_its_policy_and_the_level_it_came_from() -> None:
    seen = asked_by(**ASKED, n=9)
    assert seen["adjustments"] == [
        {"parameter": "n", "from": 9, "to": 4, "rule": "clamp", "policy": "default", "levels": ["project"]},
        {
            "parameter": "presence_penalty",
            "from": None,
            "to": 1,
            "rule": "force",
            "policy": "person",
            "levels": ["user"],
        },
    ]


def test_a_policy_that_stands_at_two_levels_is_told_with_both() -> None:
    seen = describe(explain(CONFIGURATION, Question(b'{"model": "m", "best_of": 21}', project="other")))
    assert seen["principal"]["policies"] == [
        {"level": "organization", "policy": "base"},
        {"level": "project", "policy": "base"},
    ]
    assert seen["refused_by"]["policies"] == [{"policy": "base", "levels": ["organization", "project"]}]


def test_a_normalisation_is_nobodys_policy() -> None:
    [first, *_] = asked_by(**ASKED, echo=[True])["adjustments"]
    assert (first["rule"], first["policy"], first["levels"]) == ("normalise", None, [])


def test_what_observed_rules_would_have_done_is_told_apart() -> None:
    seen = asked_by(**ASKED, temperature=2, top_p=0.75)
    assert seen["effective_request"]["temperature"] == 2
    assert sorted(seen["observed"], key=lambda each: each["parameter"]) == [
        {"parameter": "temperature", "from": 2, "to": 1, "rule": "clamp", "policy": "default", "levels": ["project"]},
        {
            "parameter": "top_p",
            "from": 0.75,
            "to": None,
            "rule": "reject",
            "policy": "base",
            "levels": ["organization"],
        },
    ]


def test_advice_is_told() -> None:
    assert asked_by(**ASKED)["advisories"] == []
    assert [each["advisory"] for each in asked_by(model="m", prompt="Hi ")["advisories"]] == ["prompt-ends-in-space"]


@pytest.mark.parametrize(
    ("key", "fields", "expected"),
    [
        pytest.param(
            "key_a",
            {},
            {"verdict": "bypass", "reason": "not-deterministic", "scope": "organization", "policy": "built-in"},
            id="a request that draws",
        ),
        pytest.param(
            "key_b",
            {},
            {"verdict": "keyed", "reason": "deterministic", "scope": "key", "policy": "own", "levels": ["key"]},
            id="settings of a key's own policy, and a seed that it forces",
        ),
    ],
)
def test_cacheability_is_told_with_its_reason_and_scope(
    key: str, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    cache = asked_by(key, **ASKED, **fields)["cache"]
    assert {name: cache[name] for name in expected} == expected


def test_the_route_is_told_without_addresses_and_credentials() -> None:
    seen = asked_by(**ASKED)
    assert sorted(seen["deployments"], key=lambda each: each["upstream"]) == [
        {"upstream": "one", "kind": "openai", "name": "m", "weight": 1, "share": 0.25, "adds": [], "leaves_out": []},
        {"upstream": "two", "kind": "azure", "name": "other", "weight": 3, "share": 0.75, "adds": [], "leaves_out": []},
    ]
    assert "credential" not in json.dumps(seen)
    assert "http" not in json.dumps(seen)


def with_model(*deployments: dict[str, Any], **settings: Any) -> Configuration:  # noqa: ANN401  settings
    model = {**SETTINGS["models"]["m"], "deployments": deployments, **settings}
    return Configuration.model_validate({**SETTINGS, "models": {**SETTINGS["models"], "m": model}})


ONE = {"upstream": "one"}
TWO = {"upstream": "two", "weight": 3}
THREE = {"upstream": "one", "name": "large", "weight": 2}


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        # "Hi" is 2 bytes, a prompt counts 16 and a request 8 more; 10 tokens of output: 36.
        pytest.param(
            with_model(ONE, {**TWO, "context_window": 35}, {**THREE, "context_window": 36}),
            [("m", 1 / 3, None), ("large", 2 / 3, True), ("two", None, False)],
            id="by weight among those that fit, the largest window after them",
        ),
        pytest.param(
            with_model({**ONE, "context_window": 34}, {**TWO, "context_window": 35}, {**THREE, "context_window": 35}),
            [("two", 0.6, False), ("large", 0.4, False), ("m", None, False)],
            id="by weight among the largest where none fits",
        ),
        pytest.param(
            with_model(ONE, {**TWO, "context_window": 64}, context_window=32),
            [("two", 1.0, True), ("m", None, False)],
            id="one without a window has the model's",
        ),
        pytest.param(
            with_model(ONE, TWO, context_window=32),
            [("m", 0.25, False), ("two", 0.75, False)],
            id="by weight where all have the model's",
        ),
        pytest.param(
            with_model(ONE, TWO, routing="least_outstanding"),
            [("m", None, None), ("two", None, None)],
            id="who has the fewest under way is not drawn",
        ),
        pytest.param(
            with_model(ONE, TWO, routing="latency"),
            [("m", None, None), ("two", None, None)],
            id="the faster of two is not drawn alone",
        ),
    ],
)
def test_a_share_is_told_where_the_draw_decides_and_whether_windows_hold_the_request(
    configuration: Configuration, expected: list[tuple[str, float | None, bool | None]]
) -> None:
    seen = describe(explain(configuration, Question(b'{"model": "m", "prompt": "Hi", "max_tokens": 10}', key="key_a")))
    told = [
        (each["upstream"] if each["upstream"] == "two" else each["name"], each.get("share"), each.get("fits"))
        for each in seen["deployments"]
    ]
    assert told == [(name, share if share is None else pytest.approx(share), fits) for name, share, fits in expected]


SHADOW = {"upstream": "two", "name": "next", "share": 0.25}
DRAWN: dict[str, Any] = {}
SURE = {"temperature": 0}


@pytest.mark.parametrize(
    ("settings", "fields", "expected"),
    [
        pytest.param({}, SURE, {}, id="nothing of what is the default"),
        pytest.param({"routing": "latency"}, DRAWN, {"routing": "latency"}, id="how the first is found"),
        pytest.param({"response_model": "asked"}, DRAWN, {"response_model": "asked"}, id="whose name answers bear"),
        pytest.param({"hedge_after": "500ms"}, SURE, {"hedge_after_seconds": 0.5}, id="when it is hedged"),
        pytest.param({"hedge_after": "500ms", "max_attempts": 1}, SURE, {}, id="not where only one attempt is made"),
        pytest.param(
            {"shadow": SHADOW},
            SURE,
            {"shadow": {"upstream": "two", "name": "next", "share": 0.25, "compare": True}},
            id="where copies go, and that they are compared",
        ),
        pytest.param(
            {"shadow": {"upstream": "two"}},
            DRAWN,
            {"shadow": {"upstream": "two", "name": "m", "share": 1.0, "compare": False}},
            id="what is drawn is not compared",
        ),
        pytest.param(
            {"auth": "passthrough", "hedge_after": "1s", "shadow": SHADOW},
            SURE,
            {"auth": "passthrough"},
            id="what bears the client's own credential is sent once",
        ),
    ],
)
def test_the_settings_that_a_request_is_sent_by_are_told_where_they_are_not_the_default(
    settings: dict[str, Any], fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    question = Question(json.dumps({**ASKED, **fields}).encode(), key="key_a")
    assert describe(explain(with_model(ONE, TWO, **settings), question))["route"] == expected


def test_what_may_differ_the_second_time_is_not_hedged() -> None:
    tools = {"tools": [{"type": "web_search"}], "input": "Hi"}
    question = Question(json.dumps({"model": "m", **tools, **SURE}).encode(), "/v1/responses", key="key_a")
    assert describe(explain(with_model(ONE, TWO, hedge_after="1s"), question))["route"] == {}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"stream": True}, {"one": ([USAGE], []), "two": ([], [])}, id="a stream is asked for its usage"),
        pytest.param(
            {"stream": True, "stream_options": {"include_usage": False}},
            {"one": ([USAGE], []), "two": ([], [])},
            id="of which the client wants to know nothing",
        ),
        pytest.param(
            {"stream": True, "stream_options": {"include_usage": True}},
            {"one": ([], []), "two": ([], [])},
            id="unless the client asks itself",
        ),
        pytest.param({"cache_level": 1}, {"one": ([], ["cache_level"]), "two": ([], [])}, id="Azure's own is Azure's"),
    ],
)
def test_what_upstreams_are_sent_besides_is_told(
    fields: dict[str, Any], expected: dict[str, tuple[list[str], list[str]]]
) -> None:
    two = {**SETTINGS["upstreams"]["two"], "stream_usage": "off"}
    settings = {**SETTINGS, "upstreams": {**SETTINGS["upstreams"], "two": two}}
    question = Question(json.dumps({**ASKED, **fields}).encode(), key="key_a")
    seen = describe(explain(Configuration.model_validate(settings), question))
    assert {each["upstream"]: (each["adds"], each["leaves_out"]) for each in seen["deployments"]} == expected


def test_a_decision_is_that_of_a_live_request() -> None:
    body = b'{"model": "m", "prompt": ["a", "b"], "n": 9, "temperature": 0}'
    asked = read_request(
        endpoint=Endpoint.COMPLETIONS,
        dialect=Dialect.OPENAI,
        fields=decode_body(body),
        path_model=None,
        api_version=None,
    )
    principal = CONFIGURATION.principals()[sha256(KEY.encode()).hexdigest()]
    live = decide(asked, principal, CONFIGURATION.rulebook(), cache_control="no-cache", draw=0.0)
    explained = explain(CONFIGURATION, Question(body, key=KEY, cache_control="no-cache")).outcome
    assert isinstance(explained, Decision)
    assert isinstance(explained.cache, Keyed)
    for part in ("principal", "effective", "adjustments", "observed", "worst_case", "cache", "candidates"):
        assert getattr(explained, part) == getattr(live, part)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        pytest.param("/v1/completions", {"model": "m", "prompt": "Hi"}, id="OpenAI's"),
        pytest.param("/openai/v1/completions", {"model": "m", "prompt": "Hi"}, id="Azure's newer surface"),
        pytest.param("/v1/engines/m/completions", {"prompt": "Hi"}, id="engines"),
        pytest.param("/openai/deployments/m/completions?api-version=1", {"prompt": "Hi"}, id="Azure's deployments"),
        pytest.param(
            "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}, id="chat"
        ),
        pytest.param("/v1/embeddings", {"model": "m", "input": "Hi"}, id="embeddings"),
        pytest.param("/v1/responses", {"model": "m", "input": "Hi"}, id="responses"),
        pytest.param("http://gateway:8080/v1/completions", {"model": "m", "prompt": "Hi"}, id="a whole address"),
        pytest.param(
            "/openai/deployments/m/chat/completions?api-version=1",
            {"messages": [{"role": "user", "content": "Hi"}]},
            id="chat on Azure's deployments",
        ),
    ],
)
def test_the_path_says_endpoint_and_dialect(path: str, fields: dict[str, Any]) -> None:
    seen = asked_by(path=path, **fields)
    assert seen["verdict"] == "served", seen
    assert seen["model"]["name"] == "m"


@pytest.mark.parametrize(
    ("path", "fields", "status", "code"),
    [
        pytest.param("/v1/completions", {"model": "x", "prompt": ""}, 404, "model_not_found", id="an unknown model"),
        pytest.param("/v1/completions", {"model": "closed", "prompt": ""}, 403, "model_not_allowed", id="not theirs"),
        pytest.param("/v1/completions", {"model": "m", "best_of": 21}, 400, "policy_violation", id="a rule"),
        pytest.param("/v1/completions", {"model": "m", "n": 0}, 400, None, id="a value out of range"),
        pytest.param("/v1/nothing", {"model": "m"}, 404, None, id="an unknown path"),
        pytest.param("//[x/v1/completions", {"model": "m"}, 404, None, id="a doubled slash"),
        pytest.param("/v1/models", {}, 405, "method_not_allowed", id="a path that is read"),
        pytest.param("/openai/deployments/m/completions", {"prompt": ""}, 400, None, id="no api-version"),
    ],
)
def test_a_refusal_is_told_as_the_client_would_see_it(
    path: str, fields: dict[str, Any], status: int, code: str | None
) -> None:
    seen = asked_by(path=path, **fields)
    assert (seen["verdict"], seen["status"]) == ("refused", status)
    assert code is None or seen["error"]["code"] == code
    assert seen["error"]["message"]
    assert "model" not in seen


def test_a_rule_that_refuses_is_told_with_parameter_bound_policy_and_level() -> None:
    assert asked_by(model="m", best_of=21)["refused_by"] == {
        "parameter": "best_of",
        "value": 21,
        "bound": "at most 20",
        "policies": [{"policy": "base", "levels": ["organization"]}],
    }


def test_a_policy_that_does_not_list_the_model_is_told_with_its_level() -> None:
    seen = asked_by(model="unlisted")
    assert (seen["status"], seen["error"]["code"]) == (403, "model_not_allowed")
    assert seen["refused_by"] == {
        "parameter": "model",
        "policies": [{"policy": "base", "levels": ["organization"]}],
    }


def test_the_requests_cache_control_counts() -> None:
    body = b'{"model": "m", "prompt": "Hi", "seed": 1}'
    seen = describe(explain(CONFIGURATION, Question(body, key="key_a", cache_control="no-store")))
    assert (seen["cache"]["look_up"], seen["cache"]["store"]) == (True, False)


def test_a_request_for_the_cache_alone_that_is_not_cacheable_is_refused() -> None:
    question = Question(json.dumps(ASKED).encode(), key="key_a", cache_control="only-if-cached")
    seen = describe(explain(CONFIGURATION, question))
    assert (seen["verdict"], seen["status"], seen["error"]["code"]) == ("refused", 504, "not_stored")


def test_a_request_for_the_cache_alone_is_served_from_there_only() -> None:
    question = Question(b'{"model": "m", "seed": 1}', key="key_a", cache_control="only-if-cached")
    seen = describe(explain(CONFIGURATION, question))
    assert (seen["verdict"], seen["only_from_cache"]) == ("served", True)


# Who sends it


def test_a_key_is_found_by_its_id_and_by_itself_and_is_told_by_its_id() -> None:
    for key in ("key_a", KEY):
        seen = asked_by(key, **ASKED)
        assert seen["principal"] == {
            "organization": "org_default",
            "project": "proj",
            "owner": "alice",
            "is_service_account": False,
            "key": "key_a",
            "policies": [
                {"level": "organization", "policy": "base"},
                {"level": "project", "policy": "default"},
                {"level": "user", "policy": "person"},
            ],
        }
        assert KEY not in json.dumps(seen)


@pytest.mark.parametrize(
    ("user", "levels"),
    [
        pytest.param(None, ["organization", "project"], id="nobody in particular"),
        pytest.param("carol", ["organization", "project"], id="a user who is known by a key only"),
        pytest.param("alice", ["organization", "project", "user"], id="a user with a policy"),
    ],
)
def test_without_a_key_a_user_in_a_project_has_the_levels_above_it(user: str | None, levels: list[str]) -> None:
    seen = describe(explain(CONFIGURATION, Question(json.dumps(ASKED).encode(), project="proj", user=user)))
    who = seen["principal"]
    assert (who["project"], who["owner"], who["key"]) == ("proj", user, None)
    assert [applied["level"] for applied in who["policies"]] == levels
    assert seen["limits"][0]["whose"] == f"user {user or '(none)'}"


def test_a_project_limits_the_models_of_whoever_has_no_key() -> None:
    seen = describe(explain(CONFIGURATION, Question(b'{"model": "closed"}', project="proj")))
    assert seen["error"]["code"] == "model_not_allowed"


@pytest.mark.parametrize(
    ("question", "member", "reason"),
    [
        pytest.param({}, "as", "say which key, or name a project; there is key_a", id="nobody"),
        pytest.param({"key": "key_d"}, "as", 'none is this one; did you mean "key_', id="an unknown key"),
        pytest.param({"key": "zzz"}, "as", "none is this one; there is key_a, key_b, key_c", id="nothing near"),
        pytest.param({"key": "key_a", "project": "proj"}, "project", "beside the key", id="two senders"),
        pytest.param({"key": "key_a", "user": "alice"}, "user", "needs the project", id="a key and a user"),
        pytest.param({"user": "alice"}, "user", "needs the project", id="a user of no project"),
        pytest.param({"project": "prj"}, "project", 'did you mean "proj"?', id="an unknown project"),
        pytest.param({"project": "proj", "user": "alise"}, "user", 'did you mean "alice"?', id="an unknown user"),
        pytest.param({"project": "proj", "user": "batch"}, "user", "no user", id="a service account is no user"),
        pytest.param({"key": "key_a", "path": "http://[::1/v1"}, "path", "such as /v1/completions", id="no URL"),
        pytest.param({"key": "key_a", "path": "v1/completions"}, "path", "such as /v1/completions", id="no slash"),
        pytest.param({"key": "key_a", "path": "/v1/completions#f"}, "path", "such as /v1/completions", id="a fragment"),
        pytest.param(
            {"key": "key_a", "path": "/v1/completions#"}, "path", "such as /v1/completions", id="an empty one"
        ),
        pytest.param(
            {"key": "key_a", "path": "/v1/\ncompletions"}, "path", "such as /v1/completions", id="a line's end"
        ),
        pytest.param({"key": "key_a", "path": "\0/v1/completions"}, "path", "such as /v1/completions", id="a control"),
        pytest.param({"key": "key_a", "path": ""}, "path", "such as /v1/completions", id="nothing"),
        pytest.param({"key": "key_a", "path": "/\udcff"}, "path", "such as /v1/completions", id="no text"),
    ],
)
def test_a_question_that_has_no_answer_is_told_what_would_have_one(
    question: dict[str, Any], member: str, reason: str
) -> None:
    with pytest.raises(CannotAnswer) as caught:
        explain(CONFIGURATION, Question(b"{}", **question))
    assert caught.value.member == member
    assert reason in caught.value.reason


def test_a_key_that_is_unknown_is_not_repeated() -> None:
    with pytest.raises(CannotAnswer) as caught:
        explain(CONFIGURATION, Question(b"{}", key="sk-mistyped"))
    assert "sk-mistyped" not in str(caught.value)


def test_the_only_key_need_not_be_named() -> None:
    only = CONFIGURATION.model_copy(update={"keys": CONFIGURATION.keys[1:2]})
    assert explain(only, Question(b"{}")).principal.key == "key_b"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"a": NaN}', b'{"a": 1, "a": 2}', b"\xff", b'{"model": "m", "prompt": 7}']
)
def test_no_body_brings_it_down(body: bytes) -> None:
    seen = describe(explain(CONFIGURATION, Question(body, key="key_a")))
    assert (seen["verdict"], seen["status"]) == ("refused", 400)


def test_a_body_above_the_bound_is_refused_as_at_the_door() -> None:
    small = Configuration.model_validate({**SETTINGS, "bounds": {"body_bytes": 10}})
    seen = describe(explain(small, Question(json.dumps(ASKED).encode(), key="key_a")))
    assert (seen["status"], seen["error"]["code"]) == (413, "body_too_large")


# How limits stand

TOKENS = {"of": "tokens", "limit": 50, "per": "minute", "by": ["user"]}
REQUESTS = {"of": "requests", "limit": 5, "per": "day", "by": ["user"]}
BODY = b'{"model": "m", "prompt": "Hi", "max_tokens": 10}'  # 26 + 10 tokens
TOO_MUCH = b'{"model": "m", "prompt": "Hi", "max_tokens": 25}'  # 26 + 25 tokens


def standing(configuration: Configuration, body: bytes, *levels: Level) -> dict[str, Any]:
    explained = explain(configuration, Question(body, key="key_a"))
    span = Span(0, 86_400_000)
    rooms = [
        Room(bound, level, bound.tank, span if bound.limit.per == "day" else None)
        for bound, level in zip(explained.limits, levels, strict=True)
    ]
    return describe(explained, rooms)


def test_what_can_never_fit_is_refused_whatever_is_left() -> None:
    seen = describe(explain(with_limits(TOKENS), Question(TOO_MUCH, key="key_a")))
    assert (seen["verdict"], seen["status"]) == ("refused", 429)
    assert (seen["limits"][0]["asks"], seen["limits"][0]["can_ever_fit"]) == (51, False)
    assert seen["refused_by"] == {
        "limit": "tokens-per-minute-by-user",
        "policies": [{"policy": "default", "levels": ["project"]}],
        "retry_after_seconds": None,
    }
    assert "it can never fit" in seen["error"]["message"]
    assert seen["effective_request"]["max_tokens"] == 25


def test_a_limit_that_is_observed_is_in_nobodys_way() -> None:
    seen = standing(with_limits({**TOKENS, "mode": "observe"}), TOO_MUCH, Level(spent=70))
    assert (seen["verdict"], seen["only_from_cache"]) == ("served", False)
    [limit] = seen["limits"]
    assert (limit["mode"], limit["asks"], limit["can_ever_fit"], limit["now"]["fits"]) == ("observe", 51, False, False)


@pytest.mark.parametrize(("spent", "verdict"), [(49, "served"), (50, "refused")])
def test_a_limit_that_is_settled_after_wants_anything_left(spent: int, verdict: str) -> None:
    seen = standing(with_limits({**TOKENS, "hold": "none"}), TOO_MUCH, Level(spent=spent))
    assert (seen["verdict"], seen["limits"][0]["hold"], seen["limits"][0]["can_ever_fit"]) == (verdict, "none", True)


def test_what_the_cache_may_hold_is_served_from_there_only() -> None:
    body = TOO_MUCH[:-1] + b', "seed": 1}'
    seen = describe(explain(with_limits(TOKENS), Question(body, key="key_a")))
    assert (seen["verdict"], seen["only_from_cache"]) == ("served", True)
    refused = describe(explain(with_limits(TOKENS), Question(body, key="key_a", cache_control="no-cache")))
    assert refused["status"] == 429


def test_how_a_limit_stands_is_told() -> None:
    # 50 a minute: 30 spent and 6 held leave 14, and one comes back every 1.2 s; 36 are asked for.
    seen = standing(with_limits(TOKENS), BODY, Level(spent=30, held=6, at=1_000))
    assert seen["limits"][0]["now"] == {
        "used": 30,
        "held": 6,
        "left": 14,
        "reset_seconds": 36,
        "fits": False,
        "fits_in_seconds": 27,
    }
    assert (seen["verdict"], seen["status"], seen["refused_by"]["retry_after_seconds"]) == ("refused", 429, 27)


def test_limits_that_have_room_say_so_each_in_its_place() -> None:
    at = 82_800_000  # an hour before the day ends
    seen = standing(with_limits(REQUESTS, TOKENS), BODY, Level(spent=4, at=at), Level(at=at))
    assert [limit["now"] for limit in seen["limits"]] == [
        {"used": 4, "held": 0, "left": 1, "reset_seconds": 3600, "fits": True, "fits_in_seconds": 0},
        {"used": 0, "held": 0, "left": 50, "reset_seconds": 0, "fits": True, "fits_in_seconds": 0},
    ]
    assert seen["verdict"] == "served"


def test_money_is_told_in_the_unit_that_limits_are_configured_in() -> None:
    usd = {"of": "usd", "limit": 0.5, "per": "day", "by": ["project"]}
    seen = standing(with_limits(usd), BODY, Level(spent=100_000, held=50_000))
    [limit] = seen["limits"]
    # 26 input tokens at 1 and 10 output tokens at 2 USD a million
    assert (limit["quota"], limit["limit"], limit["asks"]) == ("0.5 USD per day", 0.5, 0.000046)
    assert [limit["now"][name] for name in ("used", "held", "left")] == [0.1, 0.05, 0.35]
