"""What tokens cost, in whole micro-dollars, and how amounts of USD are read and written (SPEC §5).

Knows prices and counts; where the counts come from is in `charges`. All rounding of money happens here, once a
request, upwards; prices are not rounded.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from policies.catalog import Price

_PARTS_PER_USD: Final = 1_000_000


def cost_microdollars(
    price: Price | None, *, input_tokens: int, output_tokens: int, cached_input_tokens: int = 0
) -> int:
    """Return the cost of one request, rounded up; 0 for a model without a price.

    `cached_input_tokens` are part of `input_tokens` and have a price of their own where one is configured.
    """
    if price is None:
        return 0
    rates = _rates(price.input, price.output, price.cached_input)
    cached = min(cached_input_tokens, input_tokens)
    parts = (input_tokens - cached) * rates.input + cached * rates.cached_input + output_tokens * rates.output
    return -(-parts // rates.per_microdollar)


def most_cost_microdollars(price: Price | None, *, input_tokens: int, output_tokens: int) -> int:
    """Return the most that a request can cost, however much of its input the upstream has in its own cache."""
    is_cached_dearer = price is not None and price.cached_input is not None and price.cached_input > price.input
    return cost_microdollars(
        price,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_input_tokens=input_tokens if is_cached_dearer else 0,
    )


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


class _Rates(NamedTuple):
    """What a token costs, in parts of which `per_microdollar` are one micro-dollar."""

    input: int
    output: int
    cached_input: int
    per_microdollar: int


@lru_cache(maxsize=1024)
def _rates(input_usd: float, output_usd: float, cached_usd: float | None) -> _Rates:
    """Return prices per million tokens, which are micro-dollars per token, exactly as their decimals are written."""
    written = [Fraction(str(usd)) for usd in (input_usd, output_usd, input_usd if cached_usd is None else cached_usd)]
    per_microdollar = lcm(*(each.denominator for each in written))
    in_, out, cached = (int(each * per_microdollar) for each in written)
    return _Rates(in_, out, cached, per_microdollar)
