"""Which header fields pass to an upstream and back: by allow-list, both ways (SPEC §8).

Whatever is not named here stays: credentials, organisation and project names, cookies, hop-by-hop fields, and every
field that is invented tomorrow. A model's `auth: passthrough` alone lets a client's own credential through. Knows
nothing of bodies and statuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from policies.pseudonyms import pseudonym

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policies.decision import Decision
    from proxy.config_upstreams import Upstream
    from proxy.exchange import Headers, Request

_FROM_CLIENTS = ("OpenAI-Beta", "traceparent", "tracestate")
_CREDENTIALS = ("Authorization", "api-key", "OpenAI-Organization", "OpenAI-Project")
_PROJECT = "x-tidegate-project"
_USER = "x-tidegate-user"
_CONNECTION = "Connection"
_TO_CLIENTS = {
    "retry-after": "Retry-After",
    "retry-after-ms": "retry-after-ms",
    "x-should-retry": "x-should-retry",
    "openai-processing-ms": "openai-processing-ms",
    "openai-version": "openai-version",
    "openai-model": "openai-model",
    "x-ms-region": "x-ms-region",
    "x-request-id": "x-upstream-request-id",
    "apim-request-id": "apim-request-id",
}
_LIMITS = "x-ratelimit-"
_UPSTREAM_LIMITS = "x-upstream-ratelimit-"
_IDS = ("x-request-id", "apim-request-id")
_CONTENT_TYPE = ("Content-Type", "application/json")
_CODING = ("Accept-Encoding", "identity")
_AGENT = ("User-Agent", "tidegate")


def request_headers(request: Request) -> Headers:
    """Return the fields of a client's request that may go upstream."""
    return _passed(request, _FROM_CLIENTS)


def passed_credentials(request: Request) -> Headers:
    """Return a client's own credential, organization and project, each under the name it was sent with."""
    return _passed(request, _CREDENTIALS)


def upstream_headers(upstream: Upstream) -> Headers:
    """Return the fields that every request to an upstream carries, its own credential among them."""
    return [*keyless_headers(), *_own_credential(upstream)]


def keyless_headers() -> Headers:
    """Return the fields that every request to any upstream carries, without a credential."""
    return [_CONTENT_TYPE, _CODING, _AGENT]


def identity_fields(upstream: Upstream, decision: Decision, pseudonym_key: bytes) -> Headers:
    """Return the fields that tell an upstream who asks, where it is configured to be told.

    The organization's own requests come from no project and no user. The user is told as a pseudonym only.
    """
    told, principal = upstream.identity_headers, decision.principal
    fields: Headers = []
    if "project" in told and principal.project:
        fields.append((_PROJECT, principal.project))
    if "user" in told and principal.owner:
        fields.append((_USER, pseudonym(pseudonym_key, principal, decision.asked.view.end_user)))
    return fields


def response_headers(received: Headers) -> Headers:
    """Return the fields of an upstream's answer that may go to the client, renamed where the gateway has its own.

    The upstream's request id and limits are marked as its own. Content-Type is not among them: it depends on what
    is made of the body. Values that are not ASCII stay, as no field here has such.
    """
    of_hop = _fields_of_hop(value for name, value in received if name.lower() == _CONNECTION.lower())
    passed: Headers = []
    for name, value in received:
        lower = name.lower()
        allowed = _TO_CLIENTS.get(lower)
        if allowed is None and lower.startswith(_LIMITS):
            allowed = _UPSTREAM_LIMITS + lower[len(_LIMITS) :]
        if allowed is not None and lower not in of_hop and value.isascii():
            passed.append((allowed, value))
    return passed


def upstream_request_id(received: Headers) -> str | None:
    """Return the id under which an upstream knows the request; None when it says none."""
    ids = {name.lower(): value for name, value in received if name.lower() in _IDS}
    return ids.get(_IDS[0]) or ids.get(_IDS[1])


def _passed(request: Request, names: Iterable[str]) -> Headers:
    """Return a request's fields of these names: the first of each, and none that cannot be written."""
    found = [(name, value) for name in names if (value := request.header(name)) is not None and value.isascii()]
    if not found:
        return found
    of_hop = _fields_of_hop(request.headers(_CONNECTION))
    return [(name, value) for name, value in found if name.lower() not in of_hop]


def _fields_of_hop(connection: Iterable[str]) -> set[str]:
    """Return the fields, in lower case, that a sender meant for the next hop only (RFC 9110 §7.6.1)."""
    return {name.strip().lower() for value in connection for name in value.split(",")}


def _own_credential(upstream: Upstream) -> Headers:
    if upstream.api_key is None:
        return []
    key = upstream.api_key.get_secret_value()
    return [("api-key", key) if upstream.kind == "azure" else ("Authorization", f"Bearer {key}")]
