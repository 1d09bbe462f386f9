"""What `--by` takes: one or several names, joined by commas.

Knows no name itself.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


def several_of(names: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Return what reads an argument as some of these names, each once; it says of another that it is none."""

    def read(text: str) -> tuple[str, ...]:
        given = tuple(part.strip() for part in text.split(","))
        for each in given:
            if each not in names:
                raise ArgumentTypeError(f"{each!r} is none of {', '.join(names)}")
        return tuple(dict.fromkeys(given))

    return read
