"""What a whole JSON answer says: usage, model, fingerprint, finish reasons, how much was generated.

Reads only the members that matter, whatever else an upstream writes around them; knows no socket and no store.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from policies.usage import read_usage
from proxy.wire.chunks import CHUNKS
from proxy.wire.responses import generated_texts, note_finish
from proxy.wire.streams import decoded

if TYPE_CHECKING:
    from proxy.exchange import Observed

EDGE_BYTES = 64 * 1024
"""How much of the beginning and the end of an answer that is too long to be kept is searched for its usage."""

_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')
_BEGINNING = re.compile(rb"(?:\s|\xef\xbb\xbf)*(?:[\[{\":]|data:|event:|id:|retry:)")
_NO_CALLS = (b"[]", b"null")
_REFUSED_REASON = "content_filter"


class _Message(msgspec.Struct):
    content: Any = None  # text, or parts; whatever an upstream writes
    refusal: Any = None
    reasoning: Any = None
    reasoning_content: Any = None  # often the same again
    tool_calls: msgspec.Raw = msgspec.Raw(b"")


class _Choice(msgspec.Struct):
    index: int = 0
    finish_reason: str | None = None
    text: str | None = None
    message: _Message | None = None


class _Answer(msgspec.Struct):
    data: list[msgspec.Raw] | None = None
    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    error: Any = None  # an object, or whatever an upstream writes
    output: list[msgspec.Raw] | None = None
    status: Any = None
    incomplete_details: Any = None


_DECODER = msgspec.json.Decoder(_Answer)


class UnreadableAnswer(Exception):  # noqa: N818  what it is, not that it is an error
    """The bytes are no JSON object."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a whole answer is: `is_error` when it says that it failed, and how many embeddings it holds."""

    is_error: bool
    embeddings: int


def observe_answer(body: bytes, observed: Observed) -> Contents:
    """Note in `observed` what a whole answer says. Raises UnreadableAnswer for anything but a JSON object."""
    answer = _read(body)
    observed.usage = None if answer.usage is None else read_usage(answer.usage)
    observed.model = answer.model
    observed.fingerprint = answer.system_fingerprint
    for position, choice in enumerate(answer.choices or ()):
        if choice.finish_reason is not None:
            observed.finish_reasons[choice.index] = choice.finish_reason
        _note_choice(position, choice, observed)
    has_failed = bool(answer.error)
    if answer.output is not None:
        note_finish(observed, answer.status, answer.incomplete_details)
        _note_generated(0, observed, b"".join(generated_texts(answer.output)))
        has_failed = has_failed or answer.status == "failed"
    return Contents(is_error=has_failed, embeddings=len(answer.data or ()))


def are_choices_whole(observed: Observed, choices: int) -> bool:
    """Tell whether so many choices are all finished, none of them by a content filter (SPEC §6)."""
    reasons = observed.finish_reasons
    return all(index in reasons for index in range(choices)) and _REFUSED_REASON not in reasons.values()


def observe_edges(head: bytes, tail: bytes, observed: Observed) -> None:
    """Note the usage of an answer of which only the beginning and the end were kept."""
    for edge in (tail, head):
        for found in reversed(list(_USAGE.finditer(edge))):
            usage = _object_at(edge, found.end())
            if usage is not None and (known := read_usage(usage)) is not None:
                observed.usage = known
                return


def may_be_completion(body: bytes) -> bool:
    """Tell whether bytes begin as JSON or an event stream does: those stay out of the log (SPEC §11)."""
    return _BEGINNING.match(body) is not None


def _read(body: bytes) -> _Answer:
    try:
        if not body.isascii():
            body.decode()  # members that are skipped are not looked at otherwise
        return _decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UnreadableAnswer(str(error)) from error


def _decode(body: bytes) -> _Answer:
    try:
        return _DECODER.decode(body)
    except msgspec.ValidationError:  # at a member, before it is known whether the rest is JSON
        return _read_tolerantly(body)


def _read_tolerantly(body: bytes) -> _Answer:
    """Read an answer whose members are not of the types that the API names, leaving out those."""
    found = msgspec.json.decode(body)
    if not isinstance(found, dict):
        raise UnreadableAnswer(f"a JSON {type(found).__name__} and not an object")
    answer = _Answer(error=found.get("error"))
    data = found.get("data")
    answer.data = [msgspec.Raw(b"")] * len(data) if isinstance(data, list) else None
    answer.usage = usage if isinstance(usage := found.get("usage"), dict) else None
    answer.model = model if isinstance(model := found.get("model"), str) else None
    fingerprint = found.get("system_fingerprint")
    answer.system_fingerprint = fingerprint if isinstance(fingerprint, str) else None
    choices = found.get("choices")
    answer.choices = [_convert(choice) for choice in choices] if isinstance(choices, list) else None
    output = found.get("output")
    answer.output = [msgspec.Raw(msgspec.json.encode(item)) for item in output] if isinstance(output, list) else None
    answer.status, answer.incomplete_details = found.get("status"), found.get("incomplete_details")
    return answer


def _convert(choice: object) -> _Choice:
    try:
        return msgspec.convert(choice, _Choice)
    except msgspec.ValidationError:
        return _Choice()


def _note_choice(position: int, choice: _Choice, observed: Observed) -> None:
    message = choice.message
    if choice.text is not None:
        _note_generated(position, observed, choice.text.encode())
    elif message is not None:
        said = (message.reasoning or message.reasoning_content, message.content, message.refusal)
        text = "".join([each for each in said if isinstance(each, str)])
        calls = bytes(message.tool_calls)
        _note_generated(position, observed, text.encode(), b"" if calls in _NO_CALLS else calls)


def _note_generated(choice: int, observed: Observed, text: bytes, calls: bytes = b"") -> None:
    """Note the text of one choice, and its tool calls as they stand, of which a tokenizer counts the arguments."""
    observed.content_bytes += len(text) + len(calls)
    observed.choices_with_text += 1 if text or calls else 0
    if observed.texts is not None:
        observed.texts.add(choice, text)
        for arguments in CHUNKS.generated.findall(calls):
            observed.texts.add(choice, decoded(arguments))


def _object_at(edge: bytes, start: int) -> dict[str, Any] | None:
    try:
        found, _ = json.JSONDecoder().raw_decode(edge[start:].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
