"""Counting anew what limits had counted, from usage records that are told from the last one back (SPEC §10).

What was taken from a tank is kept as a function of how full it was before: five numbers, however many requests took
from it, so that a file can be read from its end, as far as it matters. Knows of a record what limits were charged for
it; knows no file, no key and not which limits bind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from policies.charges import NOTHING, Charged
from policies.decision import Decision
from policies.limits import taken, taken_by_hit
from policies.simulation import RecordedRequest, charge_again, simulate
from policies.windows import MAX_LEVEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.limits import BoundLimit
    from policies.principals import Principal
    from policies.rulebook import Rulebook
    from policies.windows import Tank

_ONLY_IF_ADMITTED: Final = frozenset(("completed", "incomplete", "upstream_error", "orphaned"))
"""Outcomes that no request has which was not admitted."""


class BookedRequest(RecordedRequest, frozen=True, kw_only=True):
    """What of a line of the usage file is counted; members that are not named here are skipped."""

    outbox_id: Annotated[str, msgspec.Meta(pattern="^[0-9]{1,15}-[0-9]{1,20}$")]
    model: str | None = None

    @property
    def booked_milliseconds(self) -> int:
        """When it was booked: Unix milliseconds of the store's clock."""
        return int(self.outbox_id.partition("-")[0])

    @property
    def admitted_milliseconds(self) -> int:
        """When it was admitted, which tells its calendar windows, by the store's clock.

        That is its duration before it was booked; but one whose end waited in a spool was booked later, and then its
        worker's clock tells better.
        """
        ended = self.started_milliseconds if self.ended_milliseconds is None else self.ended_milliseconds
        return min(self.started_milliseconds, self.booked_milliseconds - max(0, ended - self.started_milliseconds))

    @property
    def was_admitted(self) -> bool:
        """Whether limits were charged for it: of any other request nothing was held."""
        return self.held_tokens > 0 or self.outcome in _ONLY_IF_ADMITTED


def amounts(
    record: BookedRequest, limits: Sequence[BoundLimit], principal: Principal, rulebook: Rulebook
) -> tuple[int, ...]:
    """Return what an admitted request took from each of some limits, as its settlement booked it."""
    if record.was_hit:
        full = _charge_in_full(record, limits, principal, rulebook)
        return tuple(taken_by_hit(bound, full) for bound in limits)
    charged = Charged(
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens,
        cost_microdollars=record.cost_microdollars,
        completions=record.completions,
    )
    return tuple(taken(bound, charged) for bound in limits)


def _charge_in_full(
    record: BookedRequest, limits: Sequence[BoundLimit], principal: Principal, rulebook: Rulebook
) -> Charged:
    """Return what a hit takes from limits that charge hits in full; how much nobody reported, policy tells as it is."""
    if not any(bound.limit.charge_hits == "full" for bound in limits):
        return NOTHING
    outcome = simulate(record, principal, rulebook).outcome if record.was_read else None
    if isinstance(outcome, Decision):
        return charge_again(record, outcome)
    return Charged(
        input_tokens=record.saved_input_tokens,
        output_tokens=record.saved_output_tokens,
        cost_microdollars=record.saved_microdollars,
        completions=record.prompts,
    )


@dataclass(frozen=True, slots=True)
class Recount:
    """What was taken from a tank between two moments (Unix milliseconds), by how full it was before.

    Of a level before the first taking, `shift` more is left after the last one, but `least` at least and `most` at
    most. Levels are in parts of the tank's `period`.
    """

    first: int
    last: int
    shift: int
    least: int
    most: int

    def after(self, level: int) -> int:
        """Return the level after the last taking, from the one before the first."""
        return min(max(level + self.shift, self.least), self.most)

    @property
    def taken(self) -> int:
        """The level after the last taking, of a tank that was empty before the first."""
        return self.after(0)


def take_before(later: Recount | None, tank: Tank, moment: int, spend: int) -> Recount:
    """Return a recount with one more taking, which was before all others; `later` is None if it is the first told.

    The arithmetic is that of `windows.take_late`. One that is told out of order counts as if it had been in order.
    """
    brim = tank.capacity * tank.period if tank.amount else MAX_LEVEL
    spent = spend * tank.period
    if later is None:
        return Recount(moment, moment, spent, min(spent, brim), brim)
    first = min(moment, later.first)
    refilled = (later.first - first) * tank.amount
    return Recount(
        first, later.last, later.shift + spent - refilled, later.after(0), later.after(max(0, brim - refilled))
    )
