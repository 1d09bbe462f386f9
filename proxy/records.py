"""The usage record of an exchange, made from its facts, as the line that goes into the outbox.

Reads what others wrote into the `Exchange`; decides no charge, holds no connection, and never looks at the text of a
prompt or an answer. What a record may keep of a client's strings is said in `policies/usage.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from policies.charges import NOTHING, Charged
from policies.pricing import cost_microdollars
from policies.requests.dialects import REQUEST_TYPES
from policies.usage import UsageRecord, bounded, recorded_adjustments, recorded_parameters, unknown_fields
from proxy.exchange import CacheResult

if TYPE_CHECKING:
    from policies.charges import WorstCase
    from policies.decision import Decision
    from policies.principals import Principal
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
    worst = exchange.decision.worst_case
    charged = Charged(
        input_tokens=worst.input_tokens,
        output_tokens=worst.output_tokens,
        cost_microdollars=worst.cost_microdollars,
        known="worst_case",
    )
    return _encode(_record(exchange, ORPHANED, charged))


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
        **(_NO_DECISION if exchange.decision is None else _decision_facts(exchange.decision)),
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
        "known": charged.known,
        "cost_microdollars": charged.cost_microdollars,
    }


def _time_facts(exchange: Exchange) -> dict[str, Any]:
    duration = exchange.duration_seconds
    started = round(exchange.started_at * 1000)
    return {
        "request_id": exchange.request_id,
        "client_request_id": bounded(exchange.client_request_id),
        "origin": "client",
        "started_milliseconds": started,
        "ended_milliseconds": None if duration is None else started + round(duration * 1000),
        "duration_seconds": duration,
        "time_to_first_token_seconds": exchange.time_to_first_token_seconds,
    }


def _principal_facts(principal: Principal) -> dict[str, Any]:
    return {
        "organization": principal.organization,
        "project": principal.project,
        "owner": principal.owner,
        "is_service_account": principal.is_service_account,
        "key": principal.key,
        "policies": principal.policies,
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
        "status": exchange.status,
        "error_code": bounded(exchange.error_code),
        "configuration_version": exchange.configuration_version,
    }


def _cache_facts(exchange: Exchange) -> dict[str, Any]:
    saved = exchange.answer.usage if exchange.cache is CacheResult.HIT else None
    return {
        "cache": exchange.cache.value,
        "cache_reason": exchange.cache_reason,
        "saved_input_tokens": 0 if saved is None else saved.input_tokens,
        "saved_output_tokens": 0 if saved is None else saved.output_tokens,
        "saved_microdollars": saved_microdollars(exchange),
    }


def saved_microdollars(exchange: Exchange) -> int:
    """Return what a hit would have cost upstream, in whole micro-dollars; 0 for whatever is no hit."""
    usage = exchange.answer.usage
    if exchange.cache is not CacheResult.HIT or usage is None or exchange.decision is None:
        return 0
    return cost_microdollars(
        exchange.decision.model.settings.price,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_input_tokens=usage.cached_input_tokens,
    )


def _decision_facts(decision: Decision) -> dict[str, Any]:
    asked = decision.asked
    kind = REQUEST_TYPES[asked.endpoint]
    return {
        "endpoint": asked.endpoint.value,
        "dialect": asked.dialect.value,
        "model_asked": bounded(asked.model),
        "model": decision.model.name,
        "end_user": bounded(asked.view.end_user),
        "input_bound_tokens": decision.worst_case.input_tokens,
        "prompts": decision.effective.view.prompt_count,
        "parameters": recorded_parameters(kind, asked.fields),
        "unknown_fields": unknown_fields(kind, asked.fields),
        "adjustments": recorded_adjustments(decision.adjustments),
    }


def _held_facts(worst: WorstCase) -> dict[str, Any]:
    return {"held_tokens": worst.tokens, "held_cost_microdollars": worst.cost_microdollars}


_NOTHING_HELD: Final = {"held_tokens": 0, "held_cost_microdollars": 0}

_NO_DECISION: Final[dict[str, Any]] = {
    "endpoint": None,
    "dialect": None,
    "model_asked": None,
    "model": None,
    "end_user": None,
    "input_bound_tokens": 0,
    "prompts": 0,
    "parameters": {},
    "unknown_fields": (),
    "adjustments": (),
}
