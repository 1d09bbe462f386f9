"""The parts that messages and items of an input consist of, and how large they are (SPEC §5).

Knows that only a part's own `type` makes it an image or a sound: everything else counts by its bytes, whatever its
members are called. Which types an endpoint has is said by its module. Knows no model and no token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from policies.requests.input_size import InputSize, json_bytes, utf8_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_TEXT: Final = "text"
_BARE_PART_MEMBERS: Final = 2
"""A text part that is nothing but `type` and `text`."""


@dataclass(frozen=True, slots=True)
class PartTypes:
    """The types of parts that an endpoint has.

    `images` and `sounds` name, by type, the member that holds the picture or sound, and the member in that if it is
    an object.
    """

    texts: frozenset[str]
    images: Mapping[str, tuple[str, str]]
    sounds: Mapping[str, tuple[str, str]]


class InputMeter:
    """Adds up what an input consists of."""

    __slots__ = ("_audio_bytes", "_images", "_texts", "_types", "_values")

    def __init__(self, types: PartTypes) -> None:
        self._types = types
        self._texts: list[str] = []
        self._values: list[Any] = []
        self._images = 0
        self._audio_bytes = 0

    def add(self, value: Any) -> None:  # noqa: ANN401  any JSON value
        """Count a value by its bytes."""
        if type(value) is str:
            self._texts.append(value)
        elif value is not None:
            self._values.append(value)

    def add_members(self, item: Mapping[str, Any], parts: frozenset[str]) -> None:
        """Count an object's members by their bytes, but those lists that hold parts part by part."""
        self._texts.extend(item)
        for name, value in item.items():
            if type(value) is str:
                self._texts.append(value)
            elif name in parts and type(value) is list:
                self.add_parts(value)
            else:
                self.add(value)

    def add_parts(self, parts: Iterable[Any]) -> None:
        """Count parts, each as what its type says it is."""
        types = self._types
        for part in parts:
            kind = part.get("type") if type(part) is dict else None
            if type(kind) is not str:
                self._values.append(part)
            elif kind in types.texts and len(part) == _BARE_PART_MEMBERS and type(part.get(_TEXT)) is str:
                self._texts.append(part[_TEXT])
            elif kind in types.images:
                self.add_image(part, *types.images[kind])
            elif kind in types.sounds:
                rest, data_bytes = _without(part, *types.sounds[kind])
                self._audio_bytes += data_bytes
                self._values.append(rest)
            else:
                self._values.append(part)

    def add_image(self, holder: Mapping[str, Any], member: str, inner: str = "") -> None:
        """Count an object that holds an image; the picture itself is in no byte."""
        self._images += 1
        self._values.append(_without(holder, member, inner)[0])

    def size(self, *, texts: int, other_bytes: int, is_open: bool = False) -> InputSize:
        """Return the sum; `other_bytes` are those of all else that is read as text."""
        return InputSize(
            text_bytes=utf8_bytes(self._texts) + (json_bytes(self._values) if self._values else 0) + other_bytes,
            texts=texts,
            images=self._images,
            audio_bytes=self._audio_bytes,
            is_open=is_open,
        )


def _without(part: Mapping[str, Any], member: str, inner: str) -> tuple[Mapping[str, Any], int]:
    """Return a part less the one string that holds its image or sound, and that string's length."""
    held = part.get(member)
    if type(held) is str:
        return {**part, member: ""}, len(held)
    if type(held) is dict and type(data := held.get(inner)) is str:
        return {**part, member: {**held, inner: ""}}, len(data)
    return part, 0
