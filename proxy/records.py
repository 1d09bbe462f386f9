"""The usage record of an exchange, made from its facts, as the line that goes into the outbox.

Reads what others wrote into the `Exchange`; decides no charge, holds no connection, and never looks at the text of a
prompt or an answer. What a record may keep of a client's strings is said in `policies/usage.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from policies.catalog import Deployment, Model, ModelSettings
from policies.charges import NOTHING, at_worst, worst_case
from policies.pricing import cost_microdollars
from policies.requests.asked import EffectiveRequest
from policies.requests.dialects import REQUEST_TYPES
from policies.usage import (
    Provided,
    UsageRecord,
    bounded,
    recorded_adjustments,
    recorded_parameters,
    unknown_fields,
)

if TYPE_CHECKING:
    from policies.charges import Charged, WorstCase
    from policies.decision import Decision
    from policies.principals import Principal
    from policies.requests.asked import Adjustment, AskedRequest
    from policies.usage import Provider, Usage
    from proxy.exchange import Exchange

USAGE_FILE_NAME: Final = "usage.jsonl"
"""The file in `data_dir` that the records end up in."""

ORPHANED: Final = "orphaned"
"""Outcome of a request whose owner died: its lease ran out and the hold was settled at its worst case."""

_encode: Final = msgspec.json.Encoder().encode


def usage_record(exchange: Exchange, charged: Charged | None) -> bytes:
    """Return the usage record of a finished exchange as one line of JSON, without the line's end.

    `charged` is None for a request that was not admitted: it held nothing. Raises ValueError for an exchange without
    principal: who is not known leaves no record.
    """
    return _encode(_record(exchange, exchange.outcome.value, charged))


def orphan_record(exchange: Exchange) -> bytes:
    """Return the line to book should this process die before it settles: worst case, outcome `orphaned`.

    Made at admission and kept with the hold, so that whoever sweeps the hold can book it as it stands. Raises
    ValueError for an exchange without decision.
    """
    if exchange.decision is None:
        raise ValueError("an exchange without a decision holds nothing")
    return _encode(_record(exchange, ORPHANED, at_worst(exchange.decision.worst_case)))


def _record(exchange: Exchange, outcome: str, charged: Charged | None) -> UsageRecord:
    if exchange.principal is None:
        raise ValueError("an exchange without a principal leaves no usage record")
    return UsageRecord(
        outcome=outcome,
        **_charge_facts(charged or NOTHING),
        **_time_facts(exchange),
        **_principal_facts(exchange.principal),
        **_answer_facts(exchange),
        **_cache_facts(exchange),
        **_request_facts(exchange),
        **(
            _NOTHING_HELD if exchange.decision is None or charged is None else _held_facts(exchange.decision.worst_case)
        ),
    )


def _charge_facts(charged: Charged) -> dict[str, Any]:
    return {
        "input_tokens": charged.input_tokens,
        "output_tokens": charged.output_tokens,
        "cached_input_tokens": charged.cached_input_tokens,
        "reasoning_tokens": charged.reasoning_tokens,
        "completions": charged.completions,
        "known": charged.known,
        "cost_microdollars": charged.cost_microdollars,
    }


def _time_facts(exchange: Exchange) -> dict[str, Any]:
    duration = exchange.duration_seconds
    started = round(exchange.started_at * 1000)
    return {
        "request_id": exchange.request_id,
        "client_request_id": bounded(exchange.client_request_id),
        "origin": exchange.origin,
        "started_milliseconds": started,
        "ended_milliseconds": None if duration is None else started + round(duration * 1000),
        "duration_seconds": duration,
        "waited_seconds": exchange.waited_seconds,
        "time_to_first_token_seconds": exchange.time_to_first_token_seconds,
    }


def _principal_facts(principal: Principal) -> dict[str, Any]:
    return {
        "organization": principal.organization,
        "project": principal.project,
        "owner": principal.owner,
        "is_service_account": principal.is_service_account,
        "key": principal.key,
        "policies": principal.policy_names,
    }


def _answer_facts(exchange: Exchange) -> dict[str, Any]:
    return {
        "route": exchange.route,
        "model_served": bounded(exchange.answer.model),
        "upstream": exchange.upstream,
        "deployment": exchange.deployment,
        "upstream_request_id": bounded(exchange.upstream_request_id),
        "upstream_status": exchange.upstream_status,
        "attempts": exchange.attempts,
        "attempts_of_unknown_cost": exchange.attempts_of_unknown_cost,
        "status": exchange.status,
        "error_code": bounded(exchange.error_code),
        "configuration_version": exchange.configuration_version,
    }


def _cache_facts(exchange: Exchange) -> dict[str, Any]:
    savings = _savings(exchange) if exchange.saved else _NOTHING_SAVED
    return {"cache": exchange.cache.value, "cache_reason": exchange.cache_reason, **savings}


def _savings(exchange: Exchange) -> dict[str, Any]:
    """Sum what was saved, and what of it by who paid for it, in the order in which they first did."""
    input_tokens = output_tokens = microdollars = 0
    by_provider: dict[Provider, list[int]] = {}
    for saved in exchange.saved:
        if (usage := saved.usage) is None:
            continue
        cost = _cost(exchange, usage)
        input_tokens += usage.input_tokens
        output_tokens += usage.output_tokens
        microdollars += cost
        if saved.provider is not None:
            sums = by_provider.setdefault(saved.provider, [0, 0, 0])
            sums[:] = sums[0] + usage.input_tokens, sums[1] + usage.output_tokens, sums[2] + cost
    return {
        "saved_input_tokens": input_tokens,
        "saved_output_tokens": output_tokens,
        "saved_microdollars": microdollars,
        "provided": tuple(_provided(provider, *sums) for provider, sums in by_provider.items()),
    }


def saved_microdollars(exchange: Exchange) -> int:
    """Return what the stored answers that served a request cost upstream at today's price, in whole micro-dollars.

    Each is rounded by itself, as its own request would be; one of which no usage is known counts nothing.
    """
    return sum(_cost(exchange, saved.usage) for saved in exchange.saved if saved.usage is not None)


def _cost(exchange: Exchange, usage: Usage) -> int:
    return cost_microdollars(
        None if exchange.decision is None else exchange.decision.model.settings.price,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_input_tokens=usage.cached_input_tokens,
    )


def _provided(provider: Provider, input_tokens: int, output_tokens: int, microdollars: int) -> Provided:
    return Provided(
        project=provider.project,
        owner=provider.owner,
        is_service_account=provider.is_service_account,
        key=provider.key,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        microdollars=microdollars,
    )


def _request_facts(exchange: Exchange) -> dict[str, Any]:
    if exchange.decision is not None:
        if exchange.request_facts is None:
            exchange.request_facts = _decision_facts(exchange.decision)
        return {**exchange.request_facts, **_observed_facts(exchange.decision, exchange.observed_refusals)}
    return _NOTHING_ASKED if exchange.asked is None else _refused_facts(exchange.asked, exchange.model)


def _decision_facts(decision: Decision) -> dict[str, Any]:
    return {
        **_asked_facts(decision.asked, decision.model),
        **_input_facts(decision.effective, decision.worst_case),
        "adjustments": recorded_adjustments(decision.adjustments),
    }


def _observed_facts(decision: Decision, refusals: tuple[Adjustment, ...]) -> dict[str, Any]:
    return {"observed": recorded_adjustments((*decision.observed, *refusals))}


def _refused_facts(asked: AskedRequest, model: Model | None) -> dict[str, Any]:
    """Tell what was asked by a request that was refused before anything was decided to be done."""
    unchanged = EffectiveRequest(asked.endpoint, asked.fields, asked.view)
    return {
        **_asked_facts(asked, model),
        **_input_facts(unchanged, worst_case(unchanged, _UNCONFIGURED if model is None else model)),
        "adjustments": (),
        "observed": (),
    }


def _asked_facts(asked: AskedRequest, model: Model | None) -> dict[str, Any]:
    kind = REQUEST_TYPES[asked.endpoint]
    return {
        "endpoint": asked.endpoint.value,
        "dialect": asked.dialect.value,
        "model_asked": bounded(asked.model),
        "model": None if model is None else model.name,
        "end_user": bounded(asked.view.end_user),
        "parameters": recorded_parameters(kind, asked.fields),
        "unknown_fields": unknown_fields(kind, asked.fields),
    }


def _input_facts(effective: EffectiveRequest, worst: WorstCase) -> dict[str, Any]:
    return {
        "input_bound_tokens": worst.input_tokens,
        "input_is_bounded": worst.is_input_bounded,
        "prompts": effective.view.prompt_count,
    }


def _held_facts(worst: WorstCase) -> dict[str, Any]:
    return {"held_tokens": worst.tokens, "held_cost_microdollars": worst.cost_microdollars}


_NOTHING_SAVED: Final[dict[str, Any]] = {
    "saved_input_tokens": 0,
    "saved_output_tokens": 0,
    "saved_microdollars": 0,
    "provided": (),
}

_NOTHING_HELD: Final = {"held_tokens": 0, "held_cost_microdollars": 0}

_NOTHING_ASKED: Final[dict[str, Any]] = {
    "endpoint": None,
    "dialect": None,
    "model_asked": None,
    "model": None,
    "end_user": None,
    "parameters": {},
    "unknown_fields": (),
    "input_bound_tokens": 0,
    "input_is_bounded": True,
    "prompts": 0,
    "adjustments": (),
    "observed": (),
}

_UNCONFIGURED: Final = Model("", ModelSettings(deployments=(Deployment(upstream=""),)))
"""Measures the input of a request for a model that is not configured, as one would that was configured newly."""
