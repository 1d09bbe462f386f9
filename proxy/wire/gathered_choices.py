"""One choice of an answer, put together of the parts of it that stand in chunks.

Knows where the API, and the servers that follow it, write what of a choice: texts and lists come in pieces, tool calls
by index, everything else once or always the same. What nobody can place raises Inexact. Knows no chunk as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from proxy.wire.raw_json import (
    NULL,
    Inexact,
    Members,
    is_piecewise,
    keep,
    keep_once,
    list_inside,
    list_of,
    members_of,
    objects_of,
    string_of,
    text_inside,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

TEXTS: Final = ("reasoning", "reasoning_content", "content", "refusal")
"""Members of a message that come in pieces of text, in the order in which models write them."""
LOGPROBS: Final = ("tokens", "token_logprobs", "top_logprobs", "text_offset", "content", "refusal")
"""Lists of both families' `logprobs`; some servers write chat's under completions."""
STREAM_ONLY: Final = ("obfuscation", "content_filter_offsets")
"""What only streams have: padding, and how far a filter has read."""

_ASSISTANT: Final = msgspec.Raw(b'"assistant"')
_MOST_INDEX_DIGITS: Final = 6
_Pieces = dict[str, list[bytes] | None]
"""Pieces by their member's name; None is one that was null only."""


def index_of(part: Members) -> int:
    """Take the index out of a part; a part without is the first. Raises Inexact for anything but a position."""
    spelled = bytes(part.pop("index", b"0"))
    if not spelled.isdigit() or len(spelled) > _MOST_INDEX_DIGITS:
        raise Inexact
    return int(spelled)


def in_order(indexes: Iterable[int]) -> list[int]:
    """Return positions in order. Raises Inexact where one is missing."""
    ordered = sorted(indexes)
    if ordered != list(range(len(ordered))):
        raise Inexact
    return ordered


class Choice:
    """One choice of a completion. Both methods raise Inexact or msgspec.DecodeError."""

    def __init__(self) -> None:
        self._members: Members = {}
        self._texts: _Pieces = {}
        self._logprobs: _Pieces | None = None

    def take(self, part: Members) -> list[bytes] | None:
        """Take one chunk's part, its index taken out; where it adds one piece of text alone, return that text's pieces.

        Another part that differs in that piece alone then adds its own piece to that list and nothing more.
        """
        changed = self._take_generated(part)
        for name, value in part.items():
            if value == NULL:
                self._members.setdefault(name, NULL)
            elif name == "logprobs":
                self._take_logprobs(members_of(value))
                changed = None
            elif name == "finish_reason":
                keep(self._members, name, value)
            elif name not in STREAM_ONLY:
                keep_once(self._members, name, value)
                changed = None if is_piecewise(value) else changed
        return changed

    def whole(self, index: int) -> dict[str, object]:
        """Return the choice as a whole answer has it."""
        members: dict[str, object] = {**self._generated(index), **self._members}
        if self._logprobs is not None:
            members["logprobs"] = {name: list_of(pieces) for name, pieces in self._logprobs.items()}
        if not string_of(self._members.get("finish_reason", NULL)):
            raise Inexact
        return members

    def _take_generated(self, part: Members) -> list[bytes] | None:
        return _gather(self._texts, "text", text_inside(part.pop("text", NULL)))

    def _generated(self, index: int) -> dict[str, object]:
        return {"text": _string_of(self._texts.get("text")), "index": index}

    def _take_logprobs(self, logprobs: Members) -> None:
        if self._logprobs is None:
            self._logprobs = {}
            self._members.setdefault("logprobs", NULL)
        for name, value in logprobs.items():
            if name not in LOGPROBS and value != NULL:
                raise Inexact
            _gather(self._logprobs, name, list_inside(value))


class ChatChoice(Choice):
    """One choice of a chat completion."""

    def __init__(self) -> None:
        super().__init__()
        self._message: Members = {}
        self._lists: _Pieces = {}
        self._calls: dict[int, _Call] = {}
        self._function: _Function | None = None

    def _take_generated(self, part: Members) -> list[bytes] | None:
        if "message" in part:
            raise Inexact
        delta = part.pop("delta", None)
        if delta is None:
            return None
        changed: list[list[bytes] | None] = []
        for name, value in members_of(delta).items():
            if name in TEXTS:
                piece = text_inside(value)
                found = _gather(self._texts, name, piece)
                if piece is not None:
                    changed.append(found)
            elif name == "role":
                keep(self._message, name, _ASSISTANT if value == NULL else value)
            elif value == NULL:
                self._message.setdefault(name, NULL)
            else:
                self._take_listed(name, value)
                changed.append(None)
        return changed[0] if len(changed) == 1 else None

    def _take_listed(self, name: str, value: msgspec.Raw) -> None:
        self._message.setdefault(name, NULL)
        if name == "tool_calls":
            _gather(self._lists, name, b"")
            for part in objects_of(value):
                index = index_of(part)
                self._calls.setdefault(index, _Call()).take(part)
        elif name == "annotations":
            _gather(self._lists, name, list_inside(value))
        elif name == "function_call":
            self._function = self._function or _Function()
            self._function.take(members_of(value))
        else:
            raise Inexact

    def _generated(self, index: int) -> dict[str, object]:
        has_content = any(self._texts.get(name) is not None for name in ("content", "refusal"))
        if not (has_content or self._calls or self._function):
            raise Inexact  # some servers write null in a stream that generates nothing, and "" in the whole answer
        message: dict[str, object] = {"role": _ASSISTANT, "content": NULL}
        message |= {name: text_of(pieces) for name, pieces in self._texts.items()}
        message |= self._message  # the role that was said, and what follows
        string_of(self._message.get("role", _ASSISTANT))
        message |= {name: list_of(pieces) for name, pieces in self._lists.items()}
        if self._calls:
            message["tool_calls"] = [self._calls[index].whole() for index in in_order(self._calls)]
        if self._function is not None:
            message["function_call"] = self._function.whole()
        return {"index": index, "message": message}


class _Function:
    """A function's name and arguments."""

    def __init__(self) -> None:
        self._members: Members = {}
        self._texts: _Pieces = {}

    def take(self, part: Members) -> None:
        for name, value in part.items():
            if name == "arguments":
                _gather(self._texts, name, text_inside(value))
            else:
                keep_once(self._members, name, value)

    def whole(self) -> dict[str, object]:
        string_of(self._members.get("name", NULL))
        return {**self._members, "arguments": _string_of(self._texts.get("arguments"))}


class _Call:
    """One tool call."""

    def __init__(self) -> None:
        self._members: Members = {}
        self._function = _Function()

    def take(self, part: Members) -> None:
        for name, value in part.items():
            if name == "function":
                self._function.take(members_of(value))
            elif name in {"id", "type"}:
                keep(self._members, name, value)
            else:
                keep_once(self._members, name, value)

    def whole(self) -> dict[str, object]:
        return {**self._members, "function": self._function.whole()}


def _gather(pieces: _Pieces, name: str, piece: bytes | None) -> list[bytes] | None:
    """Add a piece to those of a member; return them, or None where there was nothing to add."""
    known = pieces.setdefault(name, None)
    if piece is None:
        return None
    if known is None:
        pieces[name] = known = []
    known.append(piece)
    return known


def _string_of(pieces: list[bytes] | None) -> msgspec.Raw:
    if pieces is None:
        raise Inexact
    return text_of(pieces)
