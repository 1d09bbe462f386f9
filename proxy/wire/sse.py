"""Server-sent events cut at their boundaries (WHATWG grammar), every byte kept.

Feed bytes as they come, get whole events with their terminators; ask for the rest at the end. Knows the grammar of
lines and nothing of what stands in them, but for `data_of`.
"""

from __future__ import annotations

import re

MAX_EVENT_BYTES = 16 * 1024 * 1024

BOM = b"\xef\xbb\xbf"
"""A mark of the byte order, which is no part of a stream's first line."""

# A line ends in LF, CRLF or CR; an event ends in a line without content, so in two line ends in a row.
_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\n)")
_LINES = re.compile(rb"\r\n|\n|\r")
_LAST_END = re.compile(_END.pattern + rb"\Z")
_LONGEST_END = 4


class EventSplitter:
    """Cuts a stream of bytes into events; what it hands out, joined with `rest()`, is what it was fed.

    An event longer than `max_event_bytes` is handed out in parts as it comes. A CR that might be half of a CRLF is
    not waited for, so that streams with CR alone flow at once, unless the line before ended in CRLF; the LF that may
    follow then is handed out by itself, as it means nothing. `is_inside` tells that the last part handed out was not
    the end of its event.
    """

    __slots__ = ("_buffer", "_is_after_cr", "_max_event_bytes", "_searched", "_start", "is_inside")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._buffer = bytearray()
        self._max_event_bytes = max_event_bytes
        self._searched = 0
        self._start = 0
        self._is_after_cr = False
        self.is_inside = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that these bytes complete, terminators included."""
        if self._buffer or self._is_after_cr or data[-2:] != b"\n\n" or data[:1] == b"\n" or b"\r" in data:
            return self._feed_any(data)
        if data.index(b"\n\n") == len(data) - 2:
            return [data]
        if b"\n\n\n" in data:
            return self._feed_any(data)
        return [event + b"\n\n" for event in data[:-2].split(b"\n\n")]

    def rest(self) -> bytes:
        """Return what is left of an unfinished event, and forget it."""
        left = bytes(self._buffer)
        self._buffer.clear()
        self._searched = self._start = 0
        return left

    def last_whole(self) -> bytes:
        """Return the event that only waits for what may be half of its last CRLF, and forget it; nothing if none does.

        Asked for where nothing more comes: it is whole without.
        """
        return self.rest() if self._buffer[-3:] == b"\r\n\r" else b""

    def _feed_any(self, data: bytes) -> list[bytes]:
        buffer = self._buffer
        events: list[bytes] = []
        if self._is_after_cr and data:
            self._is_after_cr = False
            if data[:1] == b"\n":
                events.append(b"\n")
                data = data[1:]
        buffer += data
        begin = 0
        while (end := self._find_end()) is not None:
            events.append(bytes(buffer[begin:end]))
            begin = self._start = self._searched = end
            self.is_inside = False
        del buffer[:begin]
        self._start -= begin
        self._searched = max(self._start, len(buffer) - _LONGEST_END + 1)
        if events and not buffer:
            self._is_after_cr = events[-1][-1:] == b"\r"
        if len(buffer) > (_LONGEST_END if self.is_inside else self._max_event_bytes):
            events.append(self._overflow())
        return events

    def _find_end(self) -> int | None:
        """Return where the event at `_start` ends; None while it has not."""
        buffer = self._buffer
        found = None if self.is_inside else _LINE_END.match(buffer, self._start)
        found = found or _END.search(buffer, self._searched)
        if found is None:
            return None
        end = found.end()
        if end == len(buffer) and buffer[-3:] == b"\r\n\r":
            return None  # the other half of this CRLF is on its way
        return end

    def _overflow(self) -> bytes:
        """Hand out all but the last bytes, in which a terminator may have begun."""
        cut = len(self._buffer) - _LONGEST_END + 1
        part = bytes(self._buffer[:cut])
        del self._buffer[:cut]
        self._searched = self._start = 0
        self.is_inside = True
        return part


def ends_event(data: bytes) -> bool:
    """Tell whether what comes after these bytes of a stream begins an event of its own."""
    return data.endswith(b"\n\n") or _LAST_END.search(data, max(len(data) - _LONGEST_END, 0)) is not None


def data_of(event: bytes) -> bytes | None:
    """Return an event's data, its lines joined with LF; None for an event that has none, such as a comment."""
    if event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2 and b"\r" not in event:  # noqa: PLR2004
        return event[6:-2]
    parts: list[bytes] = []
    for line in _LINES.split(event.removeprefix(BOM)):
        name, colon, value = line.partition(b":")
        if name == b"data":
            parts.append(value.removeprefix(b" ") if colon else b"")
    return b"\n".join(parts) if parts else None
