"""What of a chat's body its model reads, and how large that is (SPEC §5).

Knows messages, their content parts, and that only a part's own `type` makes it an image or a sound: everything else
counts by its bytes, whatever its members are called. Knows no model and no token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from policies.requests.input_size import InputSize, json_bytes, utf8_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_TEXT: Final = "text"
_IMAGE: Final = "image_url"
_AUDIO: Final = "input_audio"
_BARE_PART_MEMBERS: Final = 2
"""A text part that is nothing but `type` and `text`."""


def chat_input_size(messages: Sequence[Mapping[str, Any]], other_bytes: int) -> InputSize:
    """Measure messages; `other_bytes` are those of the body's other members that are read, such as tools.

    Files count by their bytes, and what is only named, such as a `file_id`, by its name: nobody here knows its size.
    """
    texts: list[str] = []
    values: list[Any] = []
    parts: list[Any] = []
    for message in messages:
        texts.extend(message)
        for name, value in message.items():
            if type(value) is str:
                texts.append(value)
            elif name == "content" and type(value) is list:
                parts.extend(value)
            elif value is not None:
                values.append(value)
    images, audio_bytes = _sort_parts(parts, texts, values)
    return InputSize(
        text_bytes=utf8_bytes(texts) + (json_bytes(values) if values else 0) + other_bytes,
        texts=len(messages),
        images=images,
        audio_bytes=audio_bytes,
    )


def _sort_parts(parts: Iterable[Any], texts: list[str], values: list[Any]) -> tuple[int, int]:
    """Add content parts to the texts or the JSON values; return how many images and bytes of sound are in neither."""
    images = audio_bytes = 0
    for part in parts:
        kind = part.get("type") if type(part) is dict else None
        if kind is None:
            values.append(part)
        elif kind == _TEXT and len(part) == _BARE_PART_MEMBERS and type(part.get(_TEXT)) is str:
            texts.append(part[_TEXT])
        elif kind == _IMAGE:
            images += 1
            values.append(_without(part, _IMAGE, "url")[0])
        elif kind == _AUDIO:
            rest, data_bytes = _without(part, _AUDIO, "data")
            audio_bytes += data_bytes
            values.append(rest)
        else:
            values.append(part)
    return images, audio_bytes


def _without(part: dict[str, Any], member: str, inner: str) -> tuple[dict[str, Any], int]:
    """Return a part less the one string that holds its image or sound, and that string's length."""
    held = part.get(member)
    if type(held) is str:
        return {**part, member: ""}, len(held)
    if type(held) is dict and type(data := held.get(inner)) is str:
        return {**part, member: {**held, inner: ""}}, len(data)
    return part, 0
