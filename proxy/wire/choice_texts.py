"""The texts of an answer's choices, kept while it passes, so that a tokenizer can count what nobody reports.

Knows choices, pieces and how much may be kept; no event, no vocabulary and no request.
"""

from __future__ import annotations

from typing import Final

MOST_KEPT_BYTES: Final = 128 * 1024
"""UTF-8 bytes of all choices together: about as much as is counted of an input."""


class ChoiceTexts:
    """What was generated of each choice, its pieces joined: words have other tokens in pieces.

    `candidates` are the choices that an answer may have; `left_out_bytes` the UTF-8 bytes of what is not kept, since
    there was too much, or nothing said of which choice it was.
    """

    __slots__ = ("_candidates", "_kept", "_left", "left_out_bytes")

    def __init__(self, candidates: int) -> None:
        self._candidates = candidates
        self._kept: dict[int, bytearray] = {}
        self._left = MOST_KEPT_BYTES
        self.left_out_bytes = 0

    @property
    def are_of_one(self) -> bool:
        """Whether there is one choice, so that every piece is of it."""
        return self._candidates == 1

    def add(self, choice: int | None, text: bytes) -> None:
        """Add a piece, in UTF-8, to what choice 0, 1, … has; None is one that nobody knows."""
        if choice is None or not 0 <= choice < self._candidates:
            self.left_out_bytes += len(text)
            return
        kept = text[: self._left]
        self._left -= len(kept)
        self.left_out_bytes += len(text) - len(kept)
        if kept:
            self._kept.setdefault(choice, bytearray()).extend(kept)

    def joined(self) -> tuple[str, ...]:
        """Return the text of each choice that has any."""
        return tuple(text.decode("utf-8", "ignore") for text in self._kept.values())  # the last may be cut in a letter
