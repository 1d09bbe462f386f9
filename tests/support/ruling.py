"""Rules applied to requests in one line: what the tests of everything that rules do have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from policies.catalog import Deployment, Model, ModelSettings
from policies.merging import EffectivePolicy, merge
from policies.parameters import apply_rules
from policies.policy import Policy, Rule
from policies.requests.asked import AskedRequest, Dialect, Endpoint
from policies.requests.dialects import read_request

if TYPE_CHECKING:
    from policies.requests.asked import Adjustment, EffectiveRequest

Rules = dict[str, dict[str, Any]]
Told = list[tuple[str, Any, Any, str]]

MODEL = Model("m", ModelSettings(deployments=(Deployment(upstream="u"),), context_window=4096))
MESSAGES = [{"role": "user", "content": "x"}]


def policy_of(*levels: Rules) -> EffectivePolicy:
    """Levels called a, b, …, outermost first."""
    return merge(
        [
            (name, Policy(parameters={parameter: Rule(**rule) for parameter, rule in level.items()}))
            for name, level in zip("abc", levels, strict=False)
        ]
    )


def ruled(
    asked: AskedRequest, policy: EffectivePolicy, model: Model = MODEL
) -> tuple[EffectiveRequest, tuple[Adjustment, ...]]:
    """Apply rules for a principal whose pseudonyms can be told."""
    return apply_rules(asked, policy, model, lambda end_user: f"pseudonym of {end_user}")


def ask(fields: dict[str, Any], endpoint: Endpoint = Endpoint.COMPLETIONS) -> AskedRequest:
    return read_request(
        endpoint=endpoint, dialect=Dialect.OPENAI, fields={"model": "m", **fields}, path_model=None, api_version=None
    )


def apply(rules: Rules, fields: dict[str, Any], endpoint: Endpoint = Endpoint.COMPLETIONS) -> tuple[Any, Told]:
    effective, adjustments = ruled(ask(fields, endpoint), policy_of(rules), MODEL)
    return dict(effective.fields), [(a.parameter, a.before, a.after, str(a.action)) for a in adjustments]


def clamp(**bounds: object) -> dict[str, Any]:
    return {**bounds, "on_violation": "clamp"}
