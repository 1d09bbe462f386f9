"""Event streams as the WHATWG's document reads them, slowly and a line at a time.

Written without a look at the gateway's splitter, which is tested against it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")


@dataclass
class Reading:
    """What a client has of a stream: the data of each event, and where in the bytes a blank line ended."""

    datas: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


def read(stream: bytes) -> Reading:
    """Read a stream up to where it stands, from its beginning."""
    reading = Reading()
    position = len(BOM) if stream.startswith(BOM) else 0
    data: list[bytes] = []
    while found := _LINE_END.search(stream, position):
        line = stream[position : found.start()]
        position = found.end()
        if line:
            _take_field(line, data)
        else:
            reading.ends.append(position)
            if data:
                reading.datas.append(b"\n".join(data))
            data = []
    return reading


def _take_field(line: bytes, data: list[bytes]) -> None:
    name, colon, value = line.partition(b":")
    if colon and not name:
        return
    if name == b"data":
        data.append(value[1:] if value.startswith(b" ") else value)


def promised(stream: bytes) -> int:
    """Return how many bytes of a stream that has come so far a gateway owes its client: up to the last whole event.

    A line end of CR counts as it comes, and the LF that may follow then goes by itself; but where the line before
    ended in CRLF it is half of another one.
    """
    ends = read(stream).ends
    if ends and ends[-1] == len(stream) and stream.endswith(b"\r\n\r"):
        ends.pop()
    return ends[-1] if ends else 0
