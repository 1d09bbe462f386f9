"""What a stream tells while it passes: usage, finish reasons, its end, errors, how much was generated.

Looks for telling bytes and parses only the few events that hold some; in JSON a quote inside a string is escaped, so
`"usage"` in the bytes is a member's name. What the events of an endpoint family look like is known in `chunks` and
`responses`; knows no clock and no socket.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Flag, auto
from typing import TYPE_CHECKING, Any

import msgspec

from proxy.wire.sse import EventSplitter, data_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from proxy.exchange import Observed

_DONE_MARK = b"[DONE]"
_NAMED_ERROR = re.compile(rb"(?:^|[\r\n])event: ?error[\r\n]")
_OBFUSCATION = re.compile(rb',\s*"obfuscation"\s*:\s*"[^"\\]*"|"obfuscation"\s*:\s*"[^"\\]*"\s*,\s*')


class _AnyObject(msgspec.Struct):
    """Has no members that are looked at."""


_ANY_OBJECT = msgspec.json.Decoder(_AnyObject)
_MOST_INTRODUCTIONS = 4
"""Events that are parsed in search of the model's name, which some servers' first events lack."""


class Sign(Flag):
    """What one event means for its stream."""

    NOTHING = 0
    FAILED = auto()
    """The upstream says that it failed."""
    END = auto()
    """Nothing that matters follows."""
    USAGE_ONLY = auto()
    """The event holds usage and nothing else."""


@dataclass(frozen=True, slots=True)
class Family:
    """How the streams of an endpoint family say things.

    `telling` is found in every event that has to be parsed, `generated` finds the inside of every JSON string that
    holds a piece of what was generated. `part` finds those of one event by their choices (None is one that nobody
    knows), and what a choice says twice there only once; `repeating` stands in every event that says something twice,
    None where none does. `note` writes the facts of an event's object into `Observed`. `error_event` makes the last
    event of a stream that broke, of an error in OpenAI's shape and the data that was seen last.
    """

    telling: re.Pattern[bytes]
    generated: re.Pattern[bytes]
    repeating: bytes | None
    part: Callable[[bytes], Iterable[tuple[int | None, Iterable[bytes]]]]
    note: Callable[[dict[str, Any], Observed], Sign]
    error_event: Callable[[bytes, bytes], bytes]


class StreamObserver:
    """Watches the events of one stream, notes its facts in `observed`, and says what may go to the client.

    With `drops_usage` the usage event that the client did not ask for is taken out. `held` is the end, such as
    `[DONE]`, and all that may go after it; `has_failed` tells that the upstream sent an error as an event.
    """

    __slots__ = (
        "_drops_usage",
        "_family",
        "_introductions",
        "_is_parted",
        "_latest",
        "_observed",
        "_texts",
        "has_failed",
        "held",
        "is_done",
    )

    def __init__(self, observed: Observed, family: Family, *, drops_usage: bool) -> None:
        self._observed = observed
        self._texts = observed.texts
        self._is_parted = observed.texts is not None and not observed.texts.are_of_one
        self._family = family
        self._drops_usage = drops_usage
        self._introductions = 0
        self._latest = b""
        self.held = b""
        self.is_done = False
        self.has_failed = False

    def observe(self, events: Sequence[bytes]) -> bytes:
        """Note what these whole events say; return those to be written now, as one piece."""
        if len(events) == 1:
            joined = events[0]
            has_lines = joined.count(b"data") > 1
        else:
            joined = b"".join(events)
            has_lines = any(each.count(b"data") > 1 for each in events)
        if b"data" in joined:
            self._latest = joined
        # JSON over several data lines could hide what is looked for.
        told = b"\n".join([data_of(each) or b"" for each in events]) if has_lines else joined
        self._count(told, events)
        if self._is_introduced and not self.is_done and not self._tells(told) and not _is_named_error(joined):
            return joined
        return b"".join([event for event in events if self._passes(event)])

    def observe_part(self, part: bytes) -> bytes:
        """Note a part of an event that is too long to be seen whole, all of it as text; return what is to be written.

        Nothing that it says is read.
        """
        observed = self._observed
        observed.content_events += 1
        observed.content_bytes += len(part)
        if self._texts is not None:
            self._texts.add(None, part)
        if not self.is_done:
            return part
        self.held += part
        return b""

    def has_finished(self, choices: int) -> bool:
        """Tell whether the end came and each of so many choices has its finish reason."""
        reasons = self._observed.finish_reasons
        return self.is_done and not self.has_failed and all(index in reasons for index in range(choices))

    def error_event(self, error_object: bytes) -> bytes:
        """Write an error in OpenAI's shape as the last event of this stream, which broke."""
        return self._family.error_event(error_object, self._latest)

    @property
    def _is_introduced(self) -> bool:
        return self._introductions >= _MOST_INTRODUCTIONS or bool(self._observed.model)

    def _tells(self, data: bytes) -> bool:
        return _DONE_MARK in data or self._family.telling.search(data) is not None

    def _count(self, told: bytes, events: Sequence[bytes]) -> None:
        found, repeating = self._family.generated.findall(told), self._family.repeating
        may_repeat = repeating is not None and len(found) > 1 and repeating in told and len(set(found)) < len(found)
        if self._is_parted or may_repeat:
            for event in events:
                for choice, pieces in self._family.part(event):
                    self._note_generated(choice if self._is_parted else 0, pieces)
        else:
            self._note_generated(0, found)

    def _note_generated(self, choice: int | None, pieces: Iterable[bytes]) -> None:
        observed, texts = self._observed, self._texts
        for piece in pieces:
            if piece:
                text = piece if b"\\" not in piece else decoded(piece)
                observed.content_events += 1
                observed.content_bytes += len(text)
                if texts is not None:
                    texts.add(choice, text)

    def _passes(self, event: bytes) -> bool:
        """Note what one event says; tell whether it is to be written now."""
        is_kept, is_error = True, _is_named_error(event)
        data = data_of(event) or b""
        if is_error or not self._is_introduced or self._tells(data):
            chunk = decode_object(data) or {}
            self._introductions += bool(chunk)
            sign = self._family.note(chunk, self._observed)
            self.has_failed = self.has_failed or Sign.FAILED in sign or is_error
            self.is_done = self.is_done or Sign.END in sign or _is_done_mark(data)
            is_kept = not (self._drops_usage and sign is Sign.USAGE_ONLY)
        if self.is_done and is_kept:
            self.held += event
        return is_kept and not self.is_done


def _is_done_mark(data: bytes) -> bool:
    return data.lstrip(b" ").startswith(_DONE_MARK)


def _is_named_error(data: bytes) -> bool:
    """Tell whether an event is called `error`, as some servers call one whatever its data are."""
    return b"event" in data and _NAMED_ERROR.search(data) is not None


def is_readable(stream: bytes) -> bool:
    """Tell whether every event of a whole stream that has data holds a JSON object or `[DONE]`, in UTF-8."""
    splitter = EventSplitter(len(stream))
    events = splitter.feed(stream)
    try:
        stream.decode()
        for event in [*events, splitter.rest()]:
            data = data_of(event)
            if data is not None and not _is_done_mark(data):
                _ANY_OBJECT.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True


def without_obfuscation(stream: bytes) -> bytes:
    """Return a whole stream less the random strings that only hide its packets' lengths (SPEC §6)."""
    return _OBFUSCATION.sub(b"", stream) if b'"obfuscation"' in stream else stream


def decode_object(data: bytes) -> dict[str, Any] | None:
    """Return an event's data as a JSON object; None for anything else."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return found if isinstance(found, dict) else None


def decoded(text: bytes) -> bytes:
    """Return what the inside of a JSON string says, in UTF-8; as it is where that is nothing."""
    try:
        return msgspec.json.decode(b'"' + text + b'"', type=str).encode()
    except (msgspec.DecodeError, UnicodeError):
        return text
