"""`GET /v1/tidegate/me`: who one is, which models one may use, and how one's limits stand (SPEC §2).

Knows the query's one parameter; what is told is made by `standings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from proxy.identify import identify
from proxy.queries import read_parameters
from proxy.standings import describe, standings_of
from proxy.store.rooms import look

if TYPE_CHECKING:
    from proxy.exchange import Exchange, Request
    from proxy.handler import Snapshot

_END_USER = "user"
"""Named as in a request's body."""


async def me(request: Request, exchange: Exchange, snapshot: Snapshot) -> bytes:
    """Answer the owner of a key; takes nothing from any limit. Raises Rejection or StoreUnavailable."""
    principal = exchange.principal = identify(request, snapshot.principals)
    end_user = read_parameters(request.query, (_END_USER,)).get(_END_USER)
    standings = standings_of(principal, snapshot.rulebook, end_user)
    organization = snapshot.configuration.organization
    rooms = await look(snapshot.admissions.state, organization.id, organization.zone, standings.limits)
    return msgspec.json.encode(describe(standings, rooms))
