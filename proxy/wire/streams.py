"""What a stream of completions tells while it passes: usage, finish reasons, `[DONE]`, errors, how much was generated.

Looks for telling bytes and parses only the few events that hold some; in JSON a quote inside a string is escaped, so
`"usage"` in the bytes is a member's name. Knows the shape of chunks; knows no clock and no socket.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from policies.usage import read_usage
from proxy.wire.sse import EventSplitter, data_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.exchange import Observed

_DONE_MARK = b"[DONE]"
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_TELLING = re.compile(rb'"(?:finish_reason"\s*:\s*"|usage"\s*:\s*\{|error"\s*:\s*[{"])')
_OBFUSCATION = re.compile(rb',\s*"obfuscation"\s*:\s*"[^"\\]*"|"obfuscation"\s*:\s*"[^"\\]*"\s*,\s*')
_GENERATED = re.compile(
    rb'"(?:text|content|arguments|reasoning_content|reasoning|refusal)"\s*:\s*"([^"\\]*(?:\\.[^"\\]*)*)"'
)


class _AnyObject(msgspec.Struct):
    """Has no members that are looked at."""


_ANY_OBJECT = msgspec.json.Decoder(_AnyObject)
_MOST_INTRODUCTIONS = 4
"""Events that are parsed in search of the model's name, which Azure's first event leaves empty."""


class StreamObserver:
    """Watches the events of one stream, notes its facts in `observed`, and says what may go to the client.

    With `drops_usage` the usage event that the client did not ask for is taken out. `held` is `[DONE]` and all that
    may go after it; `has_failed` tells that the upstream sent an error as an event.
    """

    __slots__ = ("_drops_usage", "_introductions", "_observed", "has_failed", "held", "is_done")

    def __init__(self, observed: Observed, *, drops_usage: bool) -> None:
        self._observed = observed
        self._drops_usage = drops_usage
        self._introductions = 0
        self.held = b""
        self.is_done = False
        self.has_failed = False

    def observe(self, events: Sequence[bytes]) -> bytes:
        """Note what these whole events say; return those to be written now, as one piece."""
        joined = events[0] if len(events) == 1 else b"".join(events)
        self._count(joined)
        if self._is_introduced and not self.is_done and not _tells(joined):
            return joined
        return b"".join([event for event in events if self._passes(event)])

    def has_finished(self, choices: int) -> bool:
        """Tell whether `[DONE]` came and each of so many choices has its finish reason."""
        reasons = self._observed.finish_reasons
        return self.is_done and not self.has_failed and all(index in reasons for index in range(choices))

    @property
    def _is_introduced(self) -> bool:
        return self._introductions >= _MOST_INTRODUCTIONS or bool(self._observed.model)

    def _count(self, joined: bytes) -> None:
        observed = self._observed
        for text in _GENERATED.findall(joined):
            if text:
                observed.content_events += 1
                observed.content_bytes += _decoded_length(text)

    def _passes(self, event: bytes) -> bool:
        """Note what one event says; tell whether it is to be written now."""
        is_kept = True
        if not self._is_introduced or _tells(event):
            data = data_of(event) or b""
            self.is_done = self.is_done or data.startswith(_DONE_MARK)
            chunk = _decode_object(data) or {}
            self._note(chunk)
            is_kept = not (self._drops_usage and _is_usage_only(chunk))
        if self.is_done and is_kept:
            self.held += event
        return is_kept and not self.is_done

    def _note(self, chunk: dict[str, Any]) -> None:
        observed = self._observed
        self._introductions += bool(chunk)
        if chunk.get("error"):
            self.has_failed = True
        if isinstance(usage := chunk.get("usage"), dict):
            observed.usage = read_usage(usage) or observed.usage
        if isinstance(model := chunk.get("model"), str) and model:
            observed.model = model
        if isinstance(fingerprint := chunk.get("system_fingerprint"), str) and fingerprint:
            observed.fingerprint = fingerprint
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and isinstance(reason := choice.get("finish_reason"), str):
                index = choice.get("index", 0)
                observed.finish_reasons[index if isinstance(index, int) else 0] = reason


def is_added_usage_event(event: bytes) -> bool:
    """Tell whether an event has empty `choices` *and* a usage object: the only kind ever taken out (SPEC §7)."""
    if _USAGE.search(event) is None:
        return False
    chunk = _decode_object(data_of(event) or b"")
    return chunk is not None and _is_usage_only(chunk)


def without_usage_event(stream: bytes) -> bytes:
    """Return a whole stored stream less its usage event."""
    if _USAGE.search(stream) is None:
        return stream
    splitter = EventSplitter(len(stream))
    events = splitter.feed(stream)
    return b"".join([event for event in events if not is_added_usage_event(event)]) + splitter.rest()


def is_readable(stream: bytes) -> bool:
    """Tell whether every event of a whole stream that has data holds a JSON object or `[DONE]`, in UTF-8."""
    splitter = EventSplitter(len(stream))
    events = splitter.feed(stream)
    try:
        stream.decode()
        for event in [*events, splitter.rest()]:
            data = data_of(event)
            if data is not None and not data.startswith(_DONE_MARK):
                _ANY_OBJECT.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True


def without_obfuscation(stream: bytes) -> bytes:
    """Return a whole stream less the random strings that only hide its packets' lengths (SPEC §6)."""
    return _OBFUSCATION.sub(b"", stream) if b'"obfuscation"' in stream else stream


def error_event(error_object: bytes) -> bytes:
    """Write an error in OpenAI's shape as the last event of a stream that broke."""
    return b"data: " + error_object + b"\n\n"


def _tells(data: bytes) -> bool:
    return _DONE_MARK in data or _TELLING.search(data) is not None


def _is_usage_only(chunk: dict[str, Any]) -> bool:
    return chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)


def _decode_object(data: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return found if isinstance(found, dict) else None


def _decoded_length(text: bytes) -> int:
    """Return the UTF-8 length of the inside of a JSON string."""
    if b"\\" not in text:
        return len(text)
    try:
        return len(msgspec.json.decode(b'"' + text + b'"', type=str).encode())
    except (msgspec.DecodeError, UnicodeError):
        return len(text)
