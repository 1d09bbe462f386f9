"""The model's name in answers, replaced: in a JSON object, also one that comes in pieces, and in a stream's events.

Every other byte stays (SPEC §8). The name is the one that an answer's object gives itself; what is called so within
other objects, or stands in a text, is left alone. Knows no socket, nor why a name is replaced.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import msgspec

from policies.requests.asked import Endpoint
from proxy.wire.sse import BOM, EventSplitter, data_of, ends_event

if TYPE_CHECKING:
    from collections.abc import Iterator

_MODEL: Final = b"model"
_RESPONSE: Final = b"response"
_QUOTED: Final = b'"model"'
_DATA: Final = b"data:"
_MEMBER: Final = re.compile(rb'"model"[ \t\r\n]*:[ \t\r\n]*("[^"\\]*+(?:\\.[^"\\]*+)*+")')
_LINE: Final = re.compile(rb"([^\r\n]*)(\r\n|\r|\n|\Z)")
_TOKEN: Final = re.compile(rb'["{}\[\]]')
_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_BETWEEN_BRACKETS: Final = re.compile(rb'(?:[^"{}\[\]]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
_INSIDE: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_QUOTE: Final = ord('"')
_ENDLESS: Final = 2**63 - 1


class _Named(msgspec.Struct):
    model: str | None = None
    response: msgspec.Raw | None = None


_NAMED: Final = msgspec.json.Decoder(_Named)


def rename(json: bytes, name: str, endpoint: Endpoint) -> bytes:
    """Return an answer's whole object under another name; as it is where it has none, or is no object."""
    return _renamed(json, json, _spelled(name), endpoint) or NameReplacer(name, endpoint).feed(json)


def _spelled(name: str) -> bytes:
    return msgspec.json.encode(name)


def _renamed(data: bytes, json: bytes, name: bytes, endpoint: Endpoint) -> bytes | None:
    """Replace the name in `data`, which hold this object, where it takes one look; None where it takes more.

    In JSON a quote within a text is escaped, so `"model"` is a name or a text of its own: where it stands once, and the
    object is known to have such a member, it is that.
    """
    first = data.find(_QUOTED)
    if first < 0:
        return data
    if data.find(_QUOTED, first + 1) >= 0:
        return None
    try:
        named = _NAMED.decode(json)
        if named.model is None and named.response is not None and endpoint is Endpoint.RESPONSES:
            named = _NAMED.decode(named.response)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if named.model is None:
        return data
    found = _MEMBER.match(data, first)
    return None if found is None else b"".join((data[: found.start(1)], name, data[found.end(1) :]))


class _State(Enum):
    OUTSIDE = auto()
    """Between strings."""
    INSIDE = auto()
    """Within a string that is the name of a member, or any other."""
    NAMED = auto()
    """Behind a string that says `model` or `response`, and is a member's name if a colon follows."""
    VALUED = auto()
    """Behind that colon."""
    REPLACED = auto()
    """Within the string that is replaced."""
    OVER = auto()
    """All that follows stays."""


class NameReplacer:
    """Replaces the name in one object that is fed in pieces, cut anywhere; of a member given twice the first counts."""

    __slots__ = ("_depth", "_is_escaped", "_is_response", "_name", "_nests", "_state", "_text")

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        """Begin before the object."""
        self._name = _spelled(name)
        self._nests = endpoint is Endpoint.RESPONSES
        self._state = _State.OUTSIDE
        self._depth = 0
        self._is_response = False  # the object at depth 2 is the response that an event tells of
        self._is_escaped = False
        self._text = b""

    def feed(self, json: bytes) -> bytes:
        """Return these bytes, less those of the name, and with the new one where it begins."""
        kept: list[bytes] = []
        begin = at = 0
        while at < len(json) and self._state is not _State.OVER:
            was_replaced = self._state is _State.REPLACED
            at = self._step(json, at)
            if was_replaced:
                begin = at
            elif self._state is _State.REPLACED:
                kept += (json[begin : at - 1], self._name)
                begin = at
        return b"".join((*kept, json[begin:])) if kept or begin else json

    def _step(self, json: bytes, at: int) -> int:
        """Go on from there to where something changes, and return where that is."""
        match self._state:
            case _State.OUTSIDE:
                return self._find_token(json, at)
            case _State.INSIDE | _State.REPLACED:
                return self._pass_string(json, at)
            case _:
                return self._find_value(json, at)

    def _find_token(self, json: bytes, at: int) -> int:
        if self._depth > 1 + self._is_response:
            at = _end(_BETWEEN_BRACKETS, json, at)  # whole strings here are of no interest
        found = _TOKEN.search(json, at)
        if found is None:
            return len(json)
        token = found[0]
        if token == b'"':
            self._state, self._text = _State.INSIDE, b""
        elif token in b"{[":
            self._depth += 1
        else:
            self._depth -= 1
            self._is_response = self._is_response and self._depth > 1
        return found.end()

    def _pass_string(self, json: bytes, at: int) -> int:
        begin = at
        at += self._is_escaped
        end = _end(_INSIDE, json, at)
        self._is_escaped = end < len(json) and json[end] != _QUOTE
        if self._depth <= 1 + self._is_response and len(self._text) <= len(_RESPONSE):
            self._text += json[begin : min(end, begin + len(_RESPONSE) + 1)]
        if end < len(json) and not self._is_escaped:
            self._end_string()
        return min(end + 1, len(json))

    def _end_string(self) -> None:
        if self._state is _State.REPLACED:
            self._state = _State.OVER
        elif (self._text == _MODEL and self._depth == 1 + self._is_response) or (
            self._text == _RESPONSE and self._depth == 1 and self._nests
        ):
            self._state = _State.NAMED
        else:
            self._state = _State.OUTSIDE

    def _find_value(self, json: bytes, at: int) -> int:
        at = _end(_SPACE, json, at)
        if at == len(json):
            return at
        if self._state is _State.NAMED and json[at : at + 1] == b":":
            self._state = _State.VALUED
            return at + 1
        if self._state is _State.VALUED and self._text == _MODEL and json[at] == _QUOTE:
            self._state = _State.REPLACED
            return at + 1
        if self._state is _State.VALUED and self._text == _RESPONSE:
            self._is_response = json[at : at + 1] == b"{"
        self._state = _State.OUTSIDE
        return at


def _end(pattern: re.Pattern[bytes], json: bytes, at: int) -> int:
    """Return where what the pattern finds from there on ends."""
    found = pattern.match(json, at)
    return at if found is None else found.end()


class StreamRenamer:
    """Replaces the name in each event of a stream.

    What is fed, joined, is the stream; each time whole events, or a part of one that is too long to come whole.
    """

    __slots__ = ("_endpoint", "_is_in_data", "_is_in_event", "_is_in_line", "_name", "_replacer", "_spelled")

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        """Begin before the first event."""
        self._name = name
        self._spelled = _spelled(name)
        self._endpoint = endpoint
        self._replacer = NameReplacer(name, endpoint)
        self._is_in_event = False
        self._is_in_line = False
        self._is_in_data = False

    def feed(self, events: bytes) -> bytes:
        """Return these bytes with the name replaced wherever it stands."""
        if not self._is_in_event and _QUOTED not in events and ends_event(events):
            return events
        splitter = EventSplitter(_ENDLESS)
        splitter.is_inside = self._is_in_event
        return b"".join([self._event(each) for each in (*splitter.feed(events), splitter.rest()) if each])

    def _event(self, event: bytes) -> bytes:
        is_first, self._is_in_event = not self._is_in_event, not ends_event(event)
        if is_first:
            if not self._is_in_event and (renamed := self._whole(event)) is not None:
                return renamed
            self._replacer = NameReplacer(self._name, self._endpoint)
        return b"".join(self._lines(event))

    def _whole(self, event: bytes) -> bytes | None:
        json = data_of(event)
        return event if json is None else _renamed(event, json, self._spelled, self._endpoint)

    def _lines(self, event: bytes) -> Iterator[bytes]:
        """Go through an event, or a part of it, line by line: its data may stand on several."""
        for line in _LINE.finditer(event):
            if not line[0]:
                return
            text = line[1]
            if not self._is_in_line:
                self._is_in_data = text.removeprefix(BOM).startswith(_DATA)
                text = text[(begin := text.find(b":") + 1 if self._is_in_data else 0) :]
                yield line[1][:begin]
            yield self._replacer.feed(text) if self._is_in_data else text
            yield line[2]
            self._is_in_line = not line[2]
