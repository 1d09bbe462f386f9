"""What a usage file says was counted before a store had the data that it has now (SPEC §10).

The file is read from its end, as far back as the longest window of a limit reaches, in bounded memory but for one sum
for each count. Each request counts once, for whomever its record says, by the limits that are configured now; levels of
buckets are as if all that a request took had been taken when it ended. How records add up is known by
`policies/recounts`; this file writes nothing, and knows no store.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from policies.catalog import Deployment, Model, ModelSettings, Price
from policies.charges import WorstCase
from policies.limits import NamedLimit, bind_limits
from policies.recounts import BookedRequest, amounts, take_before
from policies.windows import Calendar, calendar_span
from proxy.records import ORPHANED
from proxy.simulation import Principals
from proxy.store.dataset import Addition
from proxy.store.keys import Keys
from proxy.store.reservations import Count, Ending, Settlement, count_of, may_be_forgotten, share
from proxy.usage_file import lines_from_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import tzinfo
    from pathlib import Path

    from policies.principals import Principal
    from policies.windows import Span, Tank, Window
    from proxy.config import Configuration
    from proxy.store.dataset import DataSet

IN_DOUBT_RECORDS: Final = 4_096
"""So many of the last records are booked by request, as a spool may hold their settlements still."""
REMEMBERED_REQUESTS: Final = 100_000
"""A record is known to be replaced by a later one of its request while no more requests were booked in between."""
MOST_BINDINGS: Final = 50_000
"""For so many senders it is remembered which limits bind them."""

_NOTHING: Final = WorstCase(0, 0, 0)
_PRICED: Final = ModelSettings(deployments=(Deployment(upstream=""),), price=Price(input=0, output=0))
"""Stands in for the models of records, of which only the name is asked: what they cost stands in the records."""

_decode: Final = msgspec.json.Decoder(BookedRequest).decode


@dataclass(slots=True)
class Recounted:
    """What a usage file says was counted before a store had its data.

    `records` are the requests that count in one of the `limits`' windows still. `in_doubt` are the last of them, as far
    as calendar windows go: to be booked one by one, and not where a spool has told them; `additions` is all the rest.
    """

    records: int = 0
    limits: int = 0
    unreadable: int = 0
    in_doubt: list[Settlement] = field(default_factory=list)
    additions: list[Addition] = field(default_factory=list)


def recount(
    path: Path, configuration: Configuration, data: DataSet, is_given_up: Callable[[], bool] = lambda: False
) -> Recounted:
    """Read a usage file from its end and count what was booked before the store had its data. Raises OSError.

    Each request counts once, as its last record says. Who sent it is as recorded; policies are as configured now.
    Blocks, perhaps for minutes; `is_given_up` is asked at each line, and then the rest of them does not count.
    """
    counting = _Counting(configuration, data)
    with path.open("rb") as file:
        for line in lines_from_end(file):
            if is_given_up() or not counting.count(line):
                break
    return counting.result()


class _Binding(NamedTuple):
    """Whoever sent a request, and where it counts."""

    principal: Principal
    counts: tuple[Count, ...]


class _Counting:
    """Counts the records of one configuration's limits, told from the last one back."""

    def __init__(self, configuration: Configuration, data: DataSet) -> None:
        organization = configuration.organization
        self._organization, self._zone = organization.id, organization.zone
        self._since, self._now = data.since, data.now
        self._rulebook = configuration.rulebook()
        self._principals = Principals(configuration)
        self._keys = Keys(organization.id)
        self._oldest = min(_beginnings(configuration, self._now, self._zone), default=self._now)
        self._bindings: dict[tuple[object, ...], _Binding] = {}
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._recounts: dict[str, Addition] = {}
        self._found = Recounted()

    def count(self, line: bytes) -> bool:
        """Count a line; False if it, and so all that are before it, are too old to count in any window."""
        try:
            record = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._found.unreadable += 1
            return True
        booked = record.booked_milliseconds
        if min(booked, self._since) < self._oldest:
            return False
        if record.was_admitted and self._is_new(record.request_id) and booked < self._since:
            self._take(record, booked)
        return True

    def result(self) -> Recounted:
        """Return what was found."""
        self._found.in_doubt.reverse()
        self._found.additions = list(self._recounts.values())
        self._found.limits = len(
            {share.key for each in self._found.in_doubt for share in each.shares}.union(self._recounts)
        )
        return self._found

    def _is_new(self, request_id: str) -> bool:
        if request_id in self._seen:
            return False
        self._seen[request_id] = None
        if len(self._seen) > REMEMBERED_REQUESTS:
            self._seen.popitem(last=False)
        return True

    def _take(self, record: BookedRequest, booked: int) -> None:
        binding, admitted = self._binding_of(record), record.admitted_milliseconds
        bound = [count.bound for count in binding.counts]
        pairs = zip(binding.counts, amounts(record, bound, binding.principal, self._rulebook), strict=True)
        taken = [(count, amount) for count, amount in pairs if amount and self._is_current(count, booked, admitted)]
        if not taken:
            return
        self._found.records += 1
        if len(self._found.in_doubt) < IN_DOUBT_RECORDS and self._book_by_request(record, taken):
            taken = [each for each in taken if each[0].span is None]
        for count, amount in taken:
            self._add(count, booked, amount)

    def _book_by_request(self, record: BookedRequest, taken: Sequence[tuple[Count, int]]) -> bool:
        """Note an end that a spool may hold still, as perhaps no answer came when it was booked; False for another.

        What an orphan took at worst is not such an end: its truth may be told, and shall be booked then.
        """
        settlement = _settlement(record, [each for each in taken if each[0].span is not None])
        if record.outcome == ORPHANED or may_be_forgotten(settlement, self._now - record.booked_milliseconds):
            return False
        self._found.in_doubt.append(settlement)
        return True

    def _add(self, count: Count, moment: int, amount: int) -> None:
        known = self._recounts.get(count.key)
        later = None if known is None else known.recount
        self._recounts[count.key] = Addition(count, take_before(later, count.bound.tank, moment, amount))

    def _is_current(self, count: Count, booked: int, admitted: int) -> bool:
        """Tell whether what a request took from a count still counts there."""
        if count.span is not None:
            return count.span.holds(admitted)
        return booked >= self._now - _refill_milliseconds(count.bound.tank)

    def _binding_of(self, record: BookedRequest) -> _Binding:
        who = (record.organization, record.project, record.owner, record.is_service_account, record.key)
        sender = (*who, record.model, record.end_user)
        binding = self._bindings.get(sender)
        if binding is None:
            if len(self._bindings) == MOST_BINDINGS:
                self._bindings.clear()
            binding = self._bindings[sender] = self._bind(record)
        return binding

    def _bind(self, record: BookedRequest) -> _Binding:
        principal = self._principals.of(record)
        limits = self._rulebook.policy_for(principal).limits
        bound = bind_limits(limits, principal, Model(record.model or "", _PRICED), record.end_user, _NOTHING)
        counts = (count_of(each, self._keys, self._span) for each in bound if _is_kept(each.window, each.tank))
        return _Binding(principal, tuple(counts) if record.organization in {"", self._organization} else ())

    def _span(self, unit: Calendar) -> Span:
        return calendar_span(unit, self._now, self._zone)


def _settlement(record: BookedRequest, taken: Sequence[tuple[Count, int]]) -> Settlement:
    shares = tuple(share(count, amount) for count, amount in taken)
    return Settlement(record.request_id, Ending.SETTLE, "", shares, record.booked_milliseconds)


def _is_kept(window: Window, tank: Tank) -> bool:
    """Tell whether what was taken is still known by a window after the request: not of what is given back."""
    return isinstance(window, Calendar) or tank.amount > 0


def _beginnings(configuration: Configuration, now: int, zone: tzinfo) -> Iterator[int]:
    """Yield for each limit since when it counts what was taken."""
    for name, policy in configuration.policies.items():
        for limit in policy.limits:
            named = NamedLimit(name, limit)
            if isinstance(named.window, Calendar):
                yield calendar_span(named.window, now, zone).start
            elif _is_kept(named.window, named.tank):
                yield now - _refill_milliseconds(named.tank)


def _refill_milliseconds(tank: Tank) -> int:
    return -(-tank.capacity * tank.period // tank.amount)
