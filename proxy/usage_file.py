"""The file of usage records as its readers read it: each request once, however its lines are broken.

Knows a torn last line and a request that was booked twice; which members of a record matter, and from which end they
are read, is its reader's business.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final, Generic, Protocol, TypeVar

import msgspec

from proxy.records import ORPHANED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_BLOCK_BYTES: Final = 1 << 20


class Booked(Protocol):
    """What tells the records of one request apart."""

    @property
    def request_id(self) -> str:
        """The gateway's own id."""

    @property
    def outcome(self) -> str:
        """How it ended."""


LineT = TypeVar("LineT", bound=Booked)


@dataclass(frozen=True, slots=True)
class Reading(Generic[LineT]):
    """The lines of a file, each request once, and how many of its lines could not be read."""

    lines: tuple[LineT, ...]
    unreadable: int


def unreadable_words(reading: Reading[LineT]) -> str:
    """Say how many lines could not be read."""
    return f"{reading.unreadable} unreadable line{'s' if reading.unreadable > 1 else ''} left out"


def read_lines(raw: Iterable[bytes], kind: type[LineT]) -> Reading[LineT]:
    """Read the lines of a usage file, each request once: of several records the last, but the truth before an orphan's.

    `kind` is what of a record is read. A last line without its end is torn, or still being written: it is not read.
    """
    decode = msgspec.json.Decoder(kind).decode
    by_request: dict[str, LineT] = {}
    unreadable = 0
    for text in raw:
        try:
            line = decode(text) if text.endswith(b"\n") else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            line = None
        if line is None:
            unreadable += 1
            continue
        if line.outcome != ORPHANED or line.request_id not in by_request:
            by_request[line.request_id] = line
    return Reading(tuple(by_request.values()), unreadable)


def lines_from_end(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file that may grow meanwhile, without their ends, the last that is whole first.

    Takes the memory of a block and of the longest line.
    """
    position = file.seek(0, os.SEEK_END)
    head, is_whole = b"", False
    while position:
        size = min(position, _BLOCK_BYTES)
        position = file.seek(position - size)
        head, *lines = (file.read(size) + head).split(b"\n")
        while lines:
            line = lines.pop()
            if is_whole:
                yield line
            is_whole = True
    if is_whole:
        yield head
