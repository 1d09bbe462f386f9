"""What a request may cost at most, before it is sent, and what it did cost, after.

Knows the factors (prompts, n, best_of, token ceiling) and the price; knows no limit and no window.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorstCase:
    """The most a request can take: tokens as counts, cost in whole micro-dollars (0 for a model without price)."""

    input_tokens: int
    output_tokens: int
    cost_microdollars: int

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens
