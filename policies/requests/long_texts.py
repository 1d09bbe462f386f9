"""Long texts in a request's members, and what stands for them where looking at every character would cost too much.

Knows that nearly all of a long body is a few texts near its top, such as a prompt or what messages say, and neither
what they are nor what is done to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

LONG_CHARACTERS: Final = 4_096
"""A text of so many is long."""
_MAX_ITEMS: Final = 32
"""Longer arrays are left alone: a walk through them would take longer than it saves."""
_MAX_LEVELS: Final = 5
"""Members, messages, their members, parts, and those of parts."""


def replace_long_texts(value: Any, write: Callable[[str], object], *, levels: int = _MAX_LEVELS) -> Any:  # noqa: ANN401  JSON values
    """Return a JSON value with what `write` makes of each long text in place of the text.

    Keys stay, and so do texts further down than `levels` or in arrays of many items: what is left in place is as it
    was.
    """
    kind = type(value)
    if kind is str:
        return write(value) if len(value) >= LONG_CHARACTERS else value
    if levels and kind is dict:
        return {name: replace_long_texts(each, write, levels=levels - 1) for name, each in value.items()}
    if levels and kind is list and len(value) <= _MAX_ITEMS:
        return [replace_long_texts(each, write, levels=levels - 1) for each in value]
    return value
