"""Exchanges with real decisions, for tests of what is told about them."""

from __future__ import annotations

from typing import Any

from policies.catalog import Deployment, ModelSettings, Price
from policies.decision import decide
from policies.policy import CacheSettings, Policy, Rule
from policies.principals import AppliedPolicy, Principal
from policies.requests.asked import Dialect, Endpoint
from policies.requests.dialects import read_request
from policies.rulebook import Rulebook
from proxy.exchange import Exchange

STARTED_AT = 1_700_000_000.25
"""Unix seconds at which every such exchange begins."""
STARTED = 50.0

ALICE = Principal("org_acme", "proj_research", "alice", "key_alice", policies=(AppliedPolicy("project", "default"),))

MODELS = {
    "m": ModelSettings(
        deployments=(Deployment(upstream="llama"),),
        aliases=("davinci",),
        price=Price(input=1.5, output=2.0),
        max_output_tokens=100,
    )
}


def make_exchange(
    fields: dict[str, Any] | None = None,
    *,
    rules: dict[str, Rule] | None = None,
    cache: CacheSettings | None = None,
    cache_control: str | None = None,
    principal: Principal = ALICE,
    endpoint: Endpoint = Endpoint.COMPLETIONS,
) -> Exchange:
    """Return an exchange that has been decided and not yet admitted; model and prompt are given unless in `fields`."""
    asked = read_request(
        endpoint=endpoint,
        dialect=Dialect.OPENAI,
        fields={"model": "davinci", "prompt": "p", **(fields or {})},
        path_model=None,
        api_version=None,
    )
    rulebook = Rulebook(MODELS, {"default": Policy(parameters=rules or {}, cache=cache)})
    decision = decide(asked, principal, rulebook, cache_control=cache_control, draw=0.0)
    return Exchange("req_1", STARTED_AT, STARTED, route="/v1/completions", principal=principal, decision=decision)
