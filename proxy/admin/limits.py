"""`GET /v1/tidegate/limits`: how the limits stand that bind a principal, whom the query names; and their reset.

Knows the query's parameters and the members of a reset; what is told is made by `proxy/standings` and `proxy/resets`,
the store is asked by the gateway behind the control plane.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from aiohttp import web

from policies.errors import InvalidRequest
from policies.requests.media import check_media
from proxy.admin.answers import json_answer, refusal_of
from proxy.admin.audit import actor_of
from proxy.admin.bodies import Members, leave_it_to_the_reader, read_members
from proxy.admin.explain import Running
from proxy.named_principal import CannotAnswer, find_principal
from proxy.queries import check_names, read_parameters
from proxy.resets import describe_reset, event_of, order_reset
from proxy.server import ServedRequest
from proxy.standings import describe, standings_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policies.errors import Rejection
    from policies.limits import BoundLimit
    from proxy.config import Configuration
    from proxy.resets import Order
    from proxy.standings import Standings
    from proxy.store.audit import Event
    from proxy.store.resets import Reset

PATH: Final = "/v1/tidegate/limits"
RESET_PATH: Final = f"{PATH}/reset"

_PARAMETERS: Final = ("project", "user", "key", "end_user")
_AS: Final = "as"


class Resetting(Running, Protocol):
    """A gateway that also lets limits be reset."""

    async def reset(self, limits: Sequence[BoundLimit], event: Event) -> Reset:
        """Set to 0 what is used of limits, and leave an audit record of the event. Raises StoreUnavailable."""


class Asked(Members):
    """Whose limits are to be reset."""

    project: str | None = None
    """a string: the id of the project whose limits are meant, without a key"""
    user: str | None = None
    """a string: the id of the user in that project"""
    key: str | None = None
    """a string: the id of the key whose limits are meant"""
    end_user: str | None = None
    """a string: whom the requests name as `user`"""
    limits: list[str] | None = None
    """an array of strings: the names of the limits; absent, all that bind whoever is meant"""
    reason: str | None = None
    """a string: why, for the audit record"""


def limits_route(gateway: Running) -> web.RouteDef:
    """Return the page of a gateway."""

    async def answer(request: web.Request) -> web.StreamResponse:
        standings = await asyncio.to_thread(_find, gateway.configuration, _read(request.rel_url.raw_query_string))
        rooms = await gateway.rooms(standings.limits)
        return await asyncio.to_thread(lambda: json_answer(describe(standings, rooms)))

    return web.get(PATH, answer, allow_head=False)


def reset_route(gateway: Resetting) -> web.RouteDef:
    """Return the page of a gateway."""

    async def answer(request: web.Request) -> web.StreamResponse:
        configuration = gateway.configuration
        check_media(request.headers.get("Content-Type"))
        raw = await ServedRequest(request, configuration.bounds).read()
        order = await asyncio.to_thread(_order, configuration, raw)
        done = await gateway.reset(order.standings.limits, event_of(order, actor_of(request)))
        return json_answer(describe_reset(order, done))

    return web.post(RESET_PATH, answer, expect_handler=leave_it_to_the_reader)


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


def _order(configuration: Configuration, raw: bytes) -> Order:
    asked = read_members(Asked, raw, noun="The reset", max_depth=configuration.bounds.json_depth)
    if asked.project is None and asked.key is None:
        raise InvalidRequest(
            "Say whose limits: `project`, perhaps with `user`, or `key`; `end_user` is whom requests name.",
            param="project",
        )
    names = {name: getattr(asked, name) for name in _PARAMETERS if getattr(asked, name) is not None}
    standings = _find(configuration, names)
    try:
        return order_reset(standings, asked.limits, end_user=asked.end_user, reason=asked.reason)
    except CannotAnswer as error:
        raise _refusal(error) from None


def _find(configuration: Configuration, query: Mapping[str, str]) -> Standings:
    try:
        principal = find_principal(
            configuration, key=query.get("key"), project=query.get("project"), user=query.get("user")
        )
    except CannotAnswer as error:
        raise _refusal(error) from None
    return standings_of(principal, configuration.rulebook(), query.get("end_user"))


def _refusal(error: CannotAnswer) -> Rejection:
    return refusal_of(error, "key" if error.member == _AS else error.member)
