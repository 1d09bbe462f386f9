"""The whole answer of completions and chat completions spread over chunks, as the API would have streamed it.

A chat choice begins with its role, texts and arguments go out in pieces, the finish reason comes in a chunk of its own,
and the usage after all choices. What has no place in a chunk raises Inexact. Knows nothing of event streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from policies.requests.asked import Endpoint
from proxy.wire.gathered_choices import STREAM_ONLY, TEXTS, in_order, index_of
from proxy.wire.gathering import FIRST_MEMBERS, OBJECTS, renamed
from proxy.wire.raw_json import (
    EMPTY_LIST,
    EMPTY_TEXT,
    NULL,
    Inexact,
    Members,
    cut,
    list_inside,
    members_of,
    objects_of,
    string_of,
    text_inside,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Said = Mapping[str, object]
    """Members of a chunk, or of a part of one."""

_FILTERED_PROMPTS: Final = "prompt_filter_results"
_AZURES_FIRST: Final = {"choices": [], "created": 0, "id": "", "model": "", "object": ""}
_NESTED: Final = (b"{", b"[")
_BLANK: Final = ("logprobs", "finish_reason")
_LISTS: Final = ("tool_calls", "annotations")
_OWN: Final = ("text", "message", "delta")


def spread(endpoint: Endpoint, whole: bytes) -> list[bytes]:
    """Write the chunks of a whole answer in order. Raises Inexact or msgspec.DecodeError."""
    members = renamed(members_of(whole), *OBJECTS[endpoint])
    choices = _choices_of(members)
    if members.get("error", NULL) != NULL or any(name in members for name in STREAM_ONLY):
        raise Inexact
    filtered = members.pop(_FILTERED_PROMPTS, None)
    usage = None if members.get("usage", NULL) == NULL else members.pop("usage")
    last = {name: value for name, value in members.items() if _is_nested(name, value)}
    every = {name: value for name, value in members.items() if name not in last}
    parts = _chat_parts if endpoint is Endpoint.CHAT else _completion_parts
    chunks: list[Said] = [] if filtered is None else [{**_AZURES_FIRST, _FILTERED_PROMPTS: filtered}]
    chunks += ({**every, "choices": [part]} for choice in choices for part in parts(choice))
    chunks[-1] = {**chunks[-1], **last}
    if usage is not None:
        members_of(usage)
        chunks.append({**every, "choices": [], "usage": usage})
    return [msgspec.json.encode(chunk) for chunk in chunks]


def _is_nested(name: str, value: msgspec.Raw) -> bool:
    """Tell which members stand once, in the last chunk of a choice, where servers write what they measured."""
    return name not in FIRST_MEMBERS and bytes(value)[:1] in _NESTED


def _choices_of(members: Members) -> list[Members]:
    """Take the choices out, in the order of their index, which is how clients expect each to appear first."""
    found = objects_of(members.pop("choices", NULL))
    choices = {index_of(choice): choice for choice in found}
    if not found or len(choices) != len(found):
        raise Inexact
    return [{"index": msgspec.Raw(b"%d" % index), **choices[index]} for index in in_order(choices)]


def _completion_parts(choice: Members) -> Iterator[Said]:
    text = text_inside(choice.pop("text", NULL))
    if text is None:
        raise Inexact
    said = [{"text": piece} for piece in cut(text) or [EMPTY_TEXT]]
    return _parts(choice, said, {"text": EMPTY_TEXT}, with_logprobs=0)


def _chat_parts(choice: Members) -> Iterator[Said]:
    message = members_of(choice.pop("message", NULL))
    said = [{"delta": delta} for delta in _deltas(message)]
    return _parts(choice, said, {"delta": {}}, with_logprobs=min(1, len(said) - 1))


def _parts(choice: Members, said: Sequence[Said], silent: Said, *, with_logprobs: int) -> Iterator[Said]:
    """Put around each thing that a choice says what every part has; the finish reason and the rest come last.

    `with_logprobs` is the position of the part that has all of those.
    """
    if not string_of(choice.get("finish_reason", NULL)) or any(name in choice for name in (*_OWN, *STREAM_ONLY)):
        raise Inexact
    index, rest = {"index": choice["index"]}, {name: choice[name] for name in choice if name != "index"}
    blank: Said = {name: NULL for name in _BLANK if name in rest}
    for position, each in enumerate(said):
        logprobs = {"logprobs": rest["logprobs"]} if position == with_logprobs and "logprobs" in rest else {}
        yield {**index, **each, **blank, **logprobs}
    yield {**index, **silent, **rest, **({"logprobs": NULL} if "logprobs" in rest else {})}


def _deltas(message: Members) -> Iterator[Said]:
    """Write a message as deltas: the first has the role and, without their content, all members that there are."""
    string_of(message.get("role", NULL))
    texts: dict[str, bytes | None] = {name: text_inside(message.pop(name)) for name in TEXTS if name in message}
    if "content" not in texts:
        raise Inexact
    first = {name: value for name, value in message.items() if name == "role" or _is_said_first(name, value)}
    yield {**first, **{name: NULL if text is None else EMPTY_TEXT for name, text in texts.items()}}
    for name, text in texts.items():
        yield from ({name: piece} for piece in cut(text or b""))
    for name, value in message.items():
        if name not in first:
            yield from _listed_deltas(name, value)


def _is_said_first(name: str, value: msgspec.Raw) -> bool:
    return value == NULL or (name in _LISTS and value == EMPTY_LIST)


def _listed_deltas(name: str, value: msgspec.Raw) -> Iterator[Said]:
    if name == "tool_calls":
        for position, call in enumerate(objects_of(value)):
            yield from ({name: [part]} for part in _call_parts(position, call))
    elif name == "function_call":
        yield from ({name: part} for part in _function_parts(value))
    elif name == "annotations":
        list_inside(value)
        yield {name: value}
    else:
        raise Inexact


def _call_parts(position: int, call: Members) -> Iterator[Said]:
    if "index" in call and index_of(call) != position:
        raise Inexact
    first, *more = _function_parts(call.pop("function", NULL))
    yield {"index": position, **call, "function": first}
    yield from ({"index": position, "function": part} for part in more)


def _function_parts(function: msgspec.Raw) -> Iterator[Said]:
    members = members_of(function)
    string_of(members.get("name", NULL))
    arguments = text_inside(members.get("arguments", NULL))
    if arguments is None:
        raise Inexact
    yield {**members, "arguments": EMPTY_TEXT}
    yield from ({"arguments": piece} for piece in cut(arguments))
