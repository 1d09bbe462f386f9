"""What of a response's request its model reads, how large that is, and what of it is only named (SPEC §5).

Knows the items of an input and the types of their parts; how those are measured is in `content_parts`. Knows no model
and no token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from policies.requests.content_parts import InputMeter, PartTypes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from policies.requests.input_size import InputSize

_TYPES: Final = PartTypes(
    texts=frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"}),
    images={"input_image": ("image_url", "url"), "computer_screenshot": ("image_url", "url")},
    sounds={"input_audio": ("input_audio", "data")},
)
_PARTS: Final = frozenset({"content", "output", "summary"})
_NAMED_ITEMS: Final = ("item_reference", "code_interpreter_call", "compaction", "file_search_call", "web_search_call")
"""Items that stand for what the upstream keeps: more than their bytes."""
_NAMED_FILES: Final = ("file_id", "file_url")
"""Members of an `input_file` that name a file instead of holding it."""


def responses_input_size(
    given: str | Sequence[Mapping[str, Any]] | None, instructions: str | None, other_bytes: int, *, is_open: bool
) -> InputSize:
    """Measure an input and its instructions; `other_bytes` are those of the body's other members that are read.

    Open where `is_open` says so already, and where items or files are only named.
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
    if type(output) is dict:  # a screenshot, which is a part by itself
        item = {**item, "output": [output]}
    meter.add_members(item, _PARTS)


def _is_named(item: Mapping[str, Any]) -> bool:
    """Tell whether an item, or a file in it, is only named; a reference may leave its type out."""
    kind = item.get("type")
    if kind is None and "content" not in item:
        return True
    return kind in _NAMED_ITEMS or any(map(_names_file, _parts_of(item)))


def _parts_of(item: Mapping[str, Any]) -> Iterable[Any]:
    for name in _PARTS:
        if type(held := item.get(name)) is list:
            yield from held


def _names_file(part: Any) -> bool:  # noqa: ANN401  any JSON value
    if type(part) is not dict or part.get("type") != "input_file":
        return False
    return any(part.get(name) is not None for name in _NAMED_FILES)
