"""What tokens cost, in whole micro-dollars (SPEC §5).

Knows prices and counts; where the counts come from is in `charges`. All rounding of money happens here, once a
request, upwards.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from policies.catalog import Price

_TOKENS_PER_PRICE: Final = 1_000_000
_PARTS_PER_USD: Final = 1_000_000


def cost_microdollars(
    price: Price | None, *, input_tokens: int, output_tokens: int, cached_input_tokens: int = 0
) -> int:
    """Return the cost of one request, rounded up; 0 for a model without a price.

    `cached_input_tokens` are part of `input_tokens` and have a price of their own where one is configured.
    """
    if price is None:
        return 0
    input_price, output_price, cached_price = _rates(price.input, price.output, price.cached_input)
    cached = min(cached_input_tokens, input_tokens)
    parts = (input_tokens - cached) * input_price + cached * cached_price + output_tokens * output_price
    return -(-parts // _TOKENS_PER_PRICE)


@lru_cache(maxsize=1024)
def _rates(input_usd: float, output_usd: float, cached_usd: float | None) -> tuple[int, int, int]:
    """Return prices in micro-dollars per million tokens."""
    in_, out = round(input_usd * _PARTS_PER_USD), round(output_usd * _PARTS_PER_USD)
    return in_, out, in_ if cached_usd is None else round(cached_usd * _PARTS_PER_USD)
