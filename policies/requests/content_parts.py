"""The parts that messages and items of an input consist of, and how large they are (SPEC §5).

Knows that only a part's own `type` makes it an image or a sound: everything else counts by its bytes, whatever its
members are called. What no API names, or lies elsewhere and is only named here, leaves the input open: nobody here
knows its size. Which types an endpoint has is said by its module. Knows no model and no token.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from policies.requests.input_size import InputSize, json_bytes, utf8_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_TEXT: Final = "text"
_BARE_PART_MEMBERS: Final = 2
"""A text part that is nothing but `type` and `text`."""
_IMAGE: Final = "image_url"
"""The member by which servers take a part for an image, whatever its type, or without one."""
_MEDIA_ELSEWHERE: Final = ("audio_url", "video_url")
"""Members by which servers take a part for what is no image and lies elsewhere."""
_FILES_ELSEWHERE: Final = ("file_id", "file_url")
_ADDRESS: Final = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")
"""How an address begins; base64 has no colon, and a data URL no slashes behind its own."""


@dataclass(frozen=True, slots=True)
class PartTypes:
    """The types of parts that an endpoint has.

    `images`, `sounds` and `files` name, by type, the member that holds the picture, sound or file, and the member in
    that if it is an object. `untyped` are the members of which one tells what a part without a type is.
    """

    texts: frozenset[str]
    images: Mapping[str, tuple[str, str]]
    sounds: Mapping[str, tuple[str, str]]
    files: Mapping[str, tuple[str, str]]
    untyped: frozenset[str]

    def are_all_here(self, part: Mapping[str, Any]) -> bool:
        """Tell whether a part that is no image is of a kind that is known, and holds all that it stands for."""
        kind = part.get("type")
        if kind is None:
            is_known = _has_any(part, self.untyped)
        else:
            is_known = type(kind) is str and any(kind in kinds for kinds in (self.texts, self.sounds, self.files))
        held = (
            _is_held(part, member, inner)
            for holding in (self.sounds, self.files)
            for its, (member, inner) in holding.items()
            if its == kind or part.get(member) is not None
        )
        return is_known and not _has_any(part, _MEDIA_ELSEWHERE) and all(held)


class InputMeter:
    """Adds up what an input consists of."""

    __slots__ = ("_audio_bytes", "_images", "_is_open", "_texts", "_types", "_values", "_verbatim")

    def __init__(self, types: PartTypes) -> None:
        self._types = types
        self._texts: list[str] = []
        self._verbatim: list[str] = []
        self._values: list[Any] = []
        self._images = 0
        self._audio_bytes = 0
        self._is_open = False

    def add(self, value: Any) -> None:  # noqa: ANN401  any JSON value
        """Count a value by its bytes; the model reads a text as it is."""
        if type(value) is str:
            self._verbatim.append(value)
        elif value is not None:
            self._values.append(value)

    def add_members(self, item: Mapping[str, Any], parts: frozenset[str], *, is_verbatim: bool) -> None:
        """Count an object's members by their bytes, but those lists that hold parts part by part.

        Where `is_verbatim`, the model reads the texts of parts, and of members that would hold them, as they are.
        """
        before = len(self._verbatim)
        self._texts.extend(item)
        for name, value in item.items():
            if type(value) is str:
                (self._verbatim if name in parts else self._texts).append(value)
            elif name in parts and type(value) is list:
                self.add_parts(value)
            else:
                self.add(value)
        if not is_verbatim:
            self._texts += self._verbatim[before:]
            del self._verbatim[before:]

    def add_parts(self, parts: Iterable[Any]) -> None:
        """Count parts, each as what its type says it is."""
        for part in parts:
            if type(part) is dict:
                self._add_part(part)
            else:
                self._values.append(part)
                self._is_open = self._is_open or type(part) is not str

    def _add_part(self, part: Mapping[str, Any]) -> None:
        types, kind = self._types, part.get("type")
        if type(kind) is not str:
            self._add_other(part)
        elif kind in types.texts and len(part) == _BARE_PART_MEMBERS and type(part.get(_TEXT)) is str:
            self._verbatim.append(part[_TEXT])
        elif kind in types.images:
            self.add_image(part, *types.images[kind])
            self._is_open = self._is_open or _has_any(part, _MEDIA_ELSEWHERE)
        elif kind in types.sounds:
            rest, data_bytes = _without(part, *types.sounds[kind])
            self._audio_bytes += data_bytes
            self._values.append(rest)
            self._is_open = self._is_open or not types.are_all_here(part)
        else:
            self._add_other(part)

    def _add_other(self, part: Mapping[str, Any]) -> None:
        self._values.append(part)
        self._images += part.get(_IMAGE) is not None
        self._is_open = self._is_open or not self._types.are_all_here(part)

    def add_image(self, holder: Mapping[str, Any], member: str, inner: str = "") -> None:
        """Count an object that holds an image; the picture itself is in no byte."""
        self._images += 1
        self._values.append(_without(holder, member, inner)[0])

    def size(self, *, texts: int, other_bytes: int, is_open: bool = False) -> InputSize:
        """Return the sum; `other_bytes` are those of all else that is read as text.

        Open where `is_open` says so already, and where a part is only named.
        """
        return InputSize(
            text_bytes=utf8_bytes([*self._texts, *self._verbatim])
            + (json_bytes(self._values) if self._values else 0)
            + other_bytes,
            texts=texts,
            images=self._images,
            audio_bytes=self._audio_bytes,
            is_open=is_open or self._is_open,
            verbatim=tuple(self._verbatim),
        )


def _without(part: Mapping[str, Any], member: str, inner: str) -> tuple[Mapping[str, Any], int]:
    """Return a part less the one string that holds its image or sound, and that string's length."""
    held = part.get(member)
    if type(held) is str:
        return {**part, member: ""}, len(held)
    if type(held) is dict and type(data := held.get(inner)) is str:
        return {**part, member: {**held, inner: ""}}, len(data)
    return part, 0


def _has_any(part: Mapping[str, Any], names: Iterable[str]) -> bool:
    return any(part.get(name) is not None for name in names)


def _is_held(part: Mapping[str, Any], member: str, inner: str) -> bool:
    """Tell whether a part holds its sound or file, and names none: no server says which of the two it would take."""
    held = part.get(member)
    holder = held if type(held) is dict else part
    data = holder.get(inner) if holder is held else held
    is_named = _has_any(part, _FILES_ELSEWHERE) or _has_any(holder, _FILES_ELSEWHERE)
    return type(data) is str and not is_named and _ADDRESS.match(data) is None
