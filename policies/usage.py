"""Tokens read from an answer, and the usage record that every finished request leaves (SPEC §11).

Knows the shapes of `usage` objects and of the record; knows no price and no store.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer as its upstream reported them."""

    input_tokens: int
    output_tokens: int
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
