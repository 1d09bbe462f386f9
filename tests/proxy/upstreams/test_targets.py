"""Addresses and bodies, by kind of upstream, endpoint and dialect."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import UPSTREAM_KEY
from sending import make_decision, make_upstream

from policies.requests.asked import Dialect, Endpoint
from proxy.errors import UpstreamUnusable
from proxy.upstreams.connections import DIRECT
from proxy.upstreams.targets import Target

if TYPE_CHECKING:
    from policies.decision import Decision

ACME = "https://acme.example"


def target(base_url: str = f"{ACME}/v1", *, kind: str = "openai", **settings: Any) -> Target:  # noqa: ANN401
    return Target("llama", make_upstream(base_url, kind=kind, **settings), DIRECT)


def body(at: Target, decision: Decision, *, name: str = "m", asks_usage: bool = False) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(at.body(name, decision, asks_usage=asks_usage))
    return decoded


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (Endpoint.COMPLETIONS, {"prompt": "x"}),
        (Endpoint.CHAT, {"messages": [{"role": "user", "content": "x"}]}),
        (Endpoint.EMBEDDINGS, {"input": "x"}),
        (Endpoint.RESPONSES, {"input": "x"}),
    ],
)
def test_an_openai_upstream_is_told_the_model_in_the_body(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    decision = make_decision({**fields, "x_seed": 2**70, "cache_level": 2}, endpoint=endpoint, model="org/model")
    at = target()
    assert at.address("org/model", decision) == f"{ACME}/v1/{endpoint.value}"
    assert body(at, decision, name="org/model") == {"model": "org/model", **fields, "x_seed": 2**70}
    assert ("Authorization", f"Bearer {UPSTREAM_KEY}") in at.headers


@pytest.mark.parametrize(
    ("base_url", "kind", "expected"),
    [
        pytest.param(f"{ACME}/v1//", "openai", f"{ACME}/v1/completions", id="OpenAI's"),
        pytest.param(f"{ACME}/", "azure", f"{ACME}/openai/deployments/m/completions?api-version=1", id="Azure's"),
    ],
)
def test_a_slash_at_the_end_of_an_upstreams_address_is_not_doubled(base_url: str, kind: str, expected: str) -> None:
    assert target(base_url, kind=kind).address("m", make_decision(api_version="1")) == expected


@pytest.mark.parametrize(
    ("configured", "clients", "expected"),
    [
        pytest.param("2024-10-21", "2024-06-01", "2024-10-21", id="the configured one"),
        pytest.param("client", "2024-06-01", "2024-06-01", id="the client's, as configured"),
        pytest.param(None, "2024-06-01", "2024-06-01", id="the client's, by default"),
        pytest.param(None, "a&b=c/d", "a%26b%3Dc%2Fd", id="the client's cannot add to the address"),
    ],
)
def test_an_azure_upstream_is_told_the_model_in_the_path(configured: str | None, clients: str, expected: str) -> None:
    settings = {} if configured is None else {"api_version": configured}
    decision = make_decision(
        {"prompt": "x", "cache_level": 2}, model="org/model", dialect=Dialect.AZURE, api_version=clients
    )
    at = target(ACME, kind="azure", **settings)
    assert at.address("org/model", decision) == (
        f"{ACME}/openai/deployments/org%2Fmodel/completions?api-version={expected}"
    )
    assert body(at, decision, name="org/model") == {"prompt": "x", "cache_level": 2}
    assert ("api-key", UPSTREAM_KEY) in at.headers
    assert "Authorization" not in dict(at.headers)


@pytest.mark.parametrize("dialect", [Dialect.AZURE, Dialect.OPENAI])
def test_an_azure_upstream_is_told_the_deployment_of_a_response_in_the_body(dialect: Dialect) -> None:
    decision = make_decision({"input": "x"}, endpoint=Endpoint.RESPONSES, dialect=dialect, api_version="2024-06-01")
    at = target(ACME, kind="azure", api_version="2025-04-01-preview")
    assert at.address("prod", decision) == f"{ACME}/openai/responses?api-version=2025-04-01-preview"
    assert body(at, decision, name="prod") == {"model": "prod", "input": "x"}


def test_an_azure_upstream_without_any_version_is_unusable() -> None:
    with pytest.raises(UpstreamUnusable, match=r"upstreams\.llama\.api_version"):
        target(ACME, kind="azure").address("m", make_decision())


def test_usage_is_asked_for_beside_other_options() -> None:
    decision = make_decision({"prompt": "x", "stream": True, "stream_options": {"x": 1, "include_usage": False}})
    assert body(target(), decision, asks_usage=True)["stream_options"] == {"x": 1, "include_usage": True}
