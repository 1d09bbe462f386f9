from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.catalog import Deployment, Model, ModelSettings, Price
from policies.charges import WorstCase
from policies.limits import bind_limits
from policies.policy import Policy
from policies.principals import AppliedPolicy, Principal
from policies.recounts import BookedRequest, Recount, amounts, take_before
from policies.rulebook import Rulebook
from policies.windows import MAX_COUNT, MAX_LEVEL, Level, Tank, take_late

FIVE_A_MINUTE = Tank(5, 1, 12_000)
A_DAY_OF_FIVE = Tank(5)


def recounted(tank: Tank, *takings: tuple[int, int]) -> Recount:
    """Tell takings (moment, amount), oldest first, from the last one back."""
    recount = None
    for moment, spend in reversed(takings):
        recount = take_before(recount, tank, moment, spend)
    assert recount is not None
    return recount


@pytest.mark.parametrize(
    ("tank", "takings", "taken"),
    [
        pytest.param(A_DAY_OF_FIVE, [(0, 2), (1, 2)], 4, id="a calendar window adds up"),
        pytest.param(A_DAY_OF_FIVE, [(0, 4), (1, 4)], 8, id="and beyond its limit"),
        pytest.param(FIVE_A_MINUTE, [(0, 2), (0, 2)], 48_000, id="a bucket at one moment"),
        pytest.param(FIVE_A_MINUTE, [(0, 2), (12_000, 2)], 36_000, id="one comes back in 12 s"),
        pytest.param(FIVE_A_MINUTE, [(0, 2), (60_000, 2)], 24_000, id="what has refilled refills no further"),
        pytest.param(FIVE_A_MINUTE, [(0, 4), (1, 4)], 60_000, id="nobody waits for more than a whole refill"),
        pytest.param(FIVE_A_MINUTE, [(0, 9), (12_000, 1)], 60_000, id="which begins when the bucket is full"),
        pytest.param(FIVE_A_MINUTE, [(0, 9), (24_000, 1)], 48_000, id="and goes on from there"),
        pytest.param(FIVE_A_MINUTE, [(12_000, 1), (0, 1)], 24_000, id="told out of order"),
    ],
)
def test_what_is_told_backwards_adds_up_in_order(tank: Tank, takings: list[tuple[int, int]], taken: int) -> None:
    assert recounted(tank, *takings).taken == taken


def test_a_recount_says_from_when_to_when() -> None:
    recount = recounted(FIVE_A_MINUTE, (7, 1), (9, 1), (12, 1))
    assert (recount.first, recount.last) == (7, 12)


@given(
    st.sampled_from([FIVE_A_MINUTE, A_DAY_OF_FIVE, Tank(7, 3, 11), Tank(150, 10, 9_000), Tank(2, 999, 1)]),
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 9) | st.just(MAX_COUNT)), min_size=1, max_size=30),
)
def test_backwards_is_as_forwards(tank: Tank, steps: list[tuple[int, int]]) -> None:
    level, now, takings = Level(), 0, []
    for pause, spend in steps:
        now += pause
        takings.append((now, spend))
        level = take_late(level, tank, now, spend)
    recount = recounted(tank, *takings)
    assert recount.taken == level.spent * tank.period - level.carry <= MAX_LEVEL
    assert recount.last == level.at == now


# ---------------------------------------------------------------- records
def record(**members: Any) -> BookedRequest:  # noqa: ANN401  members of a record
    line = {
        "outbox_id": "10000-0",
        "request_id": "r",
        "started_milliseconds": 9_000,
        "ended_milliseconds": 9_900,
        "endpoint": "completions",
        "model_asked": "m",
        "model": "m",
        "outcome": "completed",
        "cache": "miss",
        "held_tokens": 100,
        "prompts": 1,
        **members,
    }
    return msgspec.json.decode(msgspec.json.encode(line), type=BookedRequest)


@pytest.mark.parametrize(
    ("members", "admitted"),
    [
        pytest.param({}, 9_000, id="told at once, by a clock that is right"),
        pytest.param({"started_milliseconds": 14_100, "ended_milliseconds": 15_000}, 9_100, id="by one that is ahead"),
        pytest.param({"outbox_id": "70000-3"}, 9_000, id="told a minute later"),
        pytest.param({"ended_milliseconds": None}, 9_000, id="its owner died"),
        pytest.param({"ended_milliseconds": 8_000}, 9_000, id="a clock that was set back"),
    ],
)
def test_when_a_request_was_admitted(members: dict[str, Any], admitted: int) -> None:
    assert record(**members).admitted_milliseconds == admitted


@pytest.mark.parametrize(
    ("members", "was_admitted"),
    [
        pytest.param({}, True, id="answered"),
        pytest.param({"outcome": "rejected", "error_code": "not_stored"}, True, id="looked up only"),
        pytest.param({"outcome": "rejected", "held_tokens": 0}, False, id="refused"),
        pytest.param({"outcome": "failed", "held_tokens": 0}, False, id="denied while the store was away"),
        pytest.param({"outcome": "client_left", "held_tokens": 0}, False, id="left before it was admitted"),
        pytest.param({"outcome": "client_left"}, True, id="left in the middle"),
        pytest.param({"outcome": "failed"}, True, id="cut off"),
        pytest.param({"outcome": "upstream_error"}, True, id="failed upstream"),
        pytest.param({"outcome": "orphaned"}, True, id="of a worker that died"),
        pytest.param({"held_tokens": 0}, True, id="answered, and nothing could be held of it"),
    ],
)
def test_which_requests_were_admitted(members: dict[str, Any], *, was_admitted: bool) -> None:
    assert record(**members).was_admitted is was_admitted


QUANTITIES = ("requests", "tokens", "completions", "usd")
LIMITS = [{"of": of, "limit": 1_000, "per": "day", "by": ["user"]} for of in QUANTITIES]
AT_ONCE = {"of": "concurrency", "limit": 8, "by": ["user"]}
PRICE = Price(input=10, output=20)
SETTINGS = ModelSettings(deployments=(Deployment(upstream="u"),), price=PRICE)
HIT = {"cache": "hit", "saved_input_tokens": 7, "saved_output_tokens": 5, "saved_microdollars": 170}


def taken_by(told: BookedRequest, **changes: Any) -> tuple[int, ...]:  # noqa: ANN401  settings of all limits
    policy = Policy(limits=[{**limit, **changes} for limit in (*LIMITS, AT_ONCE)])
    rulebook = Rulebook({"m": SETTINGS}, {"p": policy})
    principal = Principal("org", "proj", "alice", "key", policies=(AppliedPolicy("project", "p"),))
    limits = rulebook.policy_for(principal).limits
    bound = bind_limits(limits, principal, Model("m", SETTINGS), None, WorstCase(0, 0, 0))
    return amounts(told, bound, principal, rulebook)


@pytest.mark.parametrize(
    ("members", "changes", "taken"),
    [
        pytest.param(
            {"input_tokens": 3, "output_tokens": 4, "completions": 2, "cost_microdollars": 110},
            {},
            (1, 7, 2, 110, 0),
            id="as it was charged",
        ),
        pytest.param({"outcome": "upstream_error"}, {}, (1, 0, 0, 0, 0), id="a failure takes the request only"),
        pytest.param(HIT, {}, (1, 0, 0, 0, 0), id="a hit takes the request only"),
        pytest.param({**HIT, "parameters": {"n": 3}}, {"charge_hits": "full"}, (1, 12, 3, 170, 0), id="or all"),
        pytest.param(
            {**HIT, "endpoint": None, "prompts": 2},
            {"charge_hits": "full"},
            (1, 12, 2, 170, 0),
            id="as far as is known",
        ),
        pytest.param({"input_tokens": 10**15}, {}, (1, MAX_COUNT, 0, 0, 0), id="no more than is told apart"),
    ],
)
def test_what_limits_were_charged(members: dict[str, Any], changes: dict[str, Any], taken: tuple[int, ...]) -> None:
    assert taken_by(record(**members), **changes) == taken
