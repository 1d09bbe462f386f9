"""The file of usage records as its readers read it: each request once, however its lines are broken.

Knows a torn last line and a request that was booked twice; which members of a record matter is its reader's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from proxy.records import ORPHANED

if TYPE_CHECKING:
    from collections.abc import Iterable


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
    """The lines of a file, each request once, and how many lines in its midst could not be read."""

    lines: tuple[LineT, ...]
    unreadable: int


def read_lines(raw: Iterable[bytes], kind: type[LineT]) -> Reading[LineT]:
    """Read the lines of a usage file, each request once: of several records the last, but the truth before an orphan's.

    `kind` is what of a record is read. A last line without its end is still being written and is left out.
    """
    decode = msgspec.json.Decoder(kind).decode
    by_request: dict[str, LineT] = {}
    unreadable = 0
    for text in raw:
        if not text.endswith(b"\n"):
            break
        try:
            line = decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            unreadable += 1
            continue
        if line.outcome != ORPHANED or line.request_id not in by_request:
            by_request[line.request_id] = line
    return Reading(tuple(by_request.values()), unreadable)
