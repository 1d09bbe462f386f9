from __future__ import annotations

from typing import get_args

import pytest

from policies.charges import Charged, WorstCase
from policies.quantities import QUANTITIES, Counted, exceeds

WORST = WorstCase(30, 70, 500, candidates=4)
CHARGED = Charged(5, 7, cost_microdollars=11, completions=2)


def test_everything_that_can_be_limited_has_its_row() -> None:
    assert list(QUANTITIES) == list(get_args(Counted))


@pytest.mark.parametrize(
    ("of", "asks", "charges"),
    [
        pytest.param("requests", 1, 1, id="a request is one"),
        pytest.param("tokens", 100, 12, id="tokens are input and output"),
        pytest.param("input_tokens", 30, 5, id="input by itself"),
        pytest.param("output_tokens", 70, 7, id="output by itself"),
        pytest.param("completions", 4, 2, id="completions are the choices generated"),
        pytest.param("usd", 500, 11, id="usd is counted in micro-dollars"),
        pytest.param("concurrency", 1, 0, id="concurrency takes nothing in the end"),
    ],
)
def test_what_is_asked_and_charged(of: Counted, asks: int, charges: int) -> None:
    quantity = QUANTITIES[of]
    assert (quantity.asks(WORST), quantity.charges(CHARGED)) == (asks, charges)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param("is_spent_at_once", {"requests"}, id="spent at once"),
        pytest.param("is_taken_by_hits", {"requests", "concurrency"}, id="taken by hits"),
        pytest.param("needs_input", {"tokens", "input_tokens", "usd"}, id="known only with the input's size"),
        pytest.param("needs_ceiling", {"tokens", "output_tokens", "usd"}, id="known only with a token ceiling"),
        pytest.param("needs_price", {"usd"}, id="known only with a price"),
        pytest.param("is_settled", set(QUANTITIES) - {"requests", "concurrency"}, id="known only after"),
        pytest.param("is_budget", {"usd"}, id="a budget"),
    ],
)
def test_what_holds_of_which(facts: str, expected: set[str]) -> None:
    assert {of for of, quantity in QUANTITIES.items() if getattr(quantity, facts)} == expected


def test_only_money_is_refused_while_nobody_counts_it() -> None:
    assert {of: each.on_store_failure for of, each in QUANTITIES.items() if each.on_store_failure != "local"} == {
        "usd": "deny"
    }


@pytest.mark.parametrize(
    ("of", "amount", "count", "written"),
    [
        pytest.param("requests", 60, 60, "60", id="a whole number as it is"),
        pytest.param("usd", 0.5, 500_000, "0.5 USD", id="usd in micro-dollars"),
        pytest.param("usd", 5, 5_000_000, "5 USD", id="and without decimals"),
    ],
)
def test_amounts_are_read_and_written(of: Counted, amount: float, count: int, written: str) -> None:
    assert (QUANTITIES[of].count(amount), QUANTITIES[of].write(count)) == (count, written)


@pytest.mark.parametrize("of", sorted(set(QUANTITIES) - {"usd"}))
def test_only_usd_has_decimals(of: Counted) -> None:
    with pytest.raises(ValueError, match=r"0\.5 is no whole number; only an amount of usd has decimals"):
        QUANTITIES[of].count(0.5)


@pytest.mark.parametrize(
    ("charged", "is_more"),
    [
        pytest.param(Charged(30, 70, cost_microdollars=500, completions=4), False, id="all that was held"),
        pytest.param(Charged(0, 71), True, id="more output, though fewer tokens"),
        pytest.param(Charged(31, 0), True, id="more input, though fewer tokens"),
        pytest.param(Charged(30, 70, cost_microdollars=501), True, id="a higher cost"),
    ],
)
def test_what_exceeds_the_worst_case(charged: Charged, is_more: bool) -> None:  # noqa: FBT001
    assert exceeds(charged, WORST) is is_more


@pytest.mark.parametrize(
    ("charged", "is_more"),
    [
        pytest.param(Charged(9_000, 70, cost_microdollars=900), False, id="an input that nobody bounded"),
        pytest.param(Charged(9_000, 71), True, id="more output"),
    ],
)
def test_what_is_not_bounded_cannot_be_exceeded(charged: Charged, *, is_more: bool) -> None:
    assert exceeds(charged, WorstCase(30, 70, 500, is_input_bounded=False)) is is_more
    assert not exceeds(charged, WorstCase(30, 0, 500, is_input_bounded=False, is_output_bounded=False))
