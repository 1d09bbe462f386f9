"""Rows of text as aligned columns for a terminal, and the sections and labelled lines around them.

Knows widths of characters and no command; what stands in the cells is not its business.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final
from unicodedata import combining, east_asian_width

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

WIDTH: Final = 100
"""Columns of a terminal that everything fits in."""

LABEL_WIDTH: Final = 13
"""Columns that a label takes, the gap behind it included."""
INDENT: Final = "  "
"""In front of what stands below a title."""

_GAP: Final = "  "
_MICRODOLLARS_PER_USD: Final = 1_000_000
_NARROWEST: Final = 8
"""A column that has to give room keeps so much."""
_CHARACTERS_LOOKED_AT: Final = 4
"""Of a cell, per column of the terminal: some characters take no column, and a cell may be as long as a request."""
_CUT: Final = "…"


def printable(text: str) -> str:
    """Show control characters as escapes, so that nothing a client sent or named can steer a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def usd(microdollars: int) -> str:
    """Write micro-dollars in USD with all their decimals, so that they stand below each other."""
    return f"{microdollars // _MICRODOLLARS_PER_USD}.{microdollars % _MICRODOLLARS_PER_USD:06d}"


def width_of(text: str) -> int:
    """Return how many columns a printable text takes."""
    return sum(_columns(character) for character in text)


def cut(text: str, width: int) -> str:
    """Return a printable text that takes at most `width` columns; where something was left out, it ends in `…`."""
    if width_of(text) <= width:
        return text
    taken, kept = 1, []
    for character in text:
        taken += _columns(character)
        if taken > width:
            break
        kept.append(character)
    return "".join(kept) + _CUT


def lay_out(
    rows: Sequence[Sequence[str]], *, right: Collection[int] = (), width: int = WIDTH, indent: str = ""
) -> Iterator[str]:
    """Yield a line for each row, its cells aligned; columns in `right` hold numbers: to the right, and never cut.

    Rows have the same number of cells. What is too wide is cut in the widest columns.
    """
    shown = [[_shown(cell, width) for cell in row] for row in rows]
    widths = [max(map(width_of, column)) for column in zip(*shown, strict=True)]
    flexible = [column for column in range(len(widths)) if column not in right]
    _narrow(widths, width - len(indent) - len(_GAP) * (len(widths) - 1), flexible)
    for row in shown:
        cells = (_fill(cell, widths[column], is_right=column in right) for column, cell in enumerate(row))
        yield (indent + _GAP.join(cells)).rstrip()


def section(
    title: str, rows: Iterable[Sequence[str]], right: Sequence[int] = (), *, width: int = WIDTH
) -> Iterator[str]:
    """Yield an empty line and a table below its title; where there are no rows, that it is none."""
    listed = list(rows)
    yield ""
    if not listed:
        yield from labelled(title, ["none"])
        return
    yield title
    yield from lay_out(listed, right=right, width=width, indent=INDENT)


def labelled(label: str, texts: Iterable[str]) -> Iterator[str]:
    """Yield texts beside their label, each from a line of its own on."""
    lines = (line for text in texts for line in wrapped(text, " " * LABEL_WIDTH))
    for position, line in enumerate(lines):
        yield line if position else label.ljust(LABEL_WIDTH) + line[LABEL_WIDTH:]


def wrapped(text: str, indent: str) -> list[str]:
    """Return the lines of a text, each behind an indent."""
    return textwrap.wrap(printable(text), WIDTH, initial_indent=indent, subsequent_indent=indent)


def _shown(cell: str, width: int) -> str:
    longest = _CHARACTERS_LOOKED_AT * width
    return printable(cell if len(cell) <= longest else cell[:longest] + _CUT)


def _columns(character: str) -> int:
    if combining(character):
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def _narrow(widths: list[int], room: int, flexible: Sequence[int]) -> None:
    """Take from the widest columns until the sum fits, as far as they can give."""
    while sum(widths) > room and (wide := [column for column in flexible if widths[column] > _NARROWEST]):
        widths[max(wide, key=widths.__getitem__)] -= 1


def _fill(cell: str, width: int, *, is_right: bool) -> str:
    cell = cut(cell, width)
    padding = " " * (width - width_of(cell))
    return padding + cell if is_right else cell + padding
