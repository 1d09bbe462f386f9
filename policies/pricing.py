"""What tokens cost, in whole micro-dollars, and how amounts of USD are read and written (SPEC §5).

Knows prices and counts; where the counts come from is in `charges`. All rounding of money happens here, once a
request, upwards.
"""

from __future__ import annotations

from decimal import Decimal
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


def microdollars(usd: float) -> int:
    """Return an amount of USD as configured in whole micro-dollars: those of its decimal text, so that 0.1 is 100000.

    Raises ValueError for an amount with more than six decimals.
    """
    parts = Decimal(str(usd)) * _PARTS_PER_USD
    if parts != parts.to_integral_value():
        raise ValueError(f"{usd} USD is no whole number of micro-dollars; write at most six decimals, such as 0.000001")
    return int(parts)


def write_usd(microdollars: int) -> str:
    """Write whole micro-dollars in USD, exactly and without idle zeros: `0.0123 USD`, `5 USD`."""
    whole, parts = divmod(microdollars, _PARTS_PER_USD)
    return f"{whole}.{parts:06}".rstrip("0").rstrip(".") + " USD"


@lru_cache(maxsize=1024)
def _rates(input_usd: float, output_usd: float, cached_usd: float | None) -> tuple[int, int, int]:
    """Return prices in micro-dollars per million tokens."""
    in_, out = round(input_usd * _PARTS_PER_USD), round(output_usd * _PARTS_PER_USD)
    return in_, out, in_ if cached_usd is None else round(cached_usd * _PARTS_PER_USD)
