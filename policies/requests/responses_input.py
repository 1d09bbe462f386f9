"""What of a response's request its model reads, how large that is, and what of it is only named (SPEC §5).

Knows the items of an input and the types of their parts; how those are measured is in `content_parts`. Knows no model
and no token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from policies.requests.content_parts import InputMeter, PartTypes
from policies.requests.tools import has_hosted_tool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policies.requests.input_size import InputSize

_TYPES: Final = PartTypes(
    texts=frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal"}),
    images={"input_image": ("image_url", "url"), "computer_screenshot": ("image_url", "url")},
    sounds={"input_audio": ("input_audio", "data")},
    files={"input_file": ("file_data", "")},
    untyped=frozenset({"text", "refusal", "image_url", "input_audio", "file_data", "stdout"}),
)
_PARTS: Final = frozenset({"content", "output", "summary"})
_SCREENSHOT: Final = frozenset({"type", "image_url"})
"""Members by which an output that is an object is told to be a part by itself."""
_MESSAGES: Final = (None, "message")
"""Types of items whose texts are read as they are."""
_NAMED_ITEMS: Final = ("item_reference", "code_interpreter_call", "compaction", "file_search_call", "web_search_call")
"""Items that stand for what the upstream keeps: more than their bytes."""


def responses_input_size(
    given: str | Sequence[Mapping[str, Any]] | None, instructions: str | None, other_bytes: int, *, is_open: bool
) -> InputSize:
    """Measure an input and its instructions; `other_bytes` are those of the body's other members that are read.

    Open where `is_open` says so already, and where items, or parts of them such as files, are only named.
    """
    meter = InputMeter(_TYPES)
    meter.add(instructions)
    texts = int(instructions is not None)
    if given is None or isinstance(given, str):
        meter.add(given)
        return meter.size(texts=texts + int(given is not None), other_bytes=other_bytes, is_open=is_open)
    for item in given:
        _add_item(meter, item)
    is_open = is_open or any(map(_is_named, given))
    return meter.size(texts=texts + len(given), other_bytes=other_bytes, is_open=is_open)


def _add_item(meter: InputMeter, item: Mapping[str, Any]) -> None:
    if item.get("type") == "image_generation_call":
        meter.add_image(item, "result")
        return
    output = item.get("output")
    if type(output) is dict and not _SCREENSHOT.isdisjoint(output):
        item = {**item, "output": [output]}
    meter.add_members(item, _PARTS, is_verbatim=item.get("type") in _MESSAGES)


def _is_named(item: Mapping[str, Any]) -> bool:
    """Tell whether an item as a whole is only named, or brings a tool in that runs upstream.

    A reference may leave its type out; reasoning that does not hold its text, encrypted or not, is kept upstream.
    """
    kind = item.get("type")
    if kind == "reasoning":
        return "id" in item and all(item.get(name) is None for name in ("content", "encrypted_content"))
    if kind == "additional_tools":
        return has_hosted_tool(item.get("tools"))
    return kind in _NAMED_ITEMS or (kind is None and "content" not in item)
