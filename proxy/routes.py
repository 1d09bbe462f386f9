"""The table of routes of the data plane: which path and method is answered by what (SPEC §2).

Matches raw paths exactly: no other case, no doubled or trailing slash, no dot segments. Knows no HTTP library, and
answers nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from policies.errors import MethodNotAllowed, UnknownRoute
from policies.requests.api_version import read_api_version
from policies.requests.asked import Dialect, Endpoint
from proxy import listings, me
from proxy.exchange import Outcome
from proxy.handler import Generation, generate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from proxy.exchange import Exchange, Request, Writer
    from proxy.handler import Snapshot


@dataclass(frozen=True, slots=True)
class Call:
    """One request on its route: what every answering function gets. `model` is the path's, decoded, if it has one."""

    request: Request
    writer: Writer
    exchange: Exchange
    snapshot: Snapshot
    model: str | None


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table; `name` is the path's pattern, and the label in metrics and logs."""

    method: str
    name: str
    answer: Callable[[Call], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Generates:
    """The answer of a route that generates, in one dialect of one endpoint."""

    endpoint: Endpoint
    dialect: Dialect

    async def __call__(self, call: Call) -> None:
        """Answer one request. Raises Rejection or GatewayError."""
        await generate(
            call.request,
            call.writer,
            call.exchange,
            generation=self.generation(call.model, call.request.query),
            snapshot=call.snapshot,
        )

    def generation(self, path_model: str | None, query: str) -> Generation:
        """Return what route and address say of a request. Raises InvalidRequest for a query with two versions."""
        return Generation(self.endpoint, self.dialect, path_model, read_api_version(query))


def _lists(listing: Callable[..., bytes]) -> Callable[[Call], Awaitable[None]]:
    async def answer(call: Call) -> None:
        body = listing(call.request, call.exchange, call.snapshot, call.model)
        await _respond(call, body)

    return answer


async def _tell_me(call: Call) -> None:
    await _respond(call, await me.me(call.request, call.exchange, call.snapshot))


async def _respond(call: Call, body: bytes) -> None:
    call.exchange.outcome = Outcome.COMPLETED
    await call.writer.respond(200, [("Content-Type", "application/json"), ("Cache-Control", "no-store")], body)


_MODEL = "{model}"
HEALTH = "/healthz"
_DEPLOYMENT_ENDPOINTS = (Endpoint.COMPLETIONS, Endpoint.CHAT, Endpoint.EMBEDDINGS)
"""Those that Azure has below a deployment; for the others its model stands in the body."""

ROUTES = (
    *(
        Route("POST", f"{prefix}/{endpoint}", Generates(endpoint, Dialect.OPENAI))
        for prefix in ("/v1", "/openai/v1")
        for endpoint in Endpoint
    ),
    *(
        Route("POST", f"/openai/deployments/{_MODEL}/{endpoint}", Generates(endpoint, Dialect.AZURE))
        for endpoint in _DEPLOYMENT_ENDPOINTS
    ),
    Route("POST", "/openai/responses", Generates(Endpoint.RESPONSES, Dialect.AZURE)),
    Route("POST", f"/v1/engines/{_MODEL}/completions", Generates(Endpoint.COMPLETIONS, Dialect.ENGINES)),
    Route("GET", "/v1/engines", _lists(listings.engines)),
    Route("GET", f"/v1/engines/{_MODEL}", _lists(listings.engine)),
    Route("GET", "/v1/models", _lists(listings.models)),
    Route("GET", f"/v1/models/{_MODEL}", _lists(listings.model)),
    Route("GET", "/openai/v1/models", _lists(listings.models)),
    Route("GET", f"/openai/v1/models/{_MODEL}", _lists(listings.model)),
    Route("GET", "/openai/models", _lists(listings.azure_models)),
    Route("GET", f"/openai/models/{_MODEL}", _lists(listings.azure_model)),
    Route("GET", "/v1/tidegate/me", _tell_me),
    Route("GET", HEALTH, _lists(listings.health)),
)

_EXACT = {
    name: {route.method: route for route in ROUTES if route.name == name}
    for name in (route.name for route in ROUTES if _MODEL not in route.name)
}
_PATTERNS = tuple(
    (prefix, suffix, route)
    for route in sorted(ROUTES, key=lambda route: -len(route.name))  # the longer suffix first
    for prefix, marker, suffix in (route.name.partition(_MODEL),)
    if marker
)


def find_route(method: str, path: str) -> tuple[Route, str | None]:
    """Return the route of a raw path, and the model name that the path carries, percent-decoded.

    Raises UnknownRoute, or MethodNotAllowed with the methods that the path takes.
    """
    methods = _EXACT.get(path)
    model = None
    if methods is None:
        model, methods = _match(path)
    route = methods.get(method)
    if route is None:
        allowed = ", ".join(methods)
        raise MethodNotAllowed(f"{method[:20]} is not answered here; this path takes {allowed}.", allowed=list(methods))
    return route, model


def find_generation(path: str, query: str) -> Generation:
    """Return what a raw path and query say of a request that generates.

    Raises UnknownRoute or MethodNotAllowed where nothing generates, InvalidRequest for a query with two versions.
    """
    route, model = find_route("POST", path)
    if not isinstance(route.answer, Generates):
        raise _unknown(path)
    return route.answer.generation(model, query)


def _match(path: str) -> tuple[str, dict[str, Route]]:
    for prefix, suffix, route in _PATTERNS:
        if path.startswith(prefix) and path.endswith(suffix):
            model = _decode_model(path[len(prefix) : len(path) - len(suffix)])
            if model is not None:
                return model, {route.method: route}
    raise _unknown(path)


def _unknown(path: str) -> UnknownRoute:
    return UnknownRoute(f"There is nothing at {path[:100]!r}; paths match exactly, such as POST /v1/completions.")


def _decode_model(segments: str) -> str | None:
    try:
        name = unquote(segments, errors="strict")
    except UnicodeDecodeError:
        return None
    parts = name.split("/")
    return None if any(part in {"", ".", ".."} for part in parts) else name
