"""Which header fields pass to an upstream and back: by allow-list, both ways (SPEC §8).

Whatever is not named here stays: credentials, organisation and project names, cookies, hop-by-hop fields, and every
field that is invented tomorrow. Knows nothing of bodies and statuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxy.config import Upstream
    from proxy.exchange import Headers, Request

_FROM_CLIENTS = ("OpenAI-Beta", "traceparent", "tracestate")
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
    found = ((name, request.header(name)) for name in _FROM_CLIENTS)
    return [(name, value) for name, value in found if value is not None and value.isascii()]


def upstream_headers(upstream: Upstream) -> Headers:
    """Return the fields that every request to an upstream carries, its own credential among them."""
    headers = [_CONTENT_TYPE, _CODING, _AGENT]
    if upstream.api_key is not None:
        key = upstream.api_key.get_secret_value()
        headers.append(("api-key", key) if upstream.kind == "azure" else ("Authorization", f"Bearer {key}"))
    return headers


def response_headers(received: Headers) -> Headers:
    """Return the fields of an upstream's answer that may go to the client, renamed where the gateway has its own.

    The upstream's request id and limits are marked as its own. Content-Type is not among them: it depends on what
    is made of the body. Values that are not ASCII stay, as no field here has such.
    """
    passed: Headers = []
    for name, value in received:
        lower = name.lower()
        allowed = _TO_CLIENTS.get(lower)
        if allowed is None and lower.startswith(_LIMITS):
            allowed = _UPSTREAM_LIMITS + lower[len(_LIMITS) :]
        if allowed is not None and value.isascii():
            passed.append((allowed, value))
    return passed


def upstream_request_id(received: Headers) -> str | None:
    """Return the id under which an upstream knows the request; None when it says none."""
    ids = {name.lower(): value for name, value in received if name.lower() in _IDS}
    return ids.get(_IDS[0]) or ids.get(_IDS[1])
