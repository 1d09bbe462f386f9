"""What limits count: what a request asks of each quantity at worst, what it is charged in the end, and in which unit.

One row a quantity; whoever treats two of them differently reads the difference from here. Knows no limit, no window and
no scope.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from policies.pricing import microdollars, write_usd

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from policies.charges import Charged, WorstCase

Counted = Literal["requests", "tokens", "input_tokens", "output_tokens", "completions", "usd", "concurrency"]
"""Names of the quantities, as configurations write them."""
OnStoreFailure = Literal["allow", "deny", "local"]
"""What a limit does while the store is away."""


def _whole(amount: float) -> int:
    if isinstance(amount, int):
        return amount
    raise ValueError(f"{amount} is no whole number; only an amount of usd has decimals")


@dataclass(frozen=True, slots=True)
class Quantity:
    """How one quantity is counted: in whole units, of which `asks` and `charges` tell how many.

    `asks` is what a request takes at worst, `charges` what it took. `is_spent_at_once`: taken at admission for good,
    and not held. `is_taken_by_hits`: answers from the cache take it too. `is_settled`: how much it was is known only
    when the request has ended. `needs_input`: the worst case is not known while the size of the input is not;
    `needs_candidates`: nor while it is not known how many are asked for; `needs_ceiling`: nor while a request leaves
    its token ceiling open; `needs_price`: nor of a model without a price. `is_budget`: no retry outlasts its limits.
    `count` reads an amount of it as configured, and raises ValueError saying what can be written;
    `write` shows a count, with its unit where it has no `noun`.
    """

    asks: Callable[[WorstCase], int]
    charges: Callable[[Charged], int]
    is_spent_at_once: bool = False
    is_taken_by_hits: bool = False
    is_settled: bool = True
    needs_input: bool = False
    needs_candidates: bool = False
    needs_ceiling: bool = False
    needs_price: bool = False
    is_budget: bool = False
    on_store_failure: OnStoreFailure = "local"
    count: Callable[[float], int] = _whole
    write: Callable[[int], str] = str
    noun: str | None = None


QUANTITIES: Final[Mapping[Counted, Quantity]] = {
    "requests": Quantity(
        lambda _worst: 1,
        lambda _charged: 1,
        is_spent_at_once=True,
        is_taken_by_hits=True,
        is_settled=False,
        noun="requests",
    ),
    "tokens": Quantity(
        lambda worst: worst.tokens,
        lambda charged: charged.tokens,
        needs_input=True,
        needs_candidates=True,
        needs_ceiling=True,
        noun="tokens",
    ),
    "input_tokens": Quantity(
        lambda worst: worst.input_tokens, lambda charged: charged.input_tokens, needs_input=True, noun="input tokens"
    ),
    "output_tokens": Quantity(
        lambda worst: worst.output_tokens,
        lambda charged: charged.output_tokens,
        needs_candidates=True,
        needs_ceiling=True,
        noun="output tokens",
    ),
    "completions": Quantity(
        lambda worst: worst.candidates, lambda charged: charged.completions, needs_candidates=True, noun="completions"
    ),
    "usd": Quantity(
        lambda worst: worst.cost_microdollars,
        lambda charged: charged.cost_microdollars,
        needs_input=True,
        needs_candidates=True,
        needs_ceiling=True,
        needs_price=True,
        is_budget=True,
        on_store_failure="deny",
        count=microdollars,
        write=write_usd,
    ),
    "concurrency": Quantity(
        lambda _worst: 1, lambda _charged: 0, is_taken_by_hits=True, is_settled=False, noun="concurrency"
    ),
}


def exceeds(charged: Charged, worst: WorstCase) -> bool:
    """Tell whether a request took more of any quantity than its worst case, where that is known."""
    return any(
        quantity.charges(charged) > quantity.asks(worst)
        for quantity in QUANTITIES.values()
        if (worst.is_input_bounded or not quantity.needs_input)
        and (worst.is_output_bounded or not quantity.needs_ceiling)
    )
