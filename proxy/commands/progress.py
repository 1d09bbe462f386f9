"""How far something has come, told on standard error: a bar on a terminal, else a line now and then.

Knows widths and pauses; what is told beside the bar is made by whoever goes on.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final, Self

from proxy.commands.table import WIDTH, cut, printable, width_of

if TYPE_CHECKING:
    from typing import TextIO

_BAR_CHARACTERS: Final = 24
_FULL: Final = "█"
_EMPTY: Final = "░"
_PAUSE_SECONDS: Final = 0.1
_LINE_PAUSE_SECONDS: Final = 10.0


class Progress:
    """Of `total` steps, or of an unknown number (None), how many are done; used with `with`."""

    def __init__(self, label: str, total: int | None, stream: TextIO | None = None) -> None:
        """Begin with nothing done; `stream` is standard error unless given."""
        self._label = label
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._told_at = float("-inf") if self._is_terminal else time.monotonic()
        self._width = 0

    def __enter__(self) -> Self:
        """Show nothing yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away: what came of it is told elsewhere."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()

    def show(self, done: int, words: str) -> None:
        """Tell how much is done, and what came of it in a few words, unless that was told just now."""
        now = time.monotonic()
        if now - self._told_at < (_PAUSE_SECONDS if self._is_terminal else _LINE_PAUSE_SECONDS):
            return
        self._told_at = now
        text = cut(printable(f"{self._label} {self._count(done)}  {words}".rstrip()), WIDTH - 1)
        if self._is_terminal:
            self._stream.write("\r" + text + " " * (self._width - width_of(text)))
            self._width = width_of(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def _count(self, done: int) -> str:
        if not self._total:
            return str(done)
        if not self._is_terminal:
            return f"{done} of {self._total}"
        full = min(_BAR_CHARACTERS, _BAR_CHARACTERS * done // self._total)
        return f"{_FULL * full}{_EMPTY * (_BAR_CHARACTERS - full)} {done}/{self._total}"
