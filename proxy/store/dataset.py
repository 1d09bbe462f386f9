"""The set of data that a store holds: since when it has it, and adding to it what it had counted before it lost others.

The layout of KEYS and ARGV of `begin` and `rebuild` is known here and in the heads of the scripts. Knows no record and
no file, and does not know what was counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from proxy.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.recounts import Recount
    from proxy.store.connection import Argument, Store
    from proxy.store.keys import Keys
    from proxy.store.reservations import Count

PATIENCE_SECONDS: Final = 5.0
"""Bound for one call, which no request waits for."""

_LIFE_MILLISECONDS: Final = 60 * 86_400_000
"""How long it is known since when the store has its data, though no gateway runs; longer than any calendar window."""
_NOBODY: Final = "-"
_ADDED: Final = b"added"

_BEGIN: Final = Script("begin")
_REBUILD: Final = Script("rebuild")


class DataSet(NamedTuple):
    """The data of one store: since when it has them (Unix milliseconds, by its clock), and what time it is there.

    `since` is 0 where nobody knows. `is_complete` if all is added to them that the contributor has.
    """

    since: int
    now: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Addition:
    """What is added to one count."""

    count: Count
    recount: Recount


async def begin(store: Store, keys: Keys, contributor: str = _NOBODY) -> DataSet:
    """Tell since when the store has its data, and note it for new ones. Raises StoreUnavailable.

    Has to be called before any record is removed from the outbox. A contributor is named by letters and digits.
    """
    since, now, added_to = await store.run(
        _BEGIN, [keys.data, keys.outbox], [_LIFE_MILLISECONDS, contributor], timeout_seconds=PATIENCE_SECONDS
    )
    return DataSet(since, now, added_to is not None and int(added_to) == since)


async def add(  # noqa: PLR0913  what is added, by whom, to which data
    store: Store,
    keys: Keys,
    additions: Sequence[Addition],
    *,
    contributor: str,
    since: int,
    grace_milliseconds: int,
    is_last: bool,
) -> bool:
    """Add to counts what a contributor has, to each once, and say whether all has been added if this is the last.

    False if the store has other data by now, to which nothing is added. Raises StoreUnavailable.
    """
    arguments: list[Argument] = [contributor, since, grace_milliseconds, "last" if is_last else "more"]
    for each in additions:
        tank, span = each.count.bound.tank, each.count.span
        arguments += (tank.capacity, tank.amount, tank.period, each.recount.taken, each.recount.last)
        arguments.append(0 if span is None else span.end)
    touched = [keys.data, *(each.count.key for each in additions)]
    happened, _now = await store.run(_REBUILD, touched, arguments, timeout_seconds=PATIENCE_SECONDS)
    return bool(happened == _ADDED)
