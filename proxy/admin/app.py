"""The control plane's application: who may come in, and the pages that need no resource of their own.

The Host header must be an address, localhost or configured, so that a web page in an operator's browser cannot reach
in under a name of its own (DNS rebinding). All but the open pages needs an admin key, before anything is said of
whether it exists. This file does not know how health and metrics are come by: a `Gateway` tells.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog
from aiohttp import web

from policies.errors import InvalidRequest, MethodNotAllowed, Rejection, Unauthenticated, UnknownRoute
from proxy.admin.answers import error_answer, json_answer
from proxy.admin.audit import ADMIN_KEY_NAME, Audited, audit_route
from proxy.admin.cache import Caching, entry_route, purge_route, status_route
from proxy.admin.explain import explain_route
from proxy.admin.limits import Resetting, limits_route, reset_route
from proxy.admin.warming import Serving, warm_route
from proxy.credentials import digest
from proxy.errors import GatewayError
from proxy.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from aiohttp.typedefs import Handler

_BEARER = "bearer"
_HEAD_BYTES = 64 * 1024
_SHUTDOWN_SECONDS = 1.0
_UNAVAILABLE = 503
_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:@/]+))(?::[0-9]{0,5})?")

_log = structlog.get_logger("tidegate.admin")


class Gateway(Resetting, Audited, Caching, Serving, Protocol):
    """What the control plane may ask of the processes behind it."""

    def reasons_not_ready(self) -> Sequence[str]:
        """Return why the gateway should get no traffic now; empty when it is ready."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may come in: names of admin keys by their SHA-256 in hex, the key for metrics (None: open), more hosts."""

    admin_keys: Mapping[str, str]
    metrics_key: str | None = None
    hosts: tuple[str, ...] = ()


class WrongHost(InvalidRequest):
    """The Host header names a host that this control plane does not answer for."""

    status_hint = 421


async def _health(_request: web.Request) -> web.StreamResponse:
    return json_answer({"status": "ok"})


async def _ready(request: web.Request) -> web.StreamResponse:
    reasons = request.app[_GATEWAY].reasons_not_ready()
    if reasons:
        return json_answer({"status": "not ready", "reasons": list(reasons)}, status=_UNAVAILABLE)
    return json_answer({"status": "ready"})


async def _metrics(request: web.Request) -> web.StreamResponse:
    access = request.app[_ACCESS]()
    if access.metrics_key is not None and not _is_metrics_key(_bearer(request), access):
        raise Unauthenticated(
            "The metrics need `metrics_key`, or an admin key: send it as `Authorization: Bearer KEY`."
        )
    page = await request.app[_GATEWAY].metrics_page()
    return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})


_OPEN = (("/healthz", _health), ("/readyz", _ready), ("/metrics", _metrics))
"""What answers without an admin key."""

_PAGES = (
    *(explain_route, limits_route, reset_route, audit_route),
    *(purge_route, entry_route, status_route, warm_route),
)
"""What makes each page that needs a resource."""

_GATEWAY: web.AppKey[Gateway] = web.AppKey("gateway", Gateway)
_ACCESS: web.AppKey[Callable[[], Access]] = web.AppKey("access")


def control_plane(gateway: Gateway, access: Callable[[], Access]) -> web.Application:
    """Build the application; whoever serves it owns it. `access` is asked for at every request."""
    app = web.Application(middlewares=[_with_request_id, _with_errors, _with_access])
    app[_GATEWAY] = gateway
    app[_ACCESS] = access
    app.router.add_routes(web.get(path, handler) for path, handler in _OPEN)
    app.router.add_routes([page(gateway) for page in _PAGES])
    return app


async def serve(app: web.Application, sock: socket.socket) -> AsyncIterator[None]:
    """Answer on a listening socket while the generator is suspended; for `asynccontextmanager`."""
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=_SHUTDOWN_SECONDS,
        auto_decompress=False,
        max_line_size=_HEAD_BYTES,
        max_field_size=_HEAD_BYTES,
    )
    await runner.setup()
    try:
        await web.SockSite(runner, sock).start()
        yield
    finally:
        await runner.cleanup()


@web.middleware
async def _with_request_id(request: web.Request, handler: Handler) -> web.StreamResponse:
    response = await handler(request)
    response.headers["x-request-id"] = "req_" + secrets.token_hex(16)
    return response


@web.middleware
async def _with_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Render what is raised in OpenAI's shape (SPEC §9)."""
    try:
        return await handler(request)
    except (Rejection, GatewayError) as error:
        return error_answer(error)
    except web.HTTPMethodNotAllowed as refusal:
        allowed = sorted(refusal.allowed_methods)
        told = f"{request.method[:20]} is not answered here; this path takes {', '.join(allowed)}."
        return error_answer(MethodNotAllowed(told, allowed=allowed))
    except web.HTTPNotFound:
        return error_answer(UnknownRoute(f"There is nothing at {request.path[:100]!r} on the control plane."))
    except web.HTTPException:
        raise
    except Exception:  # noqa: BLE001  the outermost frame of a request
        _log.exception("a request to the control plane failed", path=request.path)
        return error_answer(GatewayError("The control plane failed to answer; the operator's log says more."))


@web.middleware
async def _with_access(request: web.Request, handler: Handler) -> web.StreamResponse:
    access = request.app[_ACCESS]()
    _check_host(request.headers.get("Host", ""), access)
    if request.path not in _OPEN_PATHS:
        name = _find_admin_key(_bearer(request), access)
        if name is None:
            raise Unauthenticated("The control plane needs an admin key: send it as `Authorization: Bearer KEY`.")
        request[ADMIN_KEY_NAME] = name
    return await handler(request)


_OPEN_PATHS = frozenset(path for path, _ in _OPEN)


def _check_host(header: str, access: Access) -> None:
    if not _is_ours(header, access):
        raise WrongHost(
            f"The control plane does not answer for the host {header[:100]!r}; "
            "use its IP address or localhost, or add the name to `admin_hosts`.",
            code="wrong_host",
        )


def _is_ours(header: str, access: Access) -> bool:
    """Tell whether a Host header is an address or one of our names, with or without a port, and nothing else."""
    parts = _HOST.fullmatch(header)
    if parts is None:
        return False
    try:
        if parts["six"] is not None:
            ipaddress.IPv6Address(parts["six"])
        elif parts["name"].lower() not in ("localhost", *access.hosts):
            ipaddress.IPv4Address(parts["name"])
    except ValueError:
        return False
    return True


def _bearer(request: web.Request) -> str:
    scheme, _, credential = request.headers.get("Authorization", "").partition(" ")
    return credential.strip() if scheme.lower() == _BEARER else ""


def _find_admin_key(key: str, access: Access) -> str | None:
    """Return the name of an admin key, None if it is none."""
    hashed = digest(key)
    return next((name for known, name in access.admin_keys.items() if hmac.compare_digest(hashed, known)), None)


def _is_metrics_key(key: str, access: Access) -> bool:
    expected = (access.metrics_key or "").encode()
    if hmac.compare_digest(key.encode("utf-8", "surrogateescape"), expected):
        return True
    return _find_admin_key(key, access) is not None
