"""What would happen to a request, as JSON values: a `Decision` made from a configuration and the request alone.

Makes no decision itself and needs no store and no event loop (STYLE §1). How it is laid out for people is known by
`commands/explain`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_never
from urllib.parse import SplitResult, urlsplit

from policies.advisories import ADVICE
from policies.cacheability import Bypass, Keyed, is_deterministic
from policies.decision import decide
from policies.errors import Rejection
from policies.requests.api_version import read_api_version
from policies.requests.asked import Dialect, Endpoint
from policies.requests.body import decode_body
from policies.requests.dialects import read_request
from proxy.config_references import suggest
from proxy.errors import error_object, status_of
from proxy.routes import find_route

if TYPE_CHECKING:
    from policies.decision import Decision
    from policies.limits import BoundLimit
    from policies.principals import Principal
    from policies.requests.asked import Adjustment, AskedRequest
    from proxy.config import Configuration

_FIRST_DRAW = 0.0

# Which spelling of the API a route is in, by the beginning of its name; the first that fits.
_DIALECTS = (
    ("/openai/deployments/", Dialect.AZURE),
    ("/v1/engines/", Dialect.ENGINES),
    ("", Dialect.OPENAI),
)
_ENDPOINTS = sorted(Endpoint, key=len, reverse=True)


class CannotExplain(Exception):  # noqa: N818  the message says why
    """The question cannot be answered as it was asked; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Explained:
    """A decision, or the refusal of the request, with what was asked."""

    path: str
    principal: Principal
    outcome: Decision | Rejection


def explain(
    configuration: Configuration, body: bytes, *, key: str | None, path: str, cache_control: str | None = None
) -> Explained:
    """Decide on a request as the gateway would; raises CannotExplain for an unknown key or a path that is none."""
    principal = _principal(configuration, key)
    rulebook = configuration.rulebook()
    try:
        asked = _read(configuration, body, path)
        decision = decide(asked, principal, rulebook, cache_control=cache_control, draw=_FIRST_DRAW)
    except Rejection as rejection:
        return Explained(path, principal, rejection)
    return Explained(path, principal, decision)


def _principal(configuration: Configuration, key: str | None) -> Principal:
    principals = {principal.key: principal for principal in configuration.principals().values()}
    if key is None and len(principals) == 1:
        return next(iter(principals.values()))
    if key is None:
        raise CannotExplain(f"say with --key which key sends the request; {suggest('', principals)}")
    if key not in principals:
        raise CannotExplain(f'no key has the id "{key}"; {suggest(key, principals)}')
    return principals[key]


def _read(configuration: Configuration, body: bytes, path: str) -> AskedRequest:
    parts = _split(path)
    route, model = find_route("POST", parts.path)
    return read_request(
        endpoint=next(endpoint for endpoint in _ENDPOINTS if route.name.endswith(f"/{endpoint}")),
        dialect=next(dialect for beginning, dialect in _DIALECTS if route.name.startswith(beginning)),
        fields=decode_body(body, max_depth=configuration.bounds.json_depth),
        path_model=model,
        api_version=read_api_version(parts.query),
    )


def _split(path: str) -> SplitResult:
    try:
        return urlsplit(path)
    except ValueError:
        raise CannotExplain("--path cannot be read; give a path such as /v1/completions") from None


def describe(explained: Explained) -> dict[str, Any]:  # a JSON document
    """Return everything there is to tell, as JSON values."""
    principal = explained.principal
    told = {
        "path": explained.path,
        "principal": {
            "key": principal.key,
            "owner": principal.owner,
            "project": principal.project,
            "organization": principal.organization,
            "policies": list(principal.policies),
        },
    }
    if isinstance(explained.outcome, Rejection):
        refused = json.loads(error_object(explained.outcome))
        return {**told, "verdict": "refused", "status": status_of(explained.outcome), **refused}
    return {**told, "verdict": "served", **_describe_decision(explained.outcome)}


def _describe_decision(decision: Decision) -> dict[str, Any]:
    worst = decision.worst_case
    return {
        "model": {"asked": decision.asked.model, "name": decision.model.name},
        "adjustments": [_describe_adjustment(adjustment) for adjustment in decision.adjustments],
        "advisories": [{"advisory": advisory, "advice": ADVICE[advisory]} for advisory in decision.advisories],
        "effective_request": dict(decision.effective.fields),
        "worst_case": {
            "input_tokens": worst.input_tokens,
            "output_tokens": worst.output_tokens,
            "cost_microdollars": worst.cost_microdollars,
            "is_bounded": worst.is_bounded,
        },
        "limits": [_describe_limit(bound) for bound in decision.limits],
        "cache": _describe_cache(decision),
        "deployments": [
            {"upstream": each.upstream, "name": each.name or decision.model.name, "weight": each.weight}
            for each in decision.candidates
        ],
    }


def _describe_adjustment(adjustment: Adjustment) -> dict[str, Any]:
    return {
        "parameter": adjustment.parameter,
        "from": adjustment.before,
        "to": adjustment.after,
        "rule": adjustment.action,
        "policy": adjustment.policy,
    }


def _describe_limit(bound: BoundLimit) -> dict[str, Any]:
    return {
        "name": bound.name,
        "policy": bound.policy,
        "of": bound.limit.of,
        "limit": bound.limit.limit,
        "per": bound.limit.per,
        "scope": dict(zip(bound.limit.by, bound.scope, strict=True)),
        "asks": bound.ask,
    }


def _describe_cache(decision: Decision) -> dict[str, Any]:
    plan = decision.cache
    match plan:
        case Keyed():
            reason = "deterministic" if is_deterministic(decision.effective) else "everything"
            return {
                "verdict": "keyed",
                "reason": reason,
                "key": plan.key,
                "ttl_seconds": plan.ttl_seconds,
                "look_up": plan.look_up,
                "store": plan.store,
                "max_age_seconds": plan.max_age_seconds,
                "only_if_cached": plan.only_if_cached,
            }
        case Bypass():
            return {"verdict": "bypass", "reason": plan.reason, "only_if_cached": plan.only_if_cached}
        case _:
            assert_never(plan)
