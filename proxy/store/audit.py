"""The audit tail: what administrators did, as records in a stream of the store, and how they are read.

Knows the stream's entries (one field, `record`, a JSON object) and their order. A record's id is the entry's, so that
it tells when the record was made and where it stands. What is in a record is written by whoever did something:
`resets`; who may read it, and in what shape, is known by the control plane.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from proxy.store.connection import Reply, Store

KEPT_RECORDS: Final = 100_000
"""About so many records are kept, the latest."""
CALL_LIFE_MILLISECONDS: Final = 600_000
"""How long it is known that a call was made, so that it does not leave two records."""

_ID_PREFIX: Final = "audit_log-"
_ID: Final = re.compile(_ID_PREFIX + r"([0-9]{1,15}-[0-9]{1,15})", re.ASCII)
_BATCH: Final = 200
_MILLISECONDS: Final = 1_000


class Actor(msgspec.Struct, frozen=True):
    """Who did something: `api_key` and the admin key's name, or `session` and the operating system's user."""

    type: Literal["api_key", "session"]
    id: str


class Event(msgspec.Struct, frozen=True):
    """What was done, as it is kept: the type of event, who did it, in which project, and more, by type of event.

    `project` is empty where it concerns more than one.
    """

    type: str
    actor: Actor
    project: str
    details: dict[str, Any]
    before: tuple[tuple[int, int], ...] = ()
    """Used and held of each limit that was reset, in the unit in which it counts."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An event with the id of its record, and when it was, in Unix milliseconds of the store's clock."""

    id: str
    at_milliseconds: int
    event: Event


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the tail: records after `newer_than` and before `older_than`, which are ids; absent: no bound.

    `since_seconds` and `until_seconds` are Unix seconds; the last one is not included.
    """

    newer_than: str | None = None
    older_than: str | None = None
    since_seconds: int | None = None
    until_seconds: int | None = None


def entry_id(stream_id: str) -> str:
    """Return the id of the record at a place in the stream."""
    return _ID_PREFIX + stream_id


def is_entry_id(text: str) -> bool:
    """Tell whether a text may be the id of a record."""
    return _ID.fullmatch(text) is not None


async def read_entries(store: Store, key: str, stretch: Stretch, *, oldest_first: bool) -> AsyncIterator[Entry]:
    """Yield the records of a stretch, the latest first unless told otherwise. Raises StoreUnavailable.

    Reads as it is asked for more. Ids are those that `is_entry_id` takes.
    """
    low, high = _low(stretch), _high(stretch)
    while True:
        if oldest_first:
            batch = await store.command("XRANGE", key, low, high, "COUNT", _BATCH)
        else:
            batch = await store.command("XREVRANGE", key, high, low, "COUNT", _BATCH)
        for each in batch:
            yield _read(each)
        if len(batch) < _BATCH:
            return
        last = "(" + batch[-1][0].decode()
        low, high = (last, high) if oldest_first else (low, last)


def _low(stretch: Stretch) -> str:
    """Return the lower bound as the store takes it: the higher one of those that are given."""
    bounds = [(0, 0, "-")]
    if stretch.since_seconds is not None:
        milliseconds = max(0, stretch.since_seconds) * _MILLISECONDS
        bounds.append((milliseconds, 0, f"{milliseconds}-0"))
    if stretch.newer_than is not None:
        milliseconds, number = _place(stretch.newer_than)
        bounds.append((milliseconds, number + 1, f"({milliseconds}-{number}"))
    return max(bounds)[-1]


def _high(stretch: Stretch) -> str:
    """Return the upper bound as the store takes it: the lower one of those that are given."""
    bounds: list[tuple[float, float, str]] = [(float("inf"), 0, "+")]
    if stretch.until_seconds is not None:
        milliseconds = max(0, stretch.until_seconds) * _MILLISECONDS
        bounds.append((milliseconds, 0, _just_before(milliseconds, 0)))
    if stretch.older_than is not None:
        milliseconds, number = _place(stretch.older_than)
        bounds.append((milliseconds, number, _just_before(milliseconds, number)))
    return min(bounds)[-1]


def _just_before(milliseconds: int, number: int) -> str:
    """Return the upper bound that leaves a place out; there is nothing before the first one, nor at it."""
    return f"({milliseconds}-{number}" if milliseconds or number else "0-0"


def _place(text: str) -> tuple[int, int]:
    milliseconds, _, number = text.removeprefix(_ID_PREFIX).partition("-")
    return int(milliseconds), int(number)


def _read(entry: Reply) -> Entry:
    stream_id, fields = entry[0].decode(), entry[1]
    return Entry(entry_id(stream_id), _place(stream_id)[0], _decode(fields[1]))


_decode: Final = msgspec.json.Decoder(Event).decode
