"""Tokens read from an answer, and the usage record that every finished request leaves (SPEC §11).

Knows the shapes of `usage` objects and of the record, and what of a client's text may stand in one: none of the
prompt, and identifiers only up to a length. Knows no price, no store and no exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Self, TypeGuard

import msgspec

from policies.requests.ceilings import OUTPUT_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

    from policies.principals import Principal
    from policies.requests.asked import Adjustment

CLIENT: Final = "client"
"""Origin of what a client sent; anything else the gateway sent of its own accord, for the organization."""
MAX_TEXT_CHARACTERS: Final = 256
"""Longest identifier of a client or upstream that a record keeps; the rest is cut off."""
MAX_UNKNOWN_FIELDS: Final = 32
"""Most names of unknown fields that a record lists."""
MAX_FIELD_NAME_CHARACTERS: Final = 64
"""Longest name of an unknown field that a record keeps."""

_MAX_TOKENS: Final = 2**53 - 1
"""Largest count that every reader of JSON and Lua keeps exactly; a report above it is garbage."""
_MAX_INTEGER: Final = 2**63 - 1
_MAX_FLOAT: Final = 10**308


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer as its upstream reported them."""

    input_tokens: int
    output_tokens: int
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0


class Provider(msgspec.Struct, frozen=True, array_like=True):
    """Who paid for an answer that the cache keeps: `owner` is a user or, when `is_service_account`, such an account."""

    project: str
    owner: str
    is_service_account: bool
    key: str

    @classmethod
    def of(cls, principal: Principal) -> Self:
        """Return who pays for what this principal's requests take upstream."""
        return cls(principal.project, principal.owner, principal.is_service_account, principal.key)


class Saved(msgspec.Struct, frozen=True):
    """What one stored answer saved the request that it served.

    `usage` is what its fetch took, None where that is not known; `provider` paid for it, None where nobody is known.
    """

    usage: Usage | None
    provider: Provider | None


class Provided(msgspec.Struct, frozen=True):
    """What of a request's savings is owed to one who paid before: tokens, and money in whole micro-dollars."""

    project: str
    owner: str
    is_service_account: bool
    key: str
    input_tokens: int
    output_tokens: int
    microdollars: int


class RecordedAdjustment(msgspec.Struct, frozen=True):
    """An adjustment without text: `before` and `after` are numbers, booleans, or how many items a list or map has."""

    parameter: str
    rule: str
    policy: str | None
    before: float | None
    after: float | None


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The one ledger line of a finished request; every field of SPEC §11, in the order it is written.

    Tokens and `completions` (choices generated) are counts, money whole micro-dollars, `…_milliseconds` Unix time,
    `…_seconds` durations, of which `waited_…` passed in line for room in limits. `owner` is a user or, when
    `is_service_account`, a service account. `known` says how the tokens are known: reported, counted, worst_case or
    none. `held_…` is the worst case that was held before, `saved_…` what stored answers spared: what they took upstream
    when they were fetched; `provided` tells who paid for that then, each once.
    `input_bound_tokens` is the most tokens that the input can have, of one that is partly named only, so that it is not
    `input_is_bounded`, of what was sent. What was asked stands in the record of every request that could be read,
    refused ones too; fields of a decision are None, 0 or empty where the request never came that far.
    """

    request_id: str
    client_request_id: str | None
    origin: str
    started_milliseconds: int
    ended_milliseconds: int | None
    duration_seconds: float | None
    waited_seconds: float
    time_to_first_token_seconds: float | None

    organization: str
    project: str
    owner: str
    is_service_account: bool
    key: str
    end_user: str | None

    route: str
    endpoint: str | None
    dialect: str | None
    model_asked: str | None
    model: str | None
    model_served: str | None
    upstream: str | None
    deployment: str | None
    upstream_request_id: str | None
    upstream_status: int | None
    attempts: int
    attempts_of_unknown_cost: int
    status: int
    outcome: str
    error_code: str | None

    input_tokens: int
    output_tokens: int
    cached_input_tokens: int
    reasoning_tokens: int
    completions: int
    known: str
    cost_microdollars: int
    input_bound_tokens: int
    input_is_bounded: bool
    held_tokens: int
    held_cost_microdollars: int

    cache: str
    cache_reason: str | None
    saved_input_tokens: int
    saved_output_tokens: int
    saved_microdollars: int
    provided: tuple[Provided, ...]

    prompts: int
    parameters: Mapping[str, float | bool]
    unknown_fields: tuple[str, ...]
    adjustments: tuple[RecordedAdjustment, ...]
    observed: tuple[RecordedAdjustment, ...]
    policies: tuple[str, ...]
    configuration_version: str


def read_usage(usage: object) -> Usage | None:
    """Read the `usage` member of an answer, in the spelling of completions and chat or of responses.

    A count that stands there and is none makes the whole no report, as does the lack of a count of the input: None.
    Of the total that holds only where another count has to be told from it, and a detail is then 0.
    """
    if not isinstance(usage, dict):
        return None
    try:
        input_tokens, output_tokens = _input_and_output(usage)
    except ValueError:
        return None
    cached = _detail(usage, ("prompt_tokens_details", "input_tokens_details"), "cached_tokens")
    reasoning = _detail(usage, ("completion_tokens_details", "output_tokens_details"), "reasoning_tokens")
    return Usage(input_tokens, output_tokens, min(cached, input_tokens), min(reasoning, output_tokens))


def _input_and_output(usage: Mapping[str, Any]) -> tuple[int, int]:
    """Return both counts, at most one of them told from the total. Raises ValueError where they are not reported."""
    input_tokens = _count(usage, "prompt_tokens", "input_tokens")
    output_tokens = _count(usage, "completion_tokens", "output_tokens")
    if input_tokens is not None and output_tokens is not None:
        return input_tokens, output_tokens
    total = _count(usage, "total_tokens")
    if input_tokens is not None:
        return input_tokens, 0 if total is None else max(0, total - input_tokens)
    if total is None or output_tokens is None or total < output_tokens:
        raise ValueError("no report of the input")
    return total - output_tokens, output_tokens


def _count(counts: Mapping[str, Any], *names: str) -> int | None:
    """Return the count by the first of its names, null being as good as absent. Raises ValueError for garbage."""
    for name in names:
        value = counts.get(name)
        if value is None:
            continue
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is int and 0 <= value <= _MAX_TOKENS:
            return value
        raise ValueError("no count of tokens")
    return None


def _detail(usage: Mapping[str, Any], groups: tuple[str, ...], name: str) -> int:
    for group in groups:
        details = usage.get(group)
        if isinstance(details, dict):
            try:
                return _count(details, name) or 0
            except ValueError:
                return 0
    return 0


def bounded(text: str | None, most: int = MAX_TEXT_CHARACTERS) -> str | None:
    """Cut a client's or upstream's identifier to `most` characters; what is cut is marked by an ellipsis.

    Lone surrogates, which header values carry for bytes above ASCII, are written as escapes: JSON has no room for them.
    """
    if text is None:
        return None
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= most else text[: most - 1] + "…"


def recorded_parameters(kind: type[BaseModel], fields: Mapping[str, Any]) -> dict[str, float | bool]:
    """Return the request's parameters as a record may keep them: numbers, booleans and counts, never text.

    `kind` is the request's type, which names the API's parameters; what bounds the output is one under every name. One
    that is no number stands under its name and `_count`: how many items it holds; a text is one.
    """
    kept: dict[str, float | bool] = {}
    for name, value in fields.items():
        if value is None or not (name in _parameters(kind) or name in OUTPUT_NAMES):
            continue
        if isinstance(value, int | float):
            kept[name] = _in_range(value)
        else:
            kept[f"{name}_count"] = _items(value)
    return kept


@cache
def _parameters(kind: type[BaseModel]) -> frozenset[str]:
    return frozenset(kind.model_fields)


def unknown_fields(kind: type[BaseModel], fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of members that are no parameter of the API: bounded in number and length, in their order.

    A member that is null is none.
    """
    names = [name for name, value in fields.items() if value is not None and name not in _parameters(kind)]
    return tuple(name[:MAX_FIELD_NAME_CHARACTERS] for name in names[:MAX_UNKNOWN_FIELDS])


def recorded_adjustments(adjustments: tuple[Adjustment, ...]) -> tuple[RecordedAdjustment, ...]:
    """Return adjustments as a record may keep them."""
    return tuple(
        RecordedAdjustment(
            parameter=each.parameter[:MAX_FIELD_NAME_CHARACTERS],
            rule=each.action.value,
            policy=each.policy,
            before=_without_text(each.before),
            after=_without_text(each.after),
        )
        for each in adjustments
    )


def _without_text(value: object) -> float | None:
    if _is_plain(value):
        return value
    return len(value) if isinstance(value, list | dict) else None


def _is_plain(value: object) -> TypeGuard[float | bool]:
    if isinstance(value, int):
        return -_MAX_INTEGER <= value <= _MAX_INTEGER
    return isinstance(value, float)


def _in_range(value: float) -> float:
    """Return a number as it is, or the nearest float of an integer that most readers of JSON have no room for."""
    if _is_plain(value):
        return value
    return max(min(value, _MAX_FLOAT), -_MAX_FLOAT) * 1.0


def _items(value: object) -> int:
    return len(value) if isinstance(value, list | dict) else 1
