from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from policies.limits import MORE_THAN_ANY, BoundLimit, NamedLimit
from policies.policy import Limit
from policies.requests.asked import Action, Adjustment
from policies.room import Room, refuse, would_refuse
from policies.windows import Level, Span, Tank

NOW = 1_800_000_000_000


def room(level: Level, *, ask: int = 1, span: Span | None = None, **settings: Any) -> Room:  # noqa: ANN401
    limit = Limit(**{"of": "requests", "limit": 5, "per": "minute", "by": ["user"], **settings})
    named = NamedLimit("p", limit)
    bound = BoundLimit("name", "p", limit, ("alice",), ask, named.name, named, ask)
    return Room(bound, Level(level.spent, level.carry, level.held, NOW), named.tank, span)


MONTH = Span(NOW - 1_000_000, NOW + 500_000)


@pytest.mark.parametrize(
    ("at", "wait"),
    [
        pytest.param(room(Level(spent=4)), 0, id="it fits now"),
        pytest.param(room(Level(spent=5)), 12_000, id="a bucket: when enough has refilled"),
        pytest.param(room(Level(spent=5, carry=11_000)), 1_000, id="from where it stands"),
        pytest.param(room(Level(held=5)), 5_000, id="only holds are in the way: soon"),
        pytest.param(room(Level(held=5), per="second"), 200, id="or when they would have refilled, if sooner"),
        pytest.param(room(Level(spent=5), span=MONTH, per="month"), 500_000, id="a calendar window: its end"),
        pytest.param(room(Level(held=5), span=MONTH, per="month"), 5_000, id="unless only holds are in the way"),
        pytest.param(room(Level(held=5), of="concurrency", per=None), 1_000, id="concurrency: soon"),
        pytest.param(room(Level(), ask=6), None, id="more than the limit: never"),
        pytest.param(replace(room(Level(), ask=3), tank=Tank(2, 1, 24_000)), 5_000, id="than a worker's share: soon"),
        pytest.param(replace(room(Level(), ask=6), tank=Tank(2, 1, 24_000)), None, id="than either: never"),
    ],
)
def test_when_a_request_fits(at: Room, wait: int | None) -> None:
    assert at.wait_milliseconds == wait


@pytest.mark.parametrize(
    ("at", "left", "more", "reset"),
    [
        pytest.param(room(Level()), 5, 0, 0, id="an unused bucket"),
        pytest.param(room(Level(spent=2, carry=3_000)), 3, 9_000, 21_000, id="a used one"),
        pytest.param(room(Level(spent=2, held=9)), 0, 12_000, 24_000, id="one that is held too"),
        pytest.param(room(Level(spent=2), span=MONTH, per="month"), 3, 500_000, 500_000, id="a calendar window"),
        pytest.param(room(Level(held=2), span=MONTH, per="month"), 3, 500_000, 500_000, id="a window, held only"),
        pytest.param(room(Level(held=2), of="concurrency", per=None), 3, 0, 0, id="concurrency has no reset"),
    ],
)
def test_what_is_left_and_until_when(at: Room, left: int, more: int, reset: int) -> None:
    assert (at.left, at.more_milliseconds, at.reset_milliseconds) == (left, more, reset)


def test_a_refusal_says_which_limit_whose_how_much_and_when() -> None:
    refusal = refuse([room(Level(spent=5))])
    assert (refusal.code, refusal.retry_after_seconds) == ("rate_limit_exceeded", 12)
    assert refusal.message == (
        "Limit 'name' of policy 'p' (5 requests per minute for user alice) has no room for this request: "
        "it asks for 1, 0 left; it fits in 12 s."
    )


@pytest.mark.parametrize(
    ("blocking", "seconds"),
    [
        pytest.param([room(Level(spent=5)), room(Level(spent=5), per="hour")], 720, id="the longest wait counts"),
        pytest.param([room(Level(spent=5)), room(Level(), ask=6)], None, id="never is longer than any"),
        pytest.param([room(Level(spent=5), per="250ms")], 1, id="at least a second"),
        pytest.param([room(Level(spent=5, carry=1))], 12, id="rounded up"),
    ],
)
def test_when_to_try_again(blocking: list[Room], seconds: int | None) -> None:
    assert refuse(blocking).retry_after_seconds == seconds


def test_what_can_never_fit_is_said_to_be_so() -> None:
    assert "it can never fit" in refuse([room(Level(), ask=6)]).message


@pytest.mark.parametrize(
    ("blocking", "code"),
    [
        pytest.param(room(Level(spent=5), span=MONTH, per="month"), "insufficient_quota", id="a monthly limit"),
        pytest.param(room(Level(spent=5_000_000), of="usd", per="hour"), "insufficient_quota", id="one of usd"),
        pytest.param(room(Level(spent=5), of="completions", per="day"), "rate_limit_exceeded", id="another"),
    ],
)
def test_budgets_are_quotas(blocking: Room, code: str) -> None:
    assert refuse([blocking]).code == code


def test_a_refusal_says_amounts_of_usd_in_usd() -> None:
    at = room(Level(spent=499_000), ask=12_345, span=MONTH, of="usd", limit=0.5, per="month")
    assert refuse([at]).message == (
        "Limit 'name' of policy 'p' (0.5 USD per month for user alice) has no room for this request: "
        "it asks for 0.012345 USD, 0.001 USD left; it fits in 500 s (about 8 min)."
    )


SPENT_AFTER = room(Level(spent=5_000_040), hold="none", of="usd", per="3d")
"""Overshot by 40 micro-dollars: one comes back in 51.84 ms, and one has to be left."""


@pytest.mark.parametrize(
    ("at", "left", "wait"),
    [
        pytest.param(
            room(Level(spent=4, held=0), hold="none", of="tokens"), 1, 0, id="while anything is left, it fits"
        ),
        pytest.param(room(Level(spent=5), hold="none", of="tokens"), 0, 12_000, id="when nothing is, it waits for one"),
        pytest.param(SPENT_AFTER, 0, 2_126, id="and for what was overshot"),  # 41 x 51.84 = 2125.44
        pytest.param(room(Level(), hold="none", of="tokens", limit=0), 0, None, id="never, if the limit is nothing"),
    ],
)
def test_a_limit_that_is_settled_after(at: Room, left: int, wait: int | None) -> None:
    assert (at.left, at.fits, at.wait_milliseconds) == (left, wait == 0, wait)


def test_a_refusal_of_what_is_settled_after_speaks_of_no_ask() -> None:
    assert refuse([SPENT_AFTER]).message == (
        "Limit 'name' of policy 'p' (5 USD per 3d for user alice) has no room for this request: 0 USD left; "
        "it fits in 3 s."
    )
    nothing = refuse([room(Level(), hold="none", of="tokens", limit=0)])
    assert nothing.message.endswith("0 left; it can never fit: have the limit raised.")


def test_a_limit_that_is_observed_refuses_nothing_and_tells_what_it_would_have() -> None:
    full = room(Level(spent=3, held=1), ask=7, mode="observe", of="tokens")
    assert (full.fits, full.refuses, room(Level(spent=5)).refuses, room(Level()).refuses) == (False, False, True, False)
    assert would_refuse(full.bound, full.left) == Adjustment("name", 7, 1, Action.REJECT, "p")


def test_an_ask_beyond_what_limits_tell_apart_is_not_given_a_number() -> None:
    assert "it asks for more than 10000000000000, 5 left" in refuse([room(Level(), ask=MORE_THAN_ANY)]).message


def test_a_refusal_names_what_has_two_words() -> None:
    assert "(5 input tokens per minute for user alice)" in refuse([room(Level(spent=5), of="input_tokens")]).message


@pytest.mark.parametrize(
    ("at", "seconds"),
    [
        pytest.param(room(Level()), 60, id="a bucket's window"),
        pytest.param(room(Level(), per="100ms"), 1, id="is at least a second"),
        pytest.param(room(Level(), span=Span(0, 82_800_000), per="day"), 82_800, id="a day in spring may be shorter"),
        pytest.param(room(Level(), of="concurrency", per=None), None, id="concurrency has none"),
    ],
)
def test_window_lengths(at: Room, seconds: int | None) -> None:
    assert at.window_seconds == seconds
