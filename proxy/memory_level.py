"""The cache's level in a worker's own memory, in front of the store: what was used last stays, bounded by bytes.

Holds entries as values, their bodies not compressed, and beside an answer its other form once somebody asked for that.
Knows no clock and no store: whether an entry is still good, and when all have to go, is for its caller to tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cachetools import LRUCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.store.entries import StoredAnswer

ENTRY_OVERHEAD_BYTES: Final = 1536
"""Counted for each form of an entry beside its body: key, names, and what Python needs to hold them (1,364 bytes)."""
LARGEST_SHARE: Final = 8
"""An entry that takes more than one part in so many of the whole is not kept: it would drive out too many."""


@dataclass(slots=True, eq=False)
class Kept:
    """An entry as the memory level holds it; whoever was given one may go on using it when it is kept no longer.

    `converted` is the same answer in its other form, which `was_converted` tells from one that has none, or that nobody
    asked for yet.
    """

    answer: StoredAnswer
    converted: StoredAnswer | None = None
    was_converted: bool = False

    @property
    def size_bytes(self) -> int:
        """What it counts for."""
        return _size(self.answer) + (0 if self.converted is None else _size(self.converted))


class MemoryLevel:
    """Entries by their key, in at most `max_bytes`; the least recently used goes first. 0 bytes keep nothing."""

    def __init__(self, max_bytes: int) -> None:
        """Begin empty."""
        self._largest_bytes = max_bytes // LARGEST_SHARE
        self._entries: LRUCache[str, Kept] = LRUCache(max_bytes, getsizeof=lambda kept: kept.size_bytes)

    def adopt(self, max_bytes: int) -> None:
        """Keep so much from now on; the least recently used entries go first."""
        before = self._entries
        if max_bytes == before.maxsize:
            return
        self._largest_bytes = max_bytes // LARGEST_SHARE
        self._entries = LRUCache(max_bytes, getsizeof=lambda kept: kept.size_bytes)
        while before:
            key, kept = before.popitem()
            if kept.size_bytes <= self._largest_bytes:
                self._entries[key] = kept

    @property
    def size_bytes(self) -> int:
        """What all entries count for."""
        return int(self._entries.currsize)

    def __len__(self) -> int:
        """Return how many entries are kept."""
        return len(self._entries)

    def get(self, key: str) -> Kept | None:
        """Return an entry, which is the most recently used then."""
        return self._entries.get(key)

    def put(self, key: str, answer: StoredAnswer) -> Kept:
        """Keep an answer in place of what the key has; of one that is too large, the key has none."""
        kept = Kept(answer)
        if kept.size_bytes <= self._largest_bytes:
            self._entries[key] = kept
        else:
            self.drop(key)
        return kept

    def find_other_form(
        self, key: str, kept: Kept, convert: Callable[[StoredAnswer], StoredAnswer | None]
    ) -> StoredAnswer | None:
        """Return an entry's answer in its other form, None if it has none.

        It is converted once, as long as it is kept, unless both forms together are too large to be.
        """
        if kept.was_converted:
            return kept.converted
        converted = convert(kept.answer)
        if converted is None:
            kept.was_converted = True
        elif self.get(key) is kept and kept.size_bytes + _size(converted) <= self._largest_bytes:
            kept.converted, kept.was_converted = converted, True
            self._entries[key] = kept  # counted anew
        return converted

    def drop(self, key: str) -> None:
        """Forget an entry, if there is one."""
        self._entries.pop(key, None)

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()


def _size(form: StoredAnswer) -> int:
    return ENTRY_OVERHEAD_BYTES + len(form.body)
