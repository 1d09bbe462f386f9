"""Purging cached answers, with the audit record of it, in one trip.

Nothing is deleted: the purge raises the epoch of the cache, and whoever finds an answer that was fetched in an earlier
epoch, and is concerned, takes it for stale (`cache_state`). The layout of KEYS and ARGV of `purge` is known here and in
the head of the script. Decides nothing: who may purge what is known by whoever asks.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import msgspec

from proxy.store.audit import CALL_LIFE_MILLISECONDS, KEPT_RECORDS, entry_id
from proxy.store.keys import Keys
from proxy.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.store.audit import Event
    from proxy.store.connection import Argument, Store

Kind: TypeAlias = Literal["all", "model", "project", "key", "entry"]

KEPT_PURGES: Final = 1_000
"""So many narrower purges are told apart. Of more, the oldest become one of all that is older than they are: an answer
may live for as long as it likes, so no purge is ever forgotten."""

_PURGE: Final = Script("purge")
_CALL_ID_BYTES: Final = 16


class Scope(NamedTuple):
    """What is purged: all, or what was fetched for a model, by a project or an API key, or under one cache key."""

    kind: Kind
    name: str = ""

    @property
    def field(self) -> str:
        """Where the epoch of the purge stands in the hash."""
        return "purged:all" if self.kind == "all" else f"purged:{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge did: answers whose `generation` is below this one are stale; and the audit record's id."""

    generation: int
    record: str


async def purge(store: Store, organization: str, scopes: Sequence[Scope], event: Event) -> Purged:
    """Purge what any of some scopes holds, of which there is at least one, and leave `event` in the audit tail.

    Both is done or neither, and once, however often the call has to be sent. Raises StoreUnavailable.
    """
    keys = Keys(organization)
    called = [keys.cache, keys.audit, keys.audited(secrets.token_hex(_CALL_ID_BYTES))]
    arguments: list[Argument] = [msgspec.json.encode(event), KEPT_RECORDS, CALL_LIFE_MILLISECONDS, KEPT_PURGES]
    arguments += [scope.field for scope in scopes]
    generation, record = await store.run(_PURGE, called, arguments)
    return Purged(generation, entry_id(record.decode()))
