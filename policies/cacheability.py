"""May this answer be stored, and may a stored one be served: the determinism verdict of SPEC §6.

Knows requests, cache settings and the request's `Cache-Control`; how a key is computed is in `cache_keys`, whether a
stored answer is still good in `freshness`, and whether an answer is complete is seen by the relay.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from policies.arrays import items
from policies.cache_keys import cache_key
from policies.requests.asked import Endpoint
from policies.requests.ceilings import widest_ceiling
from policies.requests.tools import has_hosted_tool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policies.catalog import Model
    from policies.policy import CacheSettings
    from policies.principals import Principal
    from policies.requests.asked import EffectiveRequest


_LIFE_UNIT_MILLISECONDS: Final = 1000
"""An entry's life is counted in whole seconds."""


class Keyed(msgspec.Struct, frozen=True):
    """The answer may be stored under `key` (hex) for `ttl_seconds`.

    `items` are the keys of an array's items where each is an answer of its own, else empty. `look_up` is False when the
    client said `no-cache`, `store` False when it said `no-store`; `max_age_seconds` bounds the age of a stored answer,
    `only_if_cached` forbids going upstream. With `checks_fingerprint` a retired fingerprint makes an answer stale.
    """

    key: str
    ttl_seconds: int
    items: tuple[str, ...] = ()
    checks_fingerprint: bool = True
    look_up: bool = True
    store: bool = True
    max_age_seconds: int | None = None
    only_if_cached: bool = False


class Bypass(msgspec.Struct, frozen=True):
    """The cache is not involved; `reason` is a short token such as `not-deterministic`."""

    reason: str
    only_if_cached: bool = False


CachePlan = Keyed | Bypass


@dataclass(frozen=True, slots=True)
class CacheControl:
    """What a request's `Cache-Control` asks for; every directive that is not named here is ignored."""

    no_cache: bool = False
    no_store: bool = False
    only_if_cached: bool = False
    max_age_seconds: int | None = None


def plan_cache(  # noqa: PLR0913  a verdict weighs all of them
    effective: EffectiveRequest,
    model: Model,
    principal: Principal,
    settings: CacheSettings,
    cache_control: str | None,
    *,
    end_user: str | None = None,
    api_version: str | None = None,
) -> CachePlan:
    """Decide whether an answer is looked up and stored, and under which key (SPEC §6).

    `cache_control` is the request's header, several values joined by commas; `end_user` the one that the client named,
    whatever policy made of the name. `api_version` is the client's, given
    only where it changes the address that the request is forwarded to (SPEC §2).
    """
    control = read_cache_control(cache_control)
    reason = _find_bypass(effective, settings, model, end_user)
    if reason is not None:
        return Bypass(reason, control.only_if_cached)
    key_of = partial(
        cache_key,
        model=model.name,
        scope=_scope(principal, settings, end_user),
        api_version=api_version,
        defaults=model.settings.defaults,
    )
    return Keyed(
        key=key_of(effective),
        ttl_seconds=_life(settings, model) // 1000,
        items=tuple(map(key_of, items(effective) or ())),
        checks_fingerprint=settings.fingerprint == "check",
        look_up=not control.no_cache,
        store=not control.no_store,
        max_age_seconds=control.max_age_seconds,
        only_if_cached=control.only_if_cached,
    )


def _find_bypass(
    effective: EffectiveRequest, settings: CacheSettings, model: Model, end_user: str | None
) -> str | None:
    """Return why the cache stays out of it; policy's reasons first, then the request's."""
    reason = _find_bypass_of_settings(settings, model)
    if reason is not None:
        return reason
    if effective.fields.get("cache_level") in _NO_CACHE_LEVELS:
        return "cache-level"
    if settings.mode == "deterministic" and not is_deterministic(effective):
        return "not-deterministic"
    if settings.scope == "end_user" and not end_user:
        return "no-end-user"
    return _find_bypass_of_content(effective)


def _find_bypass_of_settings(settings: CacheSettings, model: Model) -> str | None:
    if settings.mode == "off":
        return "off"
    if model.settings.auth == "passthrough":  # whether, and with what, the upstream answers is the client's own
        return "passthrough"
    return "no-ttl" if _life(settings, model) < _LIFE_UNIT_MILLISECONDS else None


def _find_bypass_of_content(effective: EffectiveRequest) -> str | None:
    """Return what makes the request more than what it says: what an upstream keeps, or does besides answering."""
    find = _BYPASSES.get(effective.endpoint)
    reason = None if find is None else find(effective.fields)
    return "named-input" if reason is None and effective.input_size.is_open else reason


def _life(settings: CacheSettings, model: Model) -> int:
    """Return for how long an answer may be served, in milliseconds."""
    return settings.ttl if model.settings.cache_ttl is None else min(settings.ttl, model.settings.cache_ttl)


def is_deterministic(effective: EffectiveRequest) -> bool:
    """Tell whether the same request draws the same answer: temperature 0 as given, a seed, or nothing generated."""
    view = effective.view
    return (
        effective.endpoint is Endpoint.EMBEDDINGS
        or view.temperature == 0
        or view.seed is not None
        or widest_ceiling(effective.fields, view.token_ceiling) == 0
    )


def is_repeatable(effective: EffectiveRequest) -> bool:
    """Tell whether it makes no difference how often, and by which deployment, the request is answered."""
    return is_deterministic(effective) and _find_bypass_of_content(effective) is None


def is_bound_to_upstream(effective: EffectiveRequest) -> bool:
    """Tell whether the request names what only its own upstream keeps, or has tools run there, as may have effects."""
    fields = effective.fields
    is_stateful = effective.endpoint is Endpoint.RESPONSES and any(
        fields.get(name) is not None for name in _UPSTREAM_STATE
    )
    return is_stateful or effective.input_size.is_open or has_hosted_tool(fields.get("tools"))


def _find_chat_bypass(fields: Mapping[str, Any]) -> str | None:
    """Find what makes a chat request more than its text: storage upstream, the web, data or tools there, or sound."""
    if fields.get("store"):
        return "stored-upstream"
    if fields.get("web_search_options") is not None:
        return "web-search"
    if fields.get("data_sources") is not None:
        return "data-sources"
    if has_hosted_tool(fields.get("tools")):
        return "hosted-tools"
    modalities = fields.get("modalities")
    if fields.get("audio") is not None or (isinstance(modalities, list | str) and "audio" in modalities):
        return "audio"
    return None


def _find_responses_bypass(fields: Mapping[str, Any]) -> str | None:
    """Find what makes a response more than its text: storage upstream, which is the default, or tools run there."""
    if fields.get("store") is not False:
        return "stored-upstream"
    for name, reason in _UPSTREAM_STATE.items():
        if fields.get(name) is not None:
            return reason
    return "hosted-tools" if has_hosted_tool(fields.get("tools")) else None


def _scope(principal: Principal, settings: CacheSettings, end_user: str | None) -> tuple[str, ...]:
    """Return who shares the answer, outermost first; the level's name stands first, so that no two levels meet."""
    project = (settings.scope, principal.organization, principal.project)
    match settings.scope:
        case "organization":
            return (settings.scope, principal.organization)
        case "project":
            return project
        case "user":
            kind = "service_account" if principal.is_service_account else "user"
            return (settings.scope, principal.organization, kind, principal.owner)
        case "key":
            return (*project, principal.key)
        case "end_user":
            return (*project, end_user or "")


def read_cache_control(value: str | None) -> CacheControl:
    """Read a request's `Cache-Control` (RFC 9111 §5.2.1): names in any case, numbers also quoted.

    Of several `max-age` the smallest counts; one that is no number counts as 0, which no stored answer meets.
    """
    if not value:
        return _NOTHING_ASKED
    directives = [(name.lower(), argument.strip('"')) for name, argument in _DIRECTIVE.findall(value)]
    names = {name for name, _ in directives}
    ages = [_seconds(argument) for name, argument in directives if name == "max-age"]
    return CacheControl(
        no_cache="no-cache" in names,
        no_store="no-store" in names,
        only_if_cached="only-if-cached" in names,
        max_age_seconds=min(ages, default=None),
    )


def _seconds(argument: str) -> int:
    if not _DIGITS.fullmatch(argument):
        return 0
    return int(argument) if len(argument) < _MAX_DIGITS else _MAX_SECONDS


_NO_CACHE_LEVELS: Final = (0, 1)
_BYPASSES: Final = {Endpoint.CHAT: _find_chat_bypass, Endpoint.RESPONSES: _find_responses_bypass}
_UPSTREAM_STATE: Final = {
    "previous_response_id": "previous-response",
    "conversation": "conversation",
    "prompt": "prompt-template",
}
"""Members of a response's request that name what the upstream keeps and may change."""
_NOTHING_ASKED: Final = CacheControl()
_DIRECTIVE: Final = re.compile(r"""([^\s,;="]+)\s*(?:=\s*("(?:[^"\\]|\\.)*"|[^\s,;"]*))?""")
_DIGITS: Final = re.compile(r"[0-9]+")
_MAX_DIGITS: Final = 10
_MAX_SECONDS: Final = 2**31  # RFC 9111 §1.2.2
