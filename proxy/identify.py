"""Who sends a request: the key in its headers, looked up by SHA-256.

Knows header names and the configuration's keys. What the principal may do is decided elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from policies.errors import Forbidden, InvalidRequest, Unauthenticated
from proxy.credentials import digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from policies.principals import Principal
    from proxy.exchange import Request

_HOW = "send it as `Authorization: Bearer KEY`, or in Azure's dialect as `api-key: KEY`"


def identify(request: Request, principals: Mapping[str, Principal]) -> Principal:
    """Return the principal whose key the request carries (SPEC §9); `principals` are by the key's SHA-256 in hex.

    Raises Unauthenticated without a known key, InvalidRequest for two different credentials, and Forbidden when
    `OpenAI-Project` names another project than the key's.
    """
    credentials = set(_credentials(request))
    if len(credentials) > 1:
        raise InvalidRequest(
            "The request carries two different API keys; send one, in `Authorization` or in `api-key`.",
            code="conflicting_credentials",
        )
    key = credentials.pop() if credentials else ""
    if not key:
        raise Unauthenticated(f"The request carries no API key; {_HOW}.")
    principal = principals.get(digest(key))
    if principal is None:
        raise Unauthenticated(f"The API key is not known here ({_masked(key)}); check it for typing errors.")
    project = request.header("OpenAI-Project")
    if project and project != principal.project:
        raise Forbidden(
            f"The API key belongs to another project than the one named in `OpenAI-Project` ({project[:64]!r}); "
            "leave the header out, or use a key of that project.",
            code="project_not_allowed",
        )
    return principal


def _credentials(request: Request) -> Iterator[str]:
    for value in request.headers("Authorization"):
        scheme, _, credential = value.strip().partition(" ")
        if scheme.lower() == "bearer":
            yield credential.strip()
        elif scheme:  # not repeated: it may be a key whose sender forgot the scheme
            raise Unauthenticated(f"The Authorization header does not begin with `Bearer`; {_HOW}.")
    for value in request.headers("api-key"):
        yield value.strip()


def _masked(key: str) -> str:
    """Show just enough of a key for its owner to recognise it."""
    shown = 4
    return f"ends in …{key[-shown:]}" if len(key) > 4 * shown else f"{len(key)} characters"
