"""The events of completions and chat completions: chunks with choices, then perhaps usage, then `[DONE]`.

Knows what a chunk's members mean; how a stream of them passes is `streams`' business.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from policies.usage import read_usage
from proxy.wire.sse import EventSplitter, data_of
from proxy.wire.streams import Family, Sign, decode_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from proxy.exchange import Observed

_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_TELLING = re.compile(rb'"(?:finish_reason"\s*:\s*"|usage"\s*:\s*\{|error"\s*:\s*[{"])')
_GENERATED = re.compile(
    rb'"(?:text|content|arguments|reasoning_content|reasoning|refusal)"\s*:\s*"([^"\\]*(?:\\.[^"\\]*)*)"'
)


class _Choices(msgspec.Struct):
    choices: list[msgspec.Raw]


class _Choice(msgspec.Struct):
    index: int = 0


_CHOICES = msgspec.json.Decoder(_Choices)
_CHOICE = msgspec.json.Decoder(_Choice)


def is_added_usage_event(event: bytes) -> bool:
    """Tell whether an event has empty `choices` *and* a usage object: the only kind ever taken out (SPEC §7)."""
    if b'"usage"' not in event:
        return False
    data = data_of(event) or b""
    chunk = decode_object(data) if _USAGE.search(data) else None
    return chunk is not None and _is_usage_only(chunk)


def without_usage_event(stream: bytes) -> bytes:
    """Return a whole stored stream less its usage event."""
    if b'"usage"' not in stream:
        return stream
    splitter = EventSplitter(len(stream))
    events = [*splitter.feed(stream), splitter.rest()]
    return b"".join([event for event in events if not is_added_usage_event(event)])


def _part(event: bytes) -> Iterator[tuple[int | None, Iterable[bytes]]]:
    """Find what was generated of each choice; some servers say reasoning under two names."""
    try:
        choices = _CHOICES.decode(data := data_of(event) or b"{}").choices
    except (msgspec.DecodeError, RecursionError):
        yield None, _GENERATED.findall(data)
        return
    for raw in choices:
        yield _index_of(raw), dict.fromkeys(_GENERATED.findall(raw))


def _index_of(choice: msgspec.Raw) -> int | None:
    try:
        return _CHOICE.decode(choice).index
    except msgspec.DecodeError:
        return None


def _note(chunk: dict[str, Any], observed: Observed) -> Sign:
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
    if chunk.get("error"):
        return Sign.FAILED
    return Sign.USAGE_ONLY if _is_usage_only(chunk) else Sign.NOTHING


def _is_usage_only(chunk: dict[str, Any]) -> bool:
    return chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict) and not chunk.get("error")


def _error_event(error_object: bytes, latest: bytes) -> bytes:
    del latest
    return b"data: " + error_object + b"\n\n"


CHUNKS: Final = Family(
    telling=_TELLING,
    generated=_GENERATED,
    repeating=b'"reasoning',
    part=_part,
    note=_note,
    error_event=_error_event,
)
"""Streams of completions and chat completions."""
