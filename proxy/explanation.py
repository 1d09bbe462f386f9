"""What would happen to a request, as JSON values: a `Decision` made from a configuration and the request alone.

Makes no decision itself and needs no store and no event loop (STYLE §1); how limits stand now is read by whoever asks,
and handed in. How it is laid out for people is known by `commands/explain`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, assert_never

from policies.advisories import ADVICE
from policies.cacheability import Bypass, Keyed, is_deterministic
from policies.decision import decide
from policies.errors import Forbidden, LimitExceeded, NotStored, PolicyViolation, Rejection
from policies.own_requests import find_shadow, hedge_after_seconds, is_compared
from policies.requests.body import decode_body
from policies.requests.dialects import read_request
from policies.room import Room, ceil_seconds, refuse
from policies.routing import fits, fitting_first
from policies.windows import Level
from proxy.errors import error_object, status_of
from proxy.named_principal import CannotAnswer, find_principal
from proxy.queries import is_text
from proxy.routes import find_generation
from proxy.server import too_large
from proxy.standings import amount, describe_applied, describe_limit, describe_principal, describe_room

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from policies.catalog import Deployment
    from policies.decision import Decision
    from policies.limits import BoundLimit
    from policies.principals import Principal
    from policies.requests.asked import Adjustment, AskedRequest
    from policies.room import Refusal
    from proxy.config import Configuration
    from proxy.config_upstreams import Upstream

DEFAULT_PATH = "/v1/completions"
"""Where a request goes that does not say."""

_TARGET: Final = re.compile(
    r"(?:https?://(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?)?"  # a client's proxy is asked for whole addresses
    r"(?P<path>/[^\x00-\x20\x7f?#]*)(?:\?(?P<query>[^#]*))?"
)
_FIRST_DRAW = 0.0
_USAGE: Final = "stream_options.include_usage"
_AZURES: Final = "cache_level"
_ROUTE_SETTINGS: Final = ("routing", "auth", "response_model")
_MICRODOLLARS_PER_USD = 1_000_000


@dataclass(frozen=True, slots=True)
class Question:
    """A request as it would be sent, and who sends it.

    `key` is a key's id or the key itself. In its place `project`, perhaps with `user`: a request of that user in that
    project without a key of its own. Of the only key that is configured nothing need be said.
    """

    body: bytes
    path: str = DEFAULT_PATH
    key: str | None = None
    project: str | None = None
    user: str | None = None
    cache_control: str | None = None


@dataclass(frozen=True, slots=True)
class Explained:
    """A decision, or the refusal of the request, with what was asked, and the upstreams by name."""

    path: str
    principal: Principal
    outcome: Decision | Rejection
    upstreams: Mapping[str, Upstream]

    @property
    def limits(self) -> tuple[BoundLimit, ...]:
        """The limits that bind the request; none where it is refused before."""
        return () if isinstance(self.outcome, Rejection) else self.outcome.limits


def explain(configuration: Configuration, question: Question) -> Explained:
    """Decide on a request as the gateway would. Raises CannotAnswer for an unknown sender or a path that is none."""
    principal = find_principal(configuration, key=question.key, project=question.project, user=question.user)
    outcome: Decision | Rejection
    try:
        asked = _read(configuration, question)
        rulebook = configuration.rulebook()
        outcome = decide(asked, principal, rulebook, cache_control=question.cache_control, draw=_FIRST_DRAW)
    except Rejection as rejection:
        outcome = rejection
    return Explained(question.path, principal, outcome, configuration.upstreams)


def _read(configuration: Configuration, question: Question) -> AskedRequest:
    generation = find_generation(*_split(question.path))
    if len(question.body) > configuration.bounds.body_bytes:
        raise too_large(configuration.bounds.body_bytes)
    return read_request(
        endpoint=generation.endpoint,
        dialect=generation.dialect,
        fields=decode_body(question.body, max_depth=configuration.bounds.json_depth),
        path_model=generation.path_model,
        api_version=generation.api_version,
    )


def _split(target: str) -> tuple[str, str]:
    """Return path and query as they are found in a request's first line, where a fragment has no place."""
    found = _TARGET.fullmatch(target)
    if found is None or not is_text(target):
        raise CannotAnswer("path", f"cannot be read; give a path such as {DEFAULT_PATH}")
    return found["path"], found["query"] or ""


def describe(explained: Explained, rooms: Sequence[Room] | None = None) -> dict[str, Any]:  # a JSON document
    """Return everything there is to tell, as JSON values.

    `rooms` are the decision's limits as they stand, in its order; without them each counts as untouched.
    """
    principal, outcome = explained.principal, explained.outcome
    told = {"path": explained.path, "principal": describe_principal(principal)}
    if isinstance(outcome, Rejection):
        return {**told, **_describe_rejection(outcome, principal)}
    return {**told, **_describe_decision(outcome, explained.upstreams, rooms)}


def _describe_rejection(rejection: Rejection, principal: Principal) -> dict[str, Any]:
    told = {"verdict": "refused", "status": status_of(rejection), **json.loads(error_object(rejection))}
    if isinstance(rejection, PolicyViolation | Forbidden) and rejection.policies:
        policies = [describe_applied(principal, name) for name in rejection.policies]
        told["refused_by"] = {"parameter": rejection.param, **_broken(rejection), "policies": policies}
    return told


def _broken(rejection: PolicyViolation | Forbidden) -> dict[str, Any]:
    if isinstance(rejection, Forbidden):
        return {}
    return {"value": rejection.value, "bound": rejection.bound}


def _describe_decision(
    decision: Decision, upstreams: Mapping[str, Upstream], rooms: Sequence[Room] | None
) -> dict[str, Any]:
    principal = decision.principal
    return {
        **_describe_verdict(decision, rooms),
        "model": {"asked": decision.asked.model, "name": decision.model.name},
        "effective_request": dict(decision.effective.fields),
        "adjustments": [_describe_adjustment(each, principal) for each in decision.adjustments],
        "observed": [_describe_adjustment(each, principal) for each in decision.observed],
        "advisories": [{"advisory": advisory, "advice": ADVICE[advisory]} for advisory in decision.advisories],
        "worst_case": _describe_worst_case(decision),
        "limits": _describe_limits(decision, rooms),
        "cache": _describe_cache(decision),
        "deployments": _describe_deployments(decision, upstreams),
        "route": _describe_route(decision),
    }


def _describe_verdict(decision: Decision, rooms: Sequence[Room] | None) -> dict[str, Any]:
    """Say whether the request is served: by its limits as they stand, else by whether it ever fits them."""
    full = [room for room in rooms or _untouched(decision) if room.refuses]
    blocking = [room for room in full if room.bound.is_taken_by_hits or not _may_be_hit(decision)]
    if blocking:
        refusal = refuse(blocking)
        return {**_describe_rejection(_exceeded(refusal), decision.principal), "refused_by": _blamed(refusal, decision)}
    if isinstance(decision.cache, Bypass) and decision.cache.only_if_cached:
        return _describe_rejection(NotStored(), decision.principal)
    return {"verdict": "served", "only_from_cache": bool(full) or decision.cache.only_if_cached}


def _untouched(decision: Decision) -> Iterable[Room]:
    return (Room(bound, Level(), bound.tank) for bound in decision.limits)


def _may_be_hit(decision: Decision) -> bool:
    """Tell whether a stored answer may serve a request whose tokens do not fit (SPEC §5: admitted for a hit only)."""
    plan = decision.cache
    return plan.only_if_cached or (isinstance(plan, Keyed) and plan.look_up)


def _exceeded(refusal: Refusal) -> LimitExceeded:
    return LimitExceeded(refusal.message, code=refusal.code, retry_after_seconds=refusal.retry_after_seconds)


def _blamed(refusal: Refusal, decision: Decision) -> dict[str, Any]:
    bound = refusal.room.bound
    return {
        "limit": bound.name,
        "policies": [describe_applied(decision.principal, bound.policy)],
        "retry_after_seconds": refusal.retry_after_seconds,
    }


def _describe_adjustment(adjustment: Adjustment, principal: Principal) -> dict[str, Any]:
    return {
        "parameter": adjustment.parameter,
        "from": adjustment.before,
        "to": adjustment.after,
        "rule": adjustment.action,
        **describe_applied(principal, adjustment.policy),
    }


def _describe_worst_case(decision: Decision) -> dict[str, Any]:
    view, worst = decision.effective.view, decision.worst_case
    return {
        "prompts": view.prompt_count,
        "candidates": worst.candidates,
        "token_ceiling": view.token_ceiling,
        "is_bounded": worst.is_bounded,
        "input_tokens": worst.input_tokens,
        "output_tokens": worst.output_tokens,
        "total_tokens": worst.tokens,
        "cost_microdollars": worst.cost_microdollars,
        "usd": worst.cost_microdollars / _MICRODOLLARS_PER_USD,
    }


def _describe_limits(decision: Decision, rooms: Sequence[Room] | None) -> list[dict[str, Any]]:
    told = [_describe_limit(room, decision.principal) for room in _untouched(decision)]
    if rooms is not None:
        for limit, room in zip(told, rooms, strict=True):
            limit["now"] = _describe_room(room)
    return told


def _describe_limit(room: Room, principal: Principal) -> dict[str, Any]:
    return {
        **describe_limit(room.bound, principal),
        "asks": amount(room.bound, room.bound.ask),
        "can_ever_fit": room.can_ever_fit,
    }


def _describe_room(room: Room) -> dict[str, Any]:
    wait = room.wait_milliseconds
    return {
        **describe_room(room),
        "fits": room.fits,
        "fits_in_seconds": None if wait is None else ceil_seconds(wait),
    }


def _describe_cache(decision: Decision) -> dict[str, Any]:
    plan, policy = decision.cache, decision.policy
    told = {
        "verdict": "keyed" if isinstance(plan, Keyed) else "bypass",
        "reason": _cache_reason(decision),
        "scope": policy.cache.scope,
        **describe_applied(decision.principal, policy.cache_policy),
        "only_if_cached": plan.only_if_cached,
    }
    match plan:
        case Keyed():
            return {
                **told,
                "key": plan.key,
                "items": list(plan.items),
                "ttl_seconds": plan.ttl_seconds,
                "look_up": plan.look_up,
                "store": plan.store,
                "max_age_seconds": plan.max_age_seconds,
            }
        case Bypass():
            return told
        case _:
            assert_never(plan)


def _cache_reason(decision: Decision) -> str:
    if isinstance(decision.cache, Bypass):
        return decision.cache.reason
    return "deterministic" if is_deterministic(decision.effective) else "everything"


def _describe_deployments(decision: Decision, upstreams: Mapping[str, Upstream]) -> list[dict[str, Any]]:
    """Tell the order for one draw, as it is while every deployment is available and has room.

    `share` is how often it is tried first, where the draw alone says that, and it ever is. `fits`, where a context
    window is configured: whether it surely holds the request. `adds` and `leaves_out` are what it is sent more or less
    than the effective request, until it refuses that.
    """
    shares = _shares(decision)
    return [
        {
            "upstream": each.upstream,
            "kind": upstreams[each.upstream].kind,
            "name": each.name_of(decision.model.name),
            "weight": each.weight,
            **({"share": shares[position]} if position in shares else {}),
            **_fit(decision, each),
            **_sent_otherwise(decision, upstreams[each.upstream]),
        }
        for position, each in enumerate(decision.candidates)
    ]


def _shares(decision: Decision) -> dict[int, float]:
    """Return how often each of the candidates is tried first, by position; without those that never are."""
    if decision.model.settings.routing != "weighted":
        return {}
    weights = {n: each.weight for n, each in enumerate(decision.candidates) if _can_be_first(decision, each)}
    return {position: weight / sum(weights.values()) for position, weight in weights.items()}


def _can_be_first(decision: Decision, candidate: Deployment) -> bool:
    """Tell whether it is tried first when it is drawn first."""
    drawn = (candidate, *decision.candidates)
    return fitting_first(drawn, decision.model, decision.worst_case)[0] is candidate


def _fit(decision: Decision, candidate: Deployment) -> dict[str, bool]:
    if candidate.context_window is None and decision.model.settings.context_window is None:
        return {}
    return {"fits": fits(candidate, decision.model, decision.worst_case)}


def _describe_route(decision: Decision) -> dict[str, Any]:
    """Tell the model's settings that this request is sent by, each only where it is not the default."""
    settings = decision.model.settings
    told: dict[str, Any] = {
        name: getattr(settings, name)
        for name in _ROUTE_SETTINGS
        if getattr(settings, name) != type(settings).model_fields[name].default
    }
    after_seconds = hedge_after_seconds(decision)
    if after_seconds is not None:
        told["hedge_after_seconds"] = after_seconds
    shadow = find_shadow(decision, _FIRST_DRAW)
    if shadow is not None and settings.shadow is not None:
        told["shadow"] = {
            "upstream": shadow.upstream,
            "name": shadow.name_of(decision.model.name),
            "share": settings.shadow.share,
            "compare": is_compared(decision),
        }
    return told


def _sent_otherwise(decision: Decision, upstream: Upstream) -> dict[str, list[str]]:
    view = decision.effective.view
    asks_usage = view.is_stream and not view.wants_usage and upstream.stream_usage == "ask"
    is_azures = upstream.kind != "azure" and decision.effective.fields.get(_AZURES) is not None
    return {"adds": [_USAGE] if asks_usage else [], "leaves_out": [_AZURES] if is_azures else []}
