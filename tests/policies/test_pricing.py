from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.catalog import Price
from policies.pricing import cost_microdollars, microdollars, most_cost_microdollars, write_usd


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
        pytest.param(Price(input=0.0000004, output=0.0), (10, 0, 0), 1, id="a price of many decimals is no gift"),
        pytest.param(Price(input=0.3333333, output=0.0), (3_000_000, 0, 0), 1_000_000, id="nor rounded by itself"),
        pytest.param(Price(input=0.3333333, output=0.0), (10**7, 0, 0), 3_333_333, id="it is exact"),
        pytest.param(Price(input=1, output=2), (3, 4, 0), 11, id="prices in whole dollars"),
        pytest.param(Price(input=10.0, output=30.0), (10**13, 10**13, 0), 4 * 10**14, id="large counts stay exact"),
    ],
)
def test_costs(price: Price | None, counts: tuple[int, int, int], cost: int) -> None:
    input_tokens, output_tokens, cached = counts
    found = cost_microdollars(price, input_tokens=input_tokens, output_tokens=output_tokens, cached_input_tokens=cached)
    assert found == cost


@pytest.mark.parametrize(
    ("price", "cost"),
    [
        pytest.param(None, 0, id="no price is free"),
        pytest.param(Price(input=1.5, output=2.0), 15 + 8, id="no input is from the upstream's cache"),
        pytest.param(Price(input=1.5, output=2.0, cached_input=0.1), 15 + 8, id="which is cheaper"),
        pytest.param(Price(input=1.5, output=2.0, cached_input=3.0), 30 + 8, id="or all is, where it is dearer"),
    ],
)
def test_most_that_input_and_output_can_cost(price: Price | None, cost: int) -> None:
    assert most_cost_microdollars(price, input_tokens=10, output_tokens=4) == cost


AMOUNTS = st.integers(0, 10**9).map(lambda parts: parts / 10**6)
COUNTS = st.integers(0, 10**7)


@given(
    price=st.builds(Price, input=AMOUNTS, output=AMOUNTS, cached_input=st.none() | AMOUNTS),
    most=st.tuples(COUNTS, COUNTS),
    data=st.data(),
)
def test_nothing_costs_more_than_the_most(price: Price, most: tuple[int, int], data: st.DataObject) -> None:
    input_tokens, output_tokens = (data.draw(st.integers(0, each)) for each in most)
    cached = data.draw(st.integers(0, input_tokens))
    cost = cost_microdollars(price, input_tokens=input_tokens, output_tokens=output_tokens, cached_input_tokens=cached)
    assert cost <= most_cost_microdollars(price, input_tokens=most[0], output_tokens=most[1])


@pytest.mark.parametrize("usd", [float("inf"), float("nan"), -1.0, 1e9 + 1])
def test_a_price_is_an_amount(usd: float) -> None:
    with pytest.raises(ValueError, match="output"):
        Price(input=0.0, output=usd)


@pytest.mark.parametrize(
    ("usd", "parts"),
    [
        pytest.param(0, 0, id="nothing"),
        pytest.param(5, 5_000_000, id="whole dollars"),
        pytest.param(0.1, 100_000, id="a tenth, which no float holds exactly"),
        pytest.param(0.000001, 1, id="the smallest part that is counted"),
        pytest.param(1e-6, 1, id="however it is written"),
        pytest.param(4.35, 4_350_000, id="a product that floats get wrong"),
        pytest.param(9_999_999.999999, 9_999_999_999_999, id="with all digits there are"),
    ],
)
def test_amounts_of_usd_are_exact(usd: float, parts: int) -> None:
    assert microdollars(usd) == parts


@pytest.mark.parametrize("usd", [0.0000001, 1.2345678, 5e-324])
def test_parts_of_a_micro_dollar_are_refused(usd: float) -> None:
    with pytest.raises(ValueError, match="write at most six decimals"):
        microdollars(usd)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        pytest.param(0, "0 USD", id="nothing"),
        pytest.param(12_345, "0.012345 USD", id="all six decimals"),
        pytest.param(1_000, "0.001 USD", id="no idle zeros"),
        pytest.param(10_000_000, "10 USD", id="whole dollars keep theirs"),
        pytest.param(10**13 + 1, "10000000.000001 USD", id="large amounts to the last part"),
    ],
)
def test_amounts_of_usd_are_written_exactly(parts: int, text: str) -> None:
    assert write_usd(parts) == text
