"""How the control plane answers: JSON, and errors in OpenAI's shape (SPEC §9).

Knows no page and no resource.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from proxy.errors import GatewayError, error_headers, error_object, status_of

if TYPE_CHECKING:
    from policies.errors import Rejection


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
