"""A whole response as the typed events that lead to it, and the whole response that such events end in.

Knows for each type of output item that it can write which events the Responses API has for it; another type raises
Inexact. Knows nothing of event streams; what a passing stream tells is read in `responses`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from proxy.wire.raw_json import (
    EMPTY_LIST,
    EMPTY_TEXT,
    NULL,
    Inexact,
    Members,
    cut,
    list_inside,
    list_of,
    members_of,
    objects_of,
    string_of,
    text_inside,
    values_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Event = tuple[str, dict[str, object]]
    """Its type, and its members but for type and number."""

_ENDS: Final = {"response.completed": "completed", "response.incomplete": "incomplete"}
_FAILURES: Final = ("response.failed", "error")
_ITEM_DONE: Final = "response.output_item.done"
_BEGUN: Final = {"status": msgspec.Raw(b'"in_progress"'), "output": EMPTY_LIST} | dict.fromkeys(
    ("usage", "completed_at", "incomplete_details", "moderation"), NULL
)
"""What a response says of itself while it begins, of the members that it has."""
_BEGUN_ITEM: Final = {
    "status": _BEGUN["status"],
    "content": EMPTY_LIST,
    "summary": EMPTY_LIST,
    "arguments": EMPTY_TEXT,
    "input": EMPTY_TEXT,
}
_BEGUN_PART: Final = {
    "text": EMPTY_TEXT,
    "refusal": EMPTY_TEXT,
    "annotations": EMPTY_LIST,
    "logprobs": EMPTY_LIST,
}
_ARGUMENTS: Final = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}
"""Items that are one text, its member, and what its events' names begin with."""
_PARTS: Final = {
    "output_text": ("text", "response.output_text"),
    "refusal": ("refusal", "response.refusal"),
    "reasoning_text": ("text", "response.reasoning_text"),
    "summary_text": ("text", "response.reasoning_summary_text"),
}
"""The same of parts of items."""


class _Typed(msgspec.Struct):
    type: str
    response: msgspec.Raw = NULL


_TYPED = msgspec.json.Decoder(_Typed)


def response_in(data: Iterable[bytes]) -> bytes:
    """Return the response that the events with these data end in.

    Raises Inexact where they do not end, end badly, or told of other items than it has; msgspec.DecodeError for data
    that is no event.
    """
    items = 0
    for each in data:
        event = _TYPED.decode(each)
        if event.type in _ENDS:
            response = members_of(event.response)
            known = {0, len(values_of(response.get("output", NULL)))}  # some servers tell of no items
            if response.get("status") != _raw(_ENDS[event.type]) or items not in known:
                raise Inexact
            return bytes(event.response)
        if event.type in _FAILURES:
            raise Inexact
        items += event.type == _ITEM_DONE
    raise Inexact


def spread_response(whole: bytes) -> list[tuple[bytes, bytes]]:
    """Write the events of a whole response in order, as names and data.

    Raises Inexact or msgspec.DecodeError.
    """
    return [
        (kind.encode(), msgspec.json.encode({"type": kind, "sequence_number": number, **members}))
        for number, (kind, members) in enumerate(_events(whole))
    ]


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(text))


def _begun(members: Members, as_begun: Members) -> Members:
    return {name: value if value == NULL else as_begun.get(name, value) for name, value in members.items()}


def _events(whole: bytes) -> Iterator[Event]:
    response = members_of(whole)
    end = f"response.{string_of(response.get('status', NULL))}"
    if end not in _ENDS or response.get("error", NULL) != NULL:
        raise Inexact
    for kind in ("response.created", "response.in_progress"):
        yield kind, {"response": _begun(response, _BEGUN)}
    for index, item in enumerate(objects_of(response.get("output", NULL))):
        begun = _begun(item, _BEGUN_ITEM)
        yield "response.output_item.added", {"output_index": index, "item": begun}
        place = {"item_id": string_of(item.get("id", NULL)), "output_index": index}
        yield from _item_events(item, place)
        yield _ITEM_DONE, {"output_index": index, "item": item}
    yield end, {"response": response}


def _item_events(item: Members, place: dict[str, object]) -> Iterator[Event]:
    kind = string_of(item.get("type", NULL))
    if kind in _ARGUMENTS:
        name, event = _ARGUMENTS[kind]
        yield from _text_events(event, name, item, place)
    elif kind == "message":
        yield from _parts_events("content", item, place, ("output_text", "refusal"))
    elif kind == "reasoning":
        yield from _parts_events("summary", item, place, ("summary_text",))
        if item.get("content", NULL) != NULL:
            yield from _parts_events("content", item, place, ("reasoning_text",))
    else:
        raise Inexact


def _parts_events(name: str, item: Members, place: dict[str, object], kinds: Iterable[str]) -> Iterator[Event]:
    """Write the events of an item's parts, which are of these kinds."""
    index_name, events = ("summary_index", "response.reasoning_summary_part")
    if name == "content":
        index_name, events = ("content_index", "response.content_part")
    for index, part in enumerate(objects_of(item.get(name, NULL))):
        kind = string_of(part.get("type", NULL))
        if kind not in kinds:
            raise Inexact
        part_place = {**place, index_name: index}
        yield f"{events}.added", {**part_place, "part": _begun(part, _BEGUN_PART)}
        yield from _part_events(kind, part, part_place)
        yield f"{events}.done", {**part_place, "part": part}


def _part_events(kind: str, part: Members, place: dict[str, object]) -> Iterator[Event]:
    name, event = _PARTS[kind]
    if kind != "output_text":
        yield from _text_events(event, name, part, place)
        return
    logprobs = part.get("logprobs", NULL)
    logprobs = list_of((list_inside(logprobs) or b"",))
    yield from _text_events(event, name, part, place, logprobs=logprobs)
    for index, annotation in enumerate(values_of(part.get("annotations", EMPTY_LIST))):
        yield f"{event}.annotation.added", {**place, "annotation_index": index, "annotation": annotation}


def _text_events(
    event: str, name: str, owner: Members, place: dict[str, object], *, logprobs: msgspec.Raw | None = None
) -> Iterator[Event]:
    """Write a text in pieces and then whole; all its logprobs, where it has such, go with the first piece."""
    text = text_inside(owner.get(name, NULL))
    if text is None:
        raise Inexact
    for position, piece in enumerate(cut(text)):
        of_piece = {} if logprobs is None else {"logprobs": EMPTY_LIST if position else logprobs}
        yield f"{event}.delta", {**place, "delta": piece, **of_piece}
    of_all = {} if logprobs is None else {"logprobs": logprobs}
    yield f"{event}.done", {**place, name: owner[name], **of_all}
