"""What of a chat's body its model reads, and how large that is (SPEC §5).

Knows messages and the types of their content parts; how those are measured is in `content_parts`. Knows no model and
no token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from policies.requests.content_parts import InputMeter, PartTypes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policies.requests.input_size import InputSize

_TYPES: Final = PartTypes(
    texts=frozenset({"text", "refusal"}),
    images={"image_url": ("image_url", "url")},
    sounds={"input_audio": ("input_audio", "data")},
    files={"file": ("file", "file_data")},
    untyped=frozenset({"text", "refusal", "image_url", "input_audio", "file"}),
)
_PARTS: Final = frozenset({"content"})
_SPEAKERS: Final = ("user", "assistant", "system", "developer")
"""Roles whose contents templates write as they are; what a tool answered, some write as JSON, which is longer."""


def chat_input_size(
    messages: Sequence[Mapping[str, Any]],
    other_bytes: int,
    *,
    prediction: Any = None,  # noqa: ANN401  any JSON value
    is_open: bool = False,
) -> InputSize:
    """Measure messages; `other_bytes` are those of the body's other members that are read, such as tools.

    Files count by their bytes. Open where `is_open` says so already, and where some of a message, or of the prediction
    that was counted with the other members, is only named, such as by a `file_id`: nobody here knows its size.
    """
    meter = InputMeter(_TYPES)
    for message in messages:
        meter.add_members(message, _PARTS, is_verbatim=message.get("role") in _SPEAKERS)
    is_open = is_open or any(map(_names_more, messages)) or _is_more_than_texts(prediction)
    return meter.size(texts=len(messages), other_bytes=other_bytes, is_open=is_open)


def _names_more(message: Mapping[str, Any]) -> bool:
    """Tell whether a message names what was spoken before, or has a content of no form that the API knows."""
    return message.get("audio") is not None or type(message.get("content")) is dict


def _is_more_than_texts(prediction: Any) -> bool:  # noqa: ANN401  any JSON value
    content = prediction.get("content") if type(prediction) is dict else None
    if type(content) is not list:
        return False
    meter = InputMeter(_TYPES)
    meter.add_parts(content)
    size = meter.size(texts=0, other_bytes=0)
    return size.is_open or size.images > 0
