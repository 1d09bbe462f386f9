"""The response object and its typed events, as OpenAI's Responses API has them.

Knows when a response is finished, what was generated of it, and how its stream ends: `response.completed`,
`response.incomplete`, `response.failed` or `error`, with no `[DONE]`. How a stream passes is `streams`' business.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from policies.usage import read_usage
from proxy.wire.sse import data_of
from proxy.wire.streams import Family, Sign

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from proxy.exchange import Observed

_ENDS: Final = ("response.completed", "response.incomplete", "response.failed")
_FINISHES: Final = ("completed", "max_output_tokens", "content_filter")
"""Statuses, and reasons of the status `incomplete`, with which there is nothing more to come of a response."""

_TELLING = re.compile(rb'"(?:type"\s*:\s*"(?:response\.(?:completed|incomplete|failed)|error)"|error"\s*:\s*[{"])')
# Only pieces stand under this name: the events that end an item repeat all of it under others.
_GENERATED = re.compile(rb'"delta"\s*:\s*"([^"\\]*(?:\\.[^"\\]*)*)"')
_NUMBER = re.compile(rb'"sequence_number"\s*:\s*(\d{1,18})')


class _Part(msgspec.Struct):
    text: Any = None  # text; whatever an upstream writes
    refusal: Any = None


class _Item(msgspec.Struct):
    """What an output item has of generated text, whatever its type: messages, reasoning, calls."""

    content: list[_Part] | None = None
    summary: list[_Part] | None = None
    arguments: Any = None
    input: Any = None
    code: Any = None


_ITEM = msgspec.json.Decoder(_Item)


def note_finish(observed: Observed, status: object, details: object) -> None:
    """Note why a response ended, in the API's words; nothing where it has not, was cancelled, or failed.

    `details` are its `incomplete_details`. A response counts as choice 0.
    """
    if status == "incomplete":
        status = details.get("reason") if isinstance(details, dict) else None
    if isinstance(status, str) and status in _FINISHES:
        observed.finish_reasons[0] = status


def generated_texts(output: Iterable[msgspec.Raw]) -> Iterator[bytes]:
    """Find what a response's output items hold of generated text, in UTF-8."""
    for raw in output:
        yield from _item_texts(raw)


def _item_texts(raw: msgspec.Raw) -> Iterator[bytes]:
    try:
        item = _ITEM.decode(raw)
    except msgspec.DecodeError:
        return
    parts = (*(item.content or ()), *(item.summary or ()))
    texts = [item.arguments, item.input, item.code, *(text for part in parts for text in (part.text, part.refusal))]
    yield from (text.encode() for text in texts if isinstance(text, str))


def _part(event: bytes) -> Iterator[tuple[int | None, Iterable[bytes]]]:
    yield 0, _GENERATED.findall(data_of(event) or b"")


def _note(event: dict[str, Any], observed: Observed) -> Sign:
    kind = event.get("type")
    if kind == "error" or event.get("error"):
        return Sign.FAILED | Sign.END
    if isinstance(response := event.get("response"), dict):
        if isinstance(model := response.get("model"), str) and model:
            observed.model = model
        observed.usage = read_usage(response.get("usage")) or observed.usage
        note_finish(observed, response.get("status"), response.get("incomplete_details"))
    if kind not in _ENDS:
        return Sign.NOTHING
    return Sign.FAILED | Sign.END if kind == "response.failed" else Sign.END


def _error_event(error_object: bytes, latest: bytes) -> bytes:
    """Write the API's own error event, numbered as the next one.

    The API's documents name the members beside `type`; its servers and SDKs look at `error`, by which SDKs raise.
    """
    numbers = _NUMBER.findall(latest)
    error = msgspec.json.decode(error_object)["error"]
    data = {
        "type": "error",
        "code": error["code"],
        "message": error["message"],
        "param": error["param"],
        "sequence_number": int(numbers[-1]) + 1 if numbers else 0,
        "error": error,
    }
    return b"event: error\ndata: " + msgspec.json.encode(data) + b"\n\n"


RESPONSES: Final = Family(
    telling=_TELLING,
    generated=_GENERATED,
    repeating=None,
    part=_part,
    note=_note,
    error_event=_error_event,
)
"""Streams of responses."""
