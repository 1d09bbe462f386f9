"""What a refusal says, word by word, and what every answer tells of its limits (SPEC §5).

The store's clock stands still, at noon UTC of Saturday, 1 July 2090: in Berlin the day has 10 hours left (36,000 s),
the week a day more (122,400 s), the month 30 days and 10 hours (2,628,000 s).
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import App, json_reply
from stepped import SteppedClock
from whole import configuration, whole_gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from fake_upstream import FakeUpstream
    from sending import MemoryWriter
    from stores import StoreServer
    from whole import Whole

    Open = Callable[..., AbstractAsyncContextManager[Whole]]

NOON = 3_802_593_600_000
"""120 years of 365 days and 30 leap days since 1970 (1972 … 2088), then 181 days and a half."""
ASKED = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 20, "temperature": 1}
"""Holds 3 + 20 tokens, the scripted upstream reports 7 + 13; a token costs 1,000 micro-dollars."""
RATE, QUOTA = "rate_limit_exceeded", "insufficient_quota"
TOLD = ("retry-after", "x-should-retry")


@pytest.fixture
def opened(
    upstream: FakeUpstream, valkey: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    """Return a function that opens a gateway with these limits, by user unless they say otherwise."""
    with valkey.client() as client:
        SteppedClock.begin(client, monkeypatch, NOON)

        def open_with(*limits: dict[str, Any]) -> AbstractAsyncContextManager[Whole]:
            model = {"deployments": [{"upstream": "only"}], "price": {"input": 1_000.0, "output": 1_000.0}}
            made = configuration(
                upstream.url,
                tmp_path,
                organization={"id": "org_acme", "time_zone": "Europe/Berlin"},
                models={"m": model},
                policies={"default": {"limits": [{"by": ["user"], **limit} for limit in limits]}},
            )
            return whole_gateway(made, valkey.url)

        yield open_with


async def ask(whole: Whole, **fields: Any) -> MemoryWriter:  # noqa: ANN401  members of a request
    return (await whole.ask("POST", "/v1/completions", {**ASKED, **fields}))[0]


def limit_fields(answer: MemoryWriter) -> dict[str, str]:
    """Return the fields that tell of limits, in short: OpenAI's as limit, left and reset of each quantity."""
    found = {}
    for of in ("requests", "tokens"):
        told = [answer.header(f"x-ratelimit-{part}-{of}") for part in ("limit", "remaining", "reset")]
        assert told.count(None) in (0, 3)
        if None not in told:
            found[of] = " ".join(map(str, told))
    names = ("ratelimit-policy", "ratelimit")
    return {**found, **{name: value for name in names if (value := answer.header(name)) is not None}}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("limit", "code", "retry_after", "should_retry", "message"),
    [
        pytest.param(
            {"of": "requests", "limit": 1, "per": "50s"},
            *(RATE, "50", None),
            "Limit 'requests-per-50s-by-user' of policy 'default' (1 requests per 50s for user alice) has no room for "
            "this request: it asks for 1, 0 left; it fits in 50 s.",
            id="a bucket of requests",
        ),
        pytest.param(
            # 20 are spent, 23 are asked for: 3 too many, at 40 a minute 4.5 s.
            {"of": "tokens", "limit": 40, "per": "minute"},
            *(RATE, "5", None),
            "Limit 'tokens-per-minute-by-user' of policy 'default' (40 tokens per minute for user alice) has no room "
            "for this request: it asks for 23, 20 left; it fits in 5 s.",
            id="a bucket of tokens, rounded up",
        ),
        pytest.param(
            {"of": "requests", "limit": 1, "per": "60s", "by": ["project", "model"], "name": "fair"},
            *(RATE, "60", None),
            "Limit 'fair' of policy 'default' (1 requests per 60s for project proj and model m) has no room for this "
            "request: it asks for 1, 0 left; it fits in 60 s.",
            id="a minute is worth a retry, of a scope of two and with a name",
        ),
        pytest.param(
            {"of": "requests", "limit": 1, "per": "61s"},
            *(RATE, "61", "false"),
            "Limit 'requests-per-61s-by-user' of policy 'default' (1 requests per 61s for user alice) has no room for "
            "this request: it asks for 1, 0 left; it fits in 61 s.",
            id="more than a minute is not",
        ),
        pytest.param(
            {"of": "completions", "limit": 1, "per": "day", "by": ["end_user"]},
            *(RATE, "36000", "false"),
            "Limit 'completions-per-day-by-end_user' of policy 'default' (1 completions per day for end user (none)) "
            "has no room for this request: it asks for 1, 0 left; it fits in 36000 s (about 10 h).",
            id="a day",
        ),
        pytest.param(
            {"of": "output_tokens", "limit": 30, "per": "week", "by": ["organization"]},
            *(RATE, "122400", "false"),
            "Limit 'output_tokens-per-week-by-organization' of policy 'default' (30 output tokens per week for "
            "organization org_acme) has no room for this request: it asks for 20, 17 left; it fits in 122400 s "
            "(about 34 h).",
            id="a week",
        ),
        pytest.param(
            {"of": "input_tokens", "limit": 9, "per": "month", "by": ["key"]},
            *(QUOTA, "2628000", "false"),
            "Limit 'input_tokens-per-month-by-key' of policy 'default' (9 input tokens per month for key key_alice) "
            "has no room for this request: it asks for 3, 2 left; it fits in 2628000 s (about 30 d).",
            id="a month is a budget",
        ),
        pytest.param(
            # 20,000 micro-dollars are spent, 23,000 asked for: 3,000 too many, at 40,000 a minute 4.5 s.
            {"of": "usd", "limit": 0.04, "per": "minute"},
            *(QUOTA, "5", "false"),
            "Limit 'usd-per-minute-by-user' of policy 'default' (0.04 USD per minute for user alice) has no room for "
            "this request: it asks for 0.023 USD, 0.02 USD left; it fits in 5 s.",
            id="usd are a budget, however soon there are more",
        ),
        pytest.param(
            # One token has to come back of 20, and 20 were spent: at 20 an hour 180 s.
            {"of": "tokens", "limit": 20, "per": "hour", "hold": "none"},
            *(RATE, "180", "false"),
            "Limit 'tokens-per-hour-by-user' of policy 'default' (20 tokens per hour for user alice) has no room for "
            "this request: 0 left; it fits in 180 s (about 3 min).",
            id="settled after: nothing is asked for",
        ),
        pytest.param(
            # 3 of the burst of 23 are left, 20 come back: at 100 a minute 12 s.
            {"of": "tokens", "limit": 100, "per": "minute", "burst": 23},
            *(RATE, "12", None),
            "Limit 'tokens-per-minute-by-user' of policy 'default' (100 tokens per minute for user alice) has no room "
            "for this request: it asks for 23, 3 left; it fits in 12 s.",
            id="a burst",
        ),
    ],
)
async def test_a_refusal_says_which_whose_how_much_and_when(
    opened: Open,
    upstream: FakeUpstream,
    limit: dict[str, Any],
    code: str,
    retry_after: str,
    should_retry: str | None,
    message: str,
    *,
    stream: bool,
) -> None:
    async with opened(limit) as whole:
        served, refused = await ask(whole), await ask(whole, stream=stream)
    assert (served.status, refused.status, len(upstream.served)) == (200, 429, 1)
    assert json.loads(refused.body) == {"error": {"message": message, "type": code, "param": None, "code": code}}
    assert [refused.header(name) for name in TOLD] == [retry_after, should_retry]
    assert refused.header("content-type") == "application/json"


@pytest.mark.parametrize(
    ("limit", "code", "said"),
    [
        pytest.param({"of": "tokens", "limit": 22, "per": "minute"}, RATE, "23, 22 left", id="tokens"),
        pytest.param({"of": "usd", "limit": 0.022999, "per": "day"}, QUOTA, "0.023 USD, 0.022999 USD left", id="usd"),
        pytest.param({"of": "tokens", "limit": 99, "per": "hour", "burst": 22}, RATE, "23, 22 left", id="a burst"),
        pytest.param({"of": "requests", "limit": 0, "per": "month"}, QUOTA, "1, 0 left", id="a limit of nothing"),
        pytest.param({"of": "concurrency", "limit": 0}, RATE, "1, 0 left", id="nobody at once"),
    ],
)
async def test_what_can_never_fit_is_not_to_be_tried_again(
    opened: Open, upstream: FakeUpstream, limit: dict[str, Any], code: str, said: str
) -> None:
    async with opened(limit) as whole:
        refused = await ask(whole)
    error = json.loads(refused.body)["error"]
    assert (refused.status, error["code"], error["type"]) == (429, code, code)
    assert [refused.header(name) for name in TOLD] == [None, "false"]
    assert error["message"].endswith(f"it asks for {said}; it can never fit: ask for less, or have the limit raised.")
    assert upstream.log == []


async def test_where_only_others_are_in_the_way_it_may_fit_soon(opened: Open, upstream: FakeUpstream) -> None:
    upstream.default = App(latency=0.3)
    async with opened({"of": "concurrency", "limit": 1, "by": ["key"]}) as whole:
        answers = await asyncio.gather(ask(whole), ask(whole, stream=True))
    [refused] = [answer for answer in answers if answer.status == 429]
    assert json.loads(refused.body)["error"] == {
        "message": "Limit 'concurrency-by-key' of policy 'default' (1 concurrency for key key_alice) has no room for "
        "this request: it asks for 1, 0 left; it fits in 1 s.",
        "type": RATE,
        "param": None,
        "code": RATE,
    }
    assert [refused.header(name) for name in TOLD] == ["1", None]
    assert limit_fields(refused) == {
        "ratelimit-policy": '"concurrency-by-key";q=1;qu="concurrent-requests"',
        "ratelimit": '"concurrency-by-key";r=0',
    }


# Headers ------------------------------------------------------------------------------------------------------------

FIVE_A_MINUTE = {"of": "requests", "limit": 5, "per": "minute", "name": "rpm"}
NINE_A_DAY = {"of": "requests", "limit": 9, "per": "day", "name": "rpd"}
FIFTY_A_DAY = {"of": "tokens", "limit": 50, "per": "day", "name": "tpd"}
FORTY_AN_HOUR = {"of": "tokens", "limit": 40, "per": "hour", "name": "tph"}
ALL_AT_ONCE = {"of": "concurrency", "limit": 3, "by": ["project"], "name": "now"}
A_DOLLAR = {"of": "usd", "limit": 1, "per": "month", "name": "usd"}
WATCHED = {"of": "tokens", "limit": 1, "per": "hour", "mode": "observe"}
POLICY = (
    '"rpm";q=5;w=60, "rpd";q=9;w=86400, "tpd";q=50;qu="tidegate-tokens";w=86400, '
    '"tph";q=40;qu="tidegate-tokens";w=3600, "now";q=3;qu="concurrent-requests", '
    '"usd";q=1000000;qu="tidegate-microdollars";w=2678400'
)
"""31 days are 2,678,400 s."""


async def test_every_answer_tells_how_all_its_limits_stand(opened: Open, upstream: FakeUpstream) -> None:
    """Of requests the minute has least left, of tokens the hour; a hit takes requests only, and a refusal nothing."""
    limits = (FIVE_A_MINUTE, NINE_A_DAY, FIFTY_A_DAY, FORTY_AN_HOUR, ALL_AT_ONCE, A_DOLLAR, WATCHED)
    upstream.script(App(), json_reply({"error": {"message": "no"}}, 400))
    async with opened(*limits) as whole:
        answers = [await ask(whole, temperature=0), await ask(whole, temperature=0), await ask(whole, max_tokens=9)]
        answers += [await ask(whole, prompt=[1, 2, 3, 4], stream=stream) for stream in (False, True)]
    assert [answer.status for answer in answers] == [200, 200, 400, 429, 429]
    assert [answer.header("ratelimit-policy") for answer in answers] == [POLICY] * 5
    # A request comes back every 12 s, a token of the hour every 90: 20 of them in half an hour.
    served, hit, failed, *refused = map(limit_fields, answers)
    assert (served["requests"], served["tokens"]) == ("5 4 12s", "40 20 30m0s")
    assert served["ratelimit"] == _state(4, 8)
    assert (hit["requests"], hit["tokens"]) == ("5 3 24s", "40 20 30m0s")
    assert hit["ratelimit"] == _state(3, 7)
    assert (failed["requests"], failed["tokens"]) == ("5 2 36s", "40 20 30m0s")
    assert failed["ratelimit"] == _state(2, 6)
    # Asked for are 24 of the 20 left: four come back in 360 s, and none of OpenAI's resets is sooner.
    for each in refused:
        assert (each["requests"], each["tokens"]) == ("5 2 6m0s", "40 20 30m0s")
        assert each["ratelimit"] == _state(2, 6)
    assert [[answer.header(name) for name in TOLD] for answer in answers[3:]] == [["360", "false"]] * 2


def _state(minute: int, day: int) -> str:
    return (
        f'"rpm";r={minute};t=12, "rpd";r={day};t=36000, "tpd";r=30;t=36000, "tph";r=20;t=90, "now";r=3, '
        '"usd";r=980000;t=2628000'
    )


async def test_the_head_of_a_stream_tells_what_it_holds_as_if_it_were_spent(opened: Open) -> None:
    """Held are 23 tokens, of which 40 an hour come back: 34 minutes and a half."""
    async with opened(FORTY_AN_HOUR, {**FIFTY_A_DAY, "limit": 90}, ALL_AT_ONCE) as whole:
        answer = await ask(whole, stream=True)
    assert limit_fields(answer)["tokens"] == "40 17 34m30s"
    assert limit_fields(answer)["ratelimit"] == '"tph";r=17;t=90, "tpd";r=67;t=36000, "now";r=2'


async def test_of_several_limits_the_one_that_takes_longest_is_told(opened: Open) -> None:
    """The bucket of requests has room in 50 s, the day of tokens in ten hours; both resets are as late as that."""
    async with opened({"of": "requests", "limit": 1, "per": "50s"}, {**FIFTY_A_DAY, "limit": 30}) as whole:
        await ask(whole)
        refused = await ask(whole)
    assert "Limit 'tpd' of policy 'default'" in json.loads(refused.body)["error"]["message"]
    assert refused.header("retry-after") == "36000"
    assert (limit_fields(refused)["requests"], limit_fields(refused)["tokens"]) == ("1 0 10h0m0s", "30 10 10h0m0s")


async def test_who_is_admitted_for_a_hit_only_and_finds_none_is_told_the_same(
    opened: Open, upstream: FakeUpstream
) -> None:
    async with opened({"of": "requests", "limit": 5, "per": "hour"}, {**FIFTY_A_DAY, "limit": 30}) as whole:
        await ask(whole, temperature=0)
        refused, plain = await ask(whole, temperature=0, prompt=[4, 5, 6]), await ask(whole)
    assert refused.body == plain.body
    assert limit_fields(refused) == limit_fields(plain)
    # Of the requests one is taken, which comes back in 12 minutes: that is before the tokens do.
    assert limit_fields(refused)["requests"] == "5 4 10h0m0s"
    assert len(upstream.served) == 1


@pytest.mark.parametrize(
    ("burst", "told"),
    [
        # 20 tokens come back in 12 s, at 100 a minute.
        pytest.param(150, "150 130 12s", id="a burst above the limit"),
        pytest.param(30, "30 10 12s", id="a burst below it"),
    ],
)
async def test_no_more_is_left_than_there_is(opened: Open, burst: int, told: str) -> None:
    async with opened({"of": "tokens", "limit": 100, "per": "minute", "burst": burst}) as whole:
        assert limit_fields(await ask(whole))["tokens"] == told


async def test_who_has_no_limits_is_told_of_none(opened: Open) -> None:
    async with opened(WATCHED) as whole:
        assert limit_fields(await ask(whole)) == {}
