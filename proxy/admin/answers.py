"""How the control plane answers: JSON, and errors in OpenAI's shape (SPEC §9).

Knows no page and no resource.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from policies.errors import InvalidRequest, Rejection
from proxy.errors import GatewayError, error_headers, error_object, status_of
from proxy.named_principal import UnknownName

if TYPE_CHECKING:
    from proxy.named_principal import CannotAnswer


class NotConfigured(Rejection):
    """Nothing of the name or id that was given is configured."""

    status_hint = 404


def refusal_of(error: CannotAnswer, member: str) -> Rejection:
    """Return the error for a question that cannot be answered, or an order that cannot be obeyed, for its member."""
    message = f"{member}: {error.reason}"
    if isinstance(error, UnknownName):
        return NotConfigured(message, code="not_found", param=member)
    return InvalidRequest(f"{message}.", param=member)


def json_answer(content: object, status: int = 200) -> web.Response:
    """Return an answer that no cache in between keeps."""
    body = msgspec.json.encode(content)
    return web.Response(
        status=status, body=body, headers={"Content-Type": "application/json", "Cache-Control": "no-store"}
    )


def error_answer(error: Rejection | GatewayError) -> web.Response:
    """Render an error."""
    response = web.Response(status=status_of(error), body=error_object(error))
    for name, value in error_headers(error):
        response.headers[name] = value
    return response
