"""Having limits forget what they count as used, with the audit record of it, in one trip.

The layout of KEYS and ARGV of `reset` is known here and in the head of the script. Decides nothing: whose limits they
are, and who may have them reset, is known by whoever asks.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from policies.windows import Level
from proxy.store.audit import CALL_LIFE_MILLISECONDS, KEPT_RECORDS, entry_id
from proxy.store.keys import Keys
from proxy.store.reservations import read_levels
from proxy.store.rooms import call_in_windows, rooms_of, window_arguments
from proxy.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import tzinfo

    from policies.limits import BoundLimit
    from policies.room import Room
    from proxy.store.audit import Event
    from proxy.store.connection import Argument, Reply, Store
    from proxy.store.reservations import Count

_RESET: Final = Script("reset")
_CALL_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Reset:
    """What a reset did: how limits stood before it and stand after it, in their order, and the audit record's id."""

    before: tuple[Room, ...]
    after: tuple[Room, ...]
    record: str


async def reset(store: Store, organization: str, zone: tzinfo, limits: Sequence[BoundLimit], event: Event) -> Reset:
    """Set to 0 what is used of limits, of which there is at least one; what is held stays held.

    `organization` and `zone` as for `rooms.look`; `event` goes into the audit tail, with what was used before. Both is
    done or neither, and once, however often the call has to be sent. Raises StoreUnavailable.
    """
    keys = Keys(organization)
    call_id = secrets.token_hex(_CALL_ID_BYTES)
    # The script adds what was used before, and closes the object.
    record = msgspec.json.encode(event).removesuffix(b',"before":[]}')

    async def call(counts: Sequence[Count]) -> Reply:
        called = [keys.audit, keys.audited(call_id), *(count.key for count in counts)]
        arguments: list[Argument] = [record, KEPT_RECORDS, CALL_LIFE_MILLISECONDS, *window_arguments(counts)]
        return await store.run(_RESET, called, arguments)

    counts, reply = await call_in_windows(store, organization, zone, limits, call)
    before = read_levels(reply[:-1])
    after = [Level(held=level.held, at=level.at) for level in before]
    return Reset(rooms_of(counts, before), rooms_of(counts, after), entry_id(reply[-1].decode()))
