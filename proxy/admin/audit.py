"""`GET /v1/organization/audit_logs`: what administrators did, latest first, as OpenAI's Admin API lists it.

Knows the query's parameters and the shape of the answer; the records are read by the gateway behind the control plane.
Whoever leaves a record asks here who is doing it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qsl

from aiohttp import web

from policies.errors import InvalidRequest
from proxy.admin.answers import json_answer
from proxy.queries import check_names, read_parameters
from proxy.resets import describe_details
from proxy.store.audit import Actor, Stretch, is_entry_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from proxy.config import Configuration
    from proxy.store.audit import Entry

PATH: Final = "/v1/organization/audit_logs"

ADMIN_KEY_NAME: web.RequestKey[str] = web.RequestKey("admin_key_name", str)
"""Where a request keeps the name of the admin key that it was let in by."""

_DEFAULT_COUNT: Final = 20
_MAX_COUNT: Final = 100
_CURSORS: Final = ("after", "before")
_RANGE: Final = ("effective_at[gt]", "effective_at[gte]", "effective_at[lt]", "effective_at[lte]")
_ONCE: Final = ("limit", *_CURSORS, *_RANGE)
_SEVERAL: Final = ("event_types[]", "actor_ids[]", "project_ids[]")
_MILLISECONDS: Final = 1_000
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,12}", re.ASCII)


class Audited(Protocol):
    """What has to be known of the gateway that runs."""

    @property
    def configuration(self) -> Configuration:
        """The configuration that is in force."""

    def audit_entries(self, stretch: Stretch, *, oldest_first: bool) -> AsyncIterator[Entry]:
        """Yield the records of a stretch of the audit tail, the latest first or last. Raises StoreUnavailable."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a query asks for: at most `count` records of a stretch, of any of these types, actors and projects.

    None: of all. A page before a record holds those that are next to it.
    """

    stretch: Stretch
    count: int
    types: frozenset[str] | None
    actors: frozenset[str] | None
    projects: frozenset[str] | None

    @property
    def is_page_before(self) -> bool:
        """Whether the records wanted are those that are next to the older end of the stretch."""
        return self.stretch.newer_than is not None and self.stretch.older_than is None

    def takes(self, entry: Entry) -> bool:
        """Tell whether a record is wanted."""
        event = entry.event
        pairs = ((self.types, event.type), (self.actors, event.actor.id), (self.projects, event.project))
        return all(wanted is None or found in wanted for wanted, found in pairs)


def actor_of(request: web.Request) -> Actor:
    """Return who does what the request asks for."""
    return Actor("api_key", request[ADMIN_KEY_NAME])


def audit_route(gateway: Audited) -> web.RouteDef:
    """Return the page of a gateway."""

    async def answer(request: web.Request) -> web.StreamResponse:
        wanted = read_wanted(request.rel_url.raw_query_string)
        found, has_more = await _find(gateway, wanted)
        names = {each.id: each.name or each.id for each in gateway.configuration.projects}
        return json_answer(
            {
                "object": "list",
                "data": [_describe(entry, names) for entry in found],
                "first_id": found[0].id if found else None,
                "last_id": found[-1].id if found else None,
                "has_more": has_more,
            }
        )

    return web.get(PATH, answer, allow_head=False)


async def _find(gateway: Audited, wanted: Wanted) -> tuple[list[Entry], bool]:
    """Return a page, the latest first, and whether there are more such records beyond it."""
    found: list[Entry] = []
    has_more = False
    async for entry in gateway.audit_entries(wanted.stretch, oldest_first=wanted.is_page_before):
        if not wanted.takes(entry):
            continue
        if len(found) == wanted.count:
            has_more = True
            break
        found.append(entry)
    return (found[::-1] if wanted.is_page_before else found), has_more


def read_wanted(query: str) -> Wanted:
    """Read a raw query. Raises InvalidRequest, naming the parameter, and what it may be."""
    check_names(query, (*_ONCE, *_SEVERAL))
    once = read_parameters(query, _ONCE)
    several = [_values(query, name) for name in _SEVERAL]
    for name in _CURSORS:
        if name in once and not is_entry_id(once[name]):
            raise InvalidRequest(f"{name} must be the id of an audit record, as a page before gave it.", param=name)
    count = _whole_number(once, "limit")
    if count is not None and not 1 <= count <= _MAX_COUNT:
        raise InvalidRequest(f"limit must be from 1 to {_MAX_COUNT}.", param="limit")
    stretch = Stretch(once.get("before"), once.get("after"), *_seconds(once))
    return Wanted(stretch, count or _DEFAULT_COUNT, *several)


def _seconds(once: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return from which second on, and before which one."""
    above, since, below, until = (_whole_number(once, name) for name in _RANGE)
    lower = [second for second in (since, None if above is None else above + 1) if second is not None]
    upper = [second for second in (below, None if until is None else until + 1) if second is not None]
    return max(lower, default=None), min(upper, default=None)


def _whole_number(once: Mapping[str, str], name: str) -> int | None:
    if name not in once:
        return None
    if not _WHOLE_NUMBER.fullmatch(once[name]):
        raise InvalidRequest(f"{name} must be a whole number of at most twelve digits.", param=name)
    return int(once[name])


def _values(query: str, name: str) -> frozenset[str] | None:
    values = [value for given, value in parse_qsl(query, keep_blank_values=True, errors="replace") if given == name]
    return frozenset(values) or None


def _describe(entry: Entry, project_names: Mapping[str, str]) -> dict[str, Any]:
    event = entry.event
    return {
        "id": entry.id,
        "type": event.type,
        "effective_at": entry.at_milliseconds // _MILLISECONDS,
        "project": _describe_project(event.project, project_names),
        "actor": _describe_actor(event.actor),
        event.type: describe_details(event),
    }


def _describe_project(project: str, names: Mapping[str, str]) -> dict[str, str] | None:
    """Return the project of an event; None for one that is the whole organization's."""
    return {"id": project, "name": names.get(project, project)} if project else None


def _describe_actor(actor: Actor) -> dict[str, Any]:
    who = {"id": actor.id}
    return {"type": actor.type, actor.type: who if actor.type == "api_key" else {"user": who}}
