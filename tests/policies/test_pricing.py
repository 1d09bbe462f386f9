from __future__ import annotations

import pytest

from policies.catalog import Price
from policies.pricing import cost_microdollars


@pytest.mark.parametrize(
    ("price", "counts", "cost"),
    [
        pytest.param(None, (10**6, 10**6, 0), 0, id="no price is free"),
        pytest.param(Price(input=1.5, output=2.0), (1_000_000, 0, 0), 1_500_000, id="a million tokens cost the price"),
        pytest.param(Price(input=1.5, output=2.0), (1, 0, 0), 2, id="rounded up to whole micro-dollars"),
        pytest.param(Price(input=1.5, output=2.0), (1, 1, 0), 4, id="once a request, not once a factor"),
        pytest.param(Price(input=0.1, output=0.0), (30, 7, 0), 3, id="decimal prices are exact"),
        pytest.param(
            Price(input=2.0, output=0.0, cached_input=0.5), (10, 0, 4), 14, id="cached input has its own price"
        ),
        pytest.param(Price(input=2.0, output=0.0), (10, 0, 4), 20, id="or the input's"),
        pytest.param(Price(input=2.0, output=0.0, cached_input=0.0), (4, 0, 9), 0, id="and is at most the input"),
        pytest.param(Price(input=10.0, output=30.0), (10**13, 10**13, 0), 4 * 10**14, id="large counts stay exact"),
    ],
)
def test_costs(price: Price | None, counts: tuple[int, int, int], cost: int) -> None:
    input_tokens, output_tokens, cached = counts
    found = cost_microdollars(price, input_tokens=input_tokens, output_tokens=output_tokens, cached_input_tokens=cached)
    assert found == cost
