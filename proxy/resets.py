"""Resetting limits as an operator asks for it: which ones, what the audit record says, and what is told of it.

The store does it, in `proxy/store/resets`. Knows no command and no page: whose limits they are comes from
`named_principal` and `standings`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from policies.quantities import QUANTITIES
from proxy.config_references import suggest
from proxy.named_principal import CannotAnswer, UnknownName
from proxy.standings import describe_limit, describe_principal, describe_room, in_units
from proxy.store.audit import Event

if TYPE_CHECKING:
    from collections.abc import Collection

    from proxy.standings import Standings
    from proxy.store.audit import Actor
    from proxy.store.resets import Reset

EVENT_TYPE: Final = "limits.reset"
MAX_REASON_CHARACTERS: Final = 1_000

_LIMITS: Final = "limits"


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be reset, of which there is something, for which end user of its requests, and why."""

    standings: Standings
    end_user: str | None
    reason: str | None


def order_reset(
    standings: Standings, names: Collection[str] | None, *, end_user: str | None, reason: str | None
) -> Order:
    """Return the order to reset those limits of a principal that have one of the names; for None, all of them.

    `standings` are those of the end user. Raises CannotAnswer, and UnknownName for a name that none of them has.
    """
    if names is not None and not names:
        raise CannotAnswer(_LIMITS, "names none; leave it out to reset all that bind them")
    check_reason(reason)
    found = standings.standings
    known = {each.bound.name for each in found}
    for name in names or ():
        if name not in known:
            raise UnknownName(_LIMITS, f"no limit of this name binds them; {suggest(name, known)}")
    if not found:
        raise UnknownName(_LIMITS, "no limit binds them: there is nothing to reset")
    chosen = tuple(each for each in found if names is None or each.bound.name in names)
    return Order(replace(standings, standings=chosen), end_user, reason)


def check_reason(reason: str | None) -> None:
    """Raise CannotAnswer where a reason is too long for an audit record."""
    if reason is not None and len(reason) > MAX_REASON_CHARACTERS:
        raise CannotAnswer("reason", f"must be at most {MAX_REASON_CHARACTERS:,} characters long")


def event_of(order: Order, actor: Actor) -> Event:
    """Return what the audit record says; how much was used is added by the store."""
    principal = order.standings.principal
    details = {
        "principal": describe_principal(principal),
        "end_user": order.end_user,
        "limits": [describe_limit(bound, principal) for bound in order.standings.limits],
        "reason": order.reason,
    }
    return Event(EVENT_TYPE, actor, principal.project, details)


def describe_details(event: Event) -> dict[str, Any]:
    """Tell what an event was about; of limits that were reset, how much was used and held before."""
    if event.type != EVENT_TYPE:
        return event.details
    limits = [
        {**limit, "used": in_units(QUANTITIES[limit["of"]], used), "held": in_units(QUANTITIES[limit["of"]], held)}
        for limit, (used, held) in zip(event.details["limits"], event.before, strict=True)
    ]
    return {**event.details, "limits": limits}


def describe_reset(order: Order, done: Reset) -> dict[str, Any]:
    """Tell whose limits were reset and why, the id of the audit record, and how each limit stood and stands."""
    principal = order.standings.principal
    chosen = zip(order.standings.standings, done.before, done.after, strict=True)
    return {
        "principal": describe_principal(principal),
        "end_user": order.end_user,
        "reason": order.reason,
        "audit_log": done.record,
        "limits": [
            {
                **describe_limit(each.bound, principal),
                "models": list(each.models),
                "before": describe_room(before),
                "after": describe_room(after),
            }
            for each, before, after in chosen
        ],
    }
