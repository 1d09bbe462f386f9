"""Chunks gathered into the whole answer of completions and chat completions, piece by piece.

Knows what of a chunk is of the whole answer; what is of one choice is put together in `gathered_choices`. What nobody
can place raises Inexact. Knows nothing of event streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from policies.requests.asked import Endpoint
from proxy.wire.gathered_choices import STREAM_ONLY, ChatChoice, Choice, in_order, index_of
from proxy.wire.raw_json import NULL, Inexact, Members, keep, members_of, objects_of, string_of

if TYPE_CHECKING:
    from collections.abc import Sequence

OBJECTS: Final = {
    Endpoint.COMPLETIONS: ("text_completion", "text_completion"),
    Endpoint.CHAT: ("chat.completion", "chat.completion.chunk"),
}
"""How each family names its `object`, whole and in chunks."""

FIRST_MEMBERS: Final = ("id", "object", "created", "model")
_LATEST: Final = ("created", "timings")
"""What some servers read from their clocks anew for a chunk: the last one is of the whole answer."""


def renamed(members: Members, name: str, new_name: str) -> Members:
    """Return an answer's members with the other form's `object`, if they have one; Inexact if theirs is not `name`."""
    if "object" not in members:
        return members
    if string_of(members["object"]) != name:
        raise Inexact
    return {**members, "object": msgspec.Raw(msgspec.json.encode(new_name))}


class GatheredAnswer:
    """One answer, as far as its chunks have come. `take` raises Inexact or msgspec.DecodeError."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._members: Members = {}
        self._usages: dict[int | None, msgspec.Raw] = {}
        self._choices: dict[int, Choice] = {}

    def take(self, data: bytes) -> list[bytes] | None:
        """Take one chunk. Where it adds nothing but one piece of text, return the pieces of that text.

        Another chunk that differs in that piece alone then adds its own piece to that list and nothing more.
        """
        chunk = members_of(data)
        parts = objects_of(chunk.pop("choices", NULL))
        indexes = [index_of(part) for part in parts]
        self._take_usage(chunk.pop("usage", None), indexes)
        self._take_members(chunk)
        changed = [self._choice(index).take(part) for index, part in zip(indexes, parts, strict=True)]
        return changed[0] if len(changed) == 1 else None

    def whole(self) -> bytes:
        """Write the whole answer. Raises Inexact where one of its choices is not finished or missing."""
        if not self._choices:
            raise Inexact
        members = renamed(self._members, *reversed(OBJECTS[self._endpoint]))
        first = {name: members[name] for name in FIRST_MEMBERS if name in members}
        choices = [self._choices[index].whole(index) for index in in_order(self._choices)]
        # What stands in `first` keeps its place there.
        return msgspec.json.encode({**first, "choices": choices, **self._usage(), **members})

    def _take_usage(self, usage: msgspec.Raw | None, indexes: Sequence[int]) -> None:
        """Note a usage under the choice that it came with, None for all: some servers count on in every chunk."""
        if usage is None:
            return
        whose = indexes[0] if indexes else None
        if usage == NULL:
            self._usages.setdefault(whose, NULL)
        elif whose is None and self._usages.get(None, usage) not in (usage, NULL):
            raise Inexact
        else:
            self._usages[whose] = usage

    def _usage(self) -> dict[str, object]:
        """Return the usage of all. Raises Inexact where each choice has told its own."""
        of_all = self._usages.get(None, NULL)
        told = [usage for usage in self._usages.values() if usage != NULL] if of_all == NULL else [of_all]
        if any(usage != told[0] for usage in told):
            raise Inexact
        if told:
            members_of(told[0])
        return {"usage": told[0] if told else NULL} if self._usages else {}

    def _take_members(self, chunk: Members) -> None:
        for name, value in chunk.items():
            if name in _LATEST:
                if name not in self._members or bytes(value) not in {b"0", b"null"}:
                    self._members[name] = value
            elif name == "error" and value != NULL:
                raise Inexact
            elif name not in STREAM_ONLY:
                keep(self._members, name, value)

    def _choice(self, index: int) -> Choice:
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = ChatChoice() if self._endpoint is Endpoint.CHAT else Choice()
        return choice
