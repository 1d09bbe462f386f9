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
    texts=frozenset({"text"}),
    images={"image_url": ("image_url", "url")},
    sounds={"input_audio": ("input_audio", "data")},
)
_PARTS: Final = frozenset({"content"})


def chat_input_size(messages: Sequence[Mapping[str, Any]], other_bytes: int) -> InputSize:
    """Measure messages; `other_bytes` are those of the body's other members that are read, such as tools.

    Files count by their bytes, and what is only named, such as a `file_id`, by its name: nobody here knows its size.
    """
    meter = InputMeter(_TYPES)
    for message in messages:
        meter.add_members(message, _PARTS)
    return meter.size(texts=len(messages), other_bytes=other_bytes)
