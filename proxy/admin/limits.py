"""`GET /v1/tidegate/limits`: how the limits stand that bind a principal, whom the query names.

Knows the query's parameters; what is told is made by `proxy/standings`, how limits stand is asked of the gateway behind
the control plane.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiohttp import web

from policies.errors import InvalidRequest, Rejection
from proxy.admin.answers import json_answer
from proxy.named_principal import CannotAnswer, UnknownName, find_principal
from proxy.queries import check_names, read_parameters
from proxy.standings import describe, standings_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proxy.admin.explain import Running
    from proxy.config import Configuration
    from proxy.standings import Standings

PATH: Final = "/v1/tidegate/limits"

_PARAMETERS: Final = ("project", "user", "key", "end_user")
_AS: Final = "as"


class NotConfigured(Rejection):
    """Nothing of the id that a query names is configured."""

    status_hint = 404


def limits_route(gateway: Running) -> web.RouteDef:
    """Return the page of a gateway."""

    async def answer(request: web.Request) -> web.StreamResponse:
        standings = await asyncio.to_thread(_find, gateway.configuration, _read(request.rel_url.raw_query_string))
        rooms = await gateway.rooms(standings.limits)
        return await asyncio.to_thread(lambda: json_answer(describe(standings, rooms)))

    return web.get(PATH, answer, allow_head=False)


def _read(query: str) -> Mapping[str, str]:
    """Return the parameters of a raw query. Raises InvalidRequest for one that is none, and without a principal."""
    check_names(query, _PARAMETERS)
    found = read_parameters(query, _PARAMETERS)
    if "project" not in found and "key" not in found:
        raise InvalidRequest(
            "Say whose limits: `?project=ID`, perhaps with `user=ID`, or `?key=ID`; `end_user` is whom requests name.",
            param="project",
        )
    return found


def _find(configuration: Configuration, query: Mapping[str, str]) -> Standings:
    try:
        principal = find_principal(
            configuration, key=query.get("key"), project=query.get("project"), user=query.get("user")
        )
    except CannotAnswer as error:
        parameter = "key" if error.member == _AS else error.member
        message = f"{parameter}: {error.reason}"
        if isinstance(error, UnknownName):
            raise NotConfigured(message, code="not_found", param=parameter) from None
        raise InvalidRequest(f"{message}.", param=parameter) from None
    return standings_of(principal, configuration.rulebook(), query.get("end_user"))
