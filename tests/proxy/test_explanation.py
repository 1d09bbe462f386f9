"""A decision from a configuration and a request alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.config import Configuration
from proxy.explanation import CannotExplain, describe, explain

CONFIGURATION = Configuration.model_validate(
    {
        "upstreams": {name: {"kind": "openai", "base_url": f"http://{name}"} for name in ("one", "two")},
        "models": {
            "m": {
                "deployments": [{"upstream": "one"}, {"upstream": "two", "name": "other", "weight": 2}],
                "aliases": ["old"],
                "price": {"input": 1, "output": 2},
            },
            "closed": {"deployments": [{"upstream": "one"}]},
        },
        "policies": {
            "default": {
                "parameters": {"n": {"max": 4, "on_violation": "clamp"}, "best_of": {"max": 4}},
                "limits": [{"of": "requests", "limit": 5, "per": "minute", "by": ["user"]}],
            }
        },
        "projects": [{"id": "proj", "policy": "default", "models": ["m"]}],
        "keys": [
            {"id": "key_a", "project": "proj", "user": "alice", "sha256": "ab" * 32},
            {"id": "key_b", "project": "proj", "service_account": "batch", "sha256": "cd" * 32},
        ],
    }
)


def told(path: str = "/v1/completions", **fields: Any) -> dict[str, Any]:  # noqa: ANN401  JSON values
    return describe(explain(CONFIGURATION, json.dumps(fields).encode(), key="key_a", path=path))


def test_everything_that_would_happen_is_told() -> None:
    seen = told(model="old", prompt="Hi", n=9, max_tokens=10, temperature=0)
    assert seen["verdict"] == "served"
    assert seen["principal"]["policies"] == ["default"]
    assert seen["model"] == {"asked": "old", "name": "m"}
    assert seen["adjustments"] == [{"parameter": "n", "from": 9, "to": 4, "rule": "clamp", "policy": "default"}]
    assert seen["effective_request"] == {"prompt": "Hi", "n": 4, "max_tokens": 10, "temperature": 0}
    assert seen["worst_case"]["output_tokens"] == 40
    assert seen["worst_case"]["cost_microdollars"] > 0
    assert [(limit["of"], limit["scope"], limit["asks"]) for limit in seen["limits"]] == [
        ("requests", {"user": "alice"}, 1)
    ]
    assert (seen["cache"]["verdict"], seen["cache"]["reason"]) == ("keyed", "deterministic")
    assert {each["upstream"]: each["name"] for each in seen["deployments"]} == {"one": "m", "two": "other"}


def test_advice_is_told() -> None:
    assert told(model="m", prompt="Hi")["advisories"] == []
    assert [each["advisory"] for each in told(model="m", prompt="Hi ")["advisories"]] == ["prompt-ends-in-space"]


def test_the_reason_for_a_bypass_is_told() -> None:
    assert told(model="m", prompt="Hi")["cache"]["reason"] == "not-deterministic"


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
        pytest.param(
            "/openai/deployments/m/chat/completions?api-version=1",
            {"messages": [{"role": "user", "content": "Hi"}]},
            id="chat on Azure's deployments",
        ),
    ],
)
def test_the_path_says_endpoint_and_dialect(path: str, fields: dict[str, Any]) -> None:
    seen = told(path, **fields)
    assert seen["verdict"] == "served", seen
    assert seen["model"]["name"] == "m"


@pytest.mark.parametrize(
    ("path", "fields", "status", "code"),
    [
        pytest.param("/v1/completions", {"model": "x", "prompt": ""}, 404, "model_not_found", id="an unknown model"),
        pytest.param("/v1/completions", {"model": "closed", "prompt": ""}, 403, "model_not_allowed", id="not theirs"),
        pytest.param("/v1/completions", {"model": "m", "n": 1, "best_of": 5}, 400, "policy_violation", id="a rule"),
        pytest.param("/v1/completions", {"model": "m", "n": 0}, 400, None, id="a value out of range"),
        pytest.param("/v1/nothing", {"model": "m"}, 404, None, id="an unknown path"),
        pytest.param("/v1/models", {}, 405, "method_not_allowed", id="a path that is read"),
        pytest.param("/openai/deployments/m/completions", {"prompt": ""}, 400, None, id="no api-version"),
    ],
)
def test_a_refusal_is_told_as_the_client_would_see_it(
    path: str, fields: dict[str, Any], status: int, code: str | None
) -> None:
    seen = told(path, **fields)
    assert (seen["verdict"], seen["status"]) == ("refused", status)
    assert code is None or seen["error"]["code"] == code
    assert seen["error"]["message"]


def test_the_requests_cache_control_counts() -> None:
    body = b'{"model": "m", "prompt": "Hi", "seed": 1}'
    seen = describe(explain(CONFIGURATION, body, key="key_a", path="/v1/completions", cache_control="no-store"))
    assert (seen["cache"]["look_up"], seen["cache"]["store"]) == (True, False)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        pytest.param(None, "say with --key which key sends the request; there is key_a, key_b", id="one of several"),
        pytest.param("key_c", 'no key has the id "key_c"; did you mean "key_', id="an unknown one"),
    ],
)
def test_the_key_must_be_known(key: str | None, expected: str) -> None:
    with pytest.raises(CannotExplain) as caught:
        explain(CONFIGURATION, b"{}", key=key, path="/v1/completions")
    assert expected in str(caught.value)


@pytest.mark.parametrize("path", ["http://[::1/v1", "//[x/v1"])
def test_the_path_must_be_one(path: str) -> None:
    with pytest.raises(CannotExplain, match="--path cannot be read"):
        told(path)


def test_the_only_key_need_not_be_named() -> None:
    only = CONFIGURATION.model_copy(update={"keys": CONFIGURATION.keys[1:]})
    assert explain(only, b"{}", key=None, path="/v1/completions").principal.key == "key_b"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"a": NaN}', b'{"a": 1, "a": 2}', b"\xff", b'{"model": "m", "prompt": 7}']
)
def test_no_body_brings_it_down(body: bytes) -> None:
    seen = describe(explain(CONFIGURATION, body, key="key_a", path="/v1/completions"))
    assert (seen["verdict"], seen["status"]) == ("refused", 400)
