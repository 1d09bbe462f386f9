"""How the limits that bind a principal stand, as JSON values: for explain, for `/v1/tidegate/me` and for `limits`.

Amounts are in the unit in which a limit is configured. How limits stand is read by whoever asks, and handed in; how it
is laid out for people is known by the commands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from policies.limits import find_standings, level_words, quota_words
from policies.room import ceil_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.limits import BoundLimit, Standing
    from policies.principals import Principal
    from policies.quantities import Quantity
    from policies.room import Room
    from policies.rulebook import Rulebook


@dataclass(frozen=True, slots=True)
class Standings:
    """A principal, the names under which it may ask for models, and the limits that bind it whatever it asks for."""

    principal: Principal
    model_names: tuple[str, ...]
    standings: tuple[Standing, ...]

    @property
    def limits(self) -> tuple[BoundLimit, ...]:
        """The limits alone, in order: what is looked at."""
        return tuple(standing.bound for standing in self.standings)


def standings_of(principal: Principal, rulebook: Rulebook, end_user: str | None = None) -> Standings:
    """Return what binds a principal; `end_user` is whom its requests would name."""
    limits, models = rulebook.policy_for(principal).limits, rulebook.usable_models(principal)
    standings = find_standings(limits, principal, models, end_user)
    return Standings(principal, tuple(rulebook.usable_names(principal)), standings)


def describe(standings: Standings, rooms: Sequence[Room]) -> dict[str, Any]:
    """Tell who somebody is, which models they may ask for, and how each of their limits stands.

    `rooms` are those of `standings.limits`. A limit's `models` are the own names of the models that it counts, of those
    that the principal may use.
    """
    return {
        "principal": describe_principal(standings.principal),
        "models": list(standings.model_names),
        "limits": [
            {**describe_limit(each.bound, standings.principal), "models": list(each.models), **describe_room(room)}
            for each, room in zip(standings.standings, rooms, strict=True)
        ],
    }


def describe_principal(principal: Principal) -> dict[str, Any]:
    """Tell who somebody is, without any secret."""
    return {
        "organization": principal.organization,
        "project": principal.project,
        "owner": principal.owner or None,
        "is_service_account": principal.is_service_account,
        "key": principal.key or None,
        "policies": [{"level": applied.level, "policy": applied.name} for applied in principal.policies],
    }


def describe_applied(principal: Principal, policy: str | None) -> dict[str, Any]:
    """Tell a policy with the levels at which it applies, outermost first."""
    return {"policy": policy, "levels": [applied.level for applied in principal.policies if applied.name == policy]}


def describe_limit(bound: BoundLimit, principal: Principal) -> dict[str, Any]:
    """Tell what a limit is, and whose."""
    limit = bound.limit
    per = "" if limit.per is None else f" per {limit.per}"
    return {
        "name": bound.name,
        **describe_applied(principal, bound.policy),
        "quota": quota_words(bound) + per,
        "of": limit.of,
        "limit": limit.limit,
        "per": limit.per,
        "burst": limit.burst,
        "mode": limit.mode,
        "on_exceed": limit.on_exceed,
        "max_wait_seconds": limit.wait_milliseconds / 1000 if bound.named.waits else None,
        "hold": limit.hold,
        "whose": level_words(bound),
        "scope": dict(zip(limit.by, bound.scope, strict=True)),
    }


def describe_room(room: Room) -> dict[str, Any]:
    """Tell how a limit stands."""
    return {
        "used": amount(room.bound, room.level.spent),
        "held": amount(room.bound, room.level.held),
        "left": amount(room.bound, room.left),
        "reset_seconds": ceil_seconds(room.reset_milliseconds),
    }


def amount(bound: BoundLimit, count: int) -> float:
    """Return a count in the unit in which the limit is configured: USD for micro-dollars."""
    return in_units(bound.named.quantity, count)


def in_units(quantity: Quantity, count: int) -> float:
    """Return a count of a quantity in the unit in which configurations write it."""
    scale = quantity.count(1)
    return count if scale == 1 else count / scale
