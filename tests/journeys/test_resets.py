"""What answers say of resets is when room comes back indeed: not a millisecond before, and then at once.

The store's clock is moved by the tests, through years of which this machine's time zones know the rules. All moments
are UTC, worked out by hand from a zone's rules; beside each stands how.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from stepped import SteppedClock
from whole import configuration, whole_gateway

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis
    from fake_upstream import FakeUpstream, Req
    from sending import MemoryWriter
    from stores import StoreServer
    from whole import Whole

    from proxy.config import Configuration

ASKED = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 20, "temperature": 1}
"""Holds 23 tokens; the scripted upstream reports 20."""


def utc(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def limited(url: str, data_dir: Path, zone: str, *limits: dict[str, Any]) -> Configuration:
    organization = {"id": "org_acme", "time_zone": zone}
    policies = {"default": {"limits": [{"by": ["user"], **limit} for limit in limits]}}
    return configuration(url, data_dir, organization=organization, policies=policies)


async def ask(whole: Whole, **fields: Any) -> MemoryWriter:  # noqa: ANN401  members of a request
    return (await whole.ask("POST", "/v1/completions", {**ASKED, **fields}))[0]


async def me(whole: Whole) -> list[dict[str, Any]]:
    answer, _ = await whole.ask("GET", "/v1/tidegate/me")
    assert answer.status == 200
    found: list[dict[str, Any]] = json.loads(answer.body)["limits"]
    return found


@pytest.fixture
def client(valkey: StoreServer) -> Iterator[redis.Redis]:
    with valkey.client() as client:
        yield client


@pytest.mark.parametrize(
    ("zone", "per", "now", "reset", "said", "seconds"),
    [
        # Berlin is at +1; at +2 from 26 March 2090 01:00 UTC, a Sunday, to 29 October 01:00 UTC.
        pytest.param(
            *("Europe/Berlin", "day", "2090-03-25 23:00:00", "2090-03-26 22:00", "23h0m0s", 82_800),
            id="a day of 23 hours, from its first moment",
        ),
        pytest.param(
            *("Europe/Berlin", "day", "2090-10-28 22:00:00.001", "2090-10-29 23:00", "25h0m0s", 90_000),
            id="a day of 25 hours, a millisecond later: rounded up",
        ),
        pytest.param(
            *("Europe/Berlin", "week", "2090-10-29 00:59:59", "2090-10-29 23:00", "22h0m1s", 79_201),
            id="a week, just before clocks are set back on its Sunday",
        ),
        pytest.param(
            *("Europe/Berlin", "month", "2090-12-31 22:59:50", "2090-12-31 23:00", "10s", 10), id="the end of a year"
        ),
        # New York is at -5 in winter; 2092 is a leap year: 28 February 00:00 -5 to 1 March 00:00 -5 is two days.
        pytest.param(
            *("America/New_York", "month", "2092-02-28 05:00:00", "2092-03-01 05:00", "48h0m0s", 172_800),
            id="a February of 29 days",
        ),
        # Beirut goes from +2 to +3 at the midnight of 26 March 2090: the 26th begins at 22:00 UTC, 01:00 there.
        pytest.param(
            *("Asia/Beirut", "day", "2090-03-25 21:59:59.250", "2090-03-25 22:00", "750ms", 1),
            id="a midnight that does not exist",
        ),
        # And back from +3 at that of 29 October: 28 October 00:00 is 27 October 21:00 UTC, and its 25 hours end at
        # 22:00 UTC; at 21:30 UTC it is 23:30 for the second time.
        pytest.param(
            *("Asia/Beirut", "day", "2090-10-28 21:30:00", "2090-10-28 22:00", "30m0s", 1_800),
            id="a last hour that comes twice",
        ),
        # Lord Howe goes from +11 to +10:30 on the first Sunday of April: 2 April 2090 has 24 hours and a half.
        pytest.param(
            *("Australia/Lord_Howe", "day", "2090-04-01 13:00:00", "2090-04-02 13:30", "24h30m0s", 88_200),
            id="a day with half an hour more",
        ),
    ],
)
async def test_a_calendar_window_ends_when_it_was_said_to(
    upstream: FakeUpstream,
    valkey: StoreServer,
    client: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    zone: str,
    per: str,
    now: str,
    reset: str,
    said: str,
    seconds: int,
) -> None:
    clock = SteppedClock.begin(client, monkeypatch, utc(now))
    limits = {"of": "requests", "limit": 1, "per": per}, {"of": "tokens", "limit": 99, "per": per}
    async with whole_gateway(limited(upstream.url, tmp_path, zone, *limits), valkey.url) as whole:
        served, refused, streamed = await ask(whole), await ask(whole), await ask(whole, stream=True)
        assert (served.status, refused.status, streamed.status) == (200, 429, 429)
        assert served.header("x-ratelimit-reset-requests") == served.header("x-ratelimit-reset-tokens") == said
        assert [part.partition("t=")[2] for part in served.header("ratelimit").split(", ")] == [str(seconds)] * 2
        assert [limit["reset_seconds"] for limit in await me(whole)] == [seconds] * 2
        assert refused.header("retry-after") == streamed.header("retry-after") == str(seconds)
        clock.set(utc(reset) - 1)
        assert (await ask(whole)).header("retry-after") == "1"
        clock.set(utc(reset))
        assert [limit["left"] for limit in await me(whole)] == [1, 99]
        assert (await ask(whole)).header("x-ratelimit-remaining-tokens") == "79"
    assert len(upstream.served) == 2


async def test_a_bucket_refills_when_it_was_said_to(
    upstream: FakeUpstream, valkey: StoreServer, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three a minute: one comes back every 20 s. 100 tokens in 50 s: two a second."""
    begin = utc("2090-07-01 12:00")
    clock = SteppedClock.begin(client, monkeypatch, begin)
    limits = {"of": "requests", "limit": 3, "per": "minute"}, {"of": "tokens", "limit": 100, "per": "50s"}
    async with whole_gateway(limited(upstream.url, tmp_path, "UTC", *limits), valkey.url) as whole:
        told = []
        for _ in range(3):
            answer = await ask(whole)
            names = ("x-ratelimit-reset-requests", "x-ratelimit-reset-tokens", "ratelimit")
            told.append([answer.header(name).rpartition(";t=")[2] for name in names])
            clock.set(begin + 1_000 * len(told))
        # After 0, 1 and 2 s one, two and three requests are spent, less what has refilled: 20, 39 and 58 s. Of tokens
        # 20, 38 and 56, at two a second: 10, 19 and 28 s; the next one comes in half a second, rounded up.
        assert told == [["20s", "10s", "1"], ["39s", "19s", "1"], ["58s", "28s", "1"]]
        assert [limit["reset_seconds"] for limit in await me(whole)] == [57, 27]
        refused = await ask(whole)
        assert (refused.status, refused.header("retry-after")) == (429, "17")  # of the 20 s three have passed
        clock.set(begin + 19_999)
        assert (await ask(whole)).status == 429
        clock.set(begin + 20_000)
        assert (await ask(whole)).status == 200
    assert len(upstream.served) == 4


@pytest.mark.parametrize("believed", ["2090-06-30 21:59:59.999", "2090-06-30 21:59:58", "2090-07-01 00:00:05"])
async def test_who_believes_in_another_day_than_the_store_takes_from_the_stores(
    upstream: FakeUpstream,
    valkey: StoreServer,
    client: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    believed: str,
) -> None:
    """Berlin's 1 July 2090 begins at 22:00 UTC of the 30th of June; the gateway believes in another time."""
    clock = SteppedClock.begin(client, monkeypatch, utc(believed))
    limit = {"of": "requests", "limit": 1, "per": "day"}
    async with whole_gateway(limited(upstream.url, tmp_path, "Europe/Berlin", limit), valkey.url) as whole:
        for now, reset in (("2090-06-30 21:59:59.999", "1ms"), ("2090-06-30 22:00:00.000", "24h0m0s")):
            clock.jump(utc(now))
            assert [limit["reset_seconds"] for limit in await me(whole)] == [0]
            first, second = await ask(whole), await ask(whole)
            assert (first.status, second.status) == (200, 429)
            assert first.header("x-ratelimit-reset-requests") == reset


@pytest.mark.parametrize("is_gone", [False, True], ids=["its day is still there", "its day is gone"])
async def test_an_answer_that_ends_after_midnight_takes_nothing_from_the_new_day(
    upstream: FakeUpstream,
    valkey: StoreServer,
    client: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_gone: bool,
) -> None:
    """It frees what is not of a day, and neither changes the count of the old one nor brings it back to life."""
    midnight = utc("2090-06-30 22:00")
    clock = SteppedClock.begin(client, monkeypatch, midnight - 10)
    limits = (
        {"of": "requests", "limit": 2, "per": "day"},
        {"of": "tokens", "limit": 60, "per": "day"},
        {"of": "tokens", "limit": 90, "per": "365d"},
        {"of": "concurrency", "limit": 1},
    )
    held: dict[bytes, Any] = {}

    def answer_after_midnight(request: Req) -> list[Any]:
        clock.set(midnight + 10)
        held.update((key, client.hgetall(key)) for key in client.keys("*-per-day-*"))
        if is_gone:
            client.delete(*held)  # as the server does of its own accord
        return upstream.default(request)

    upstream.script(answer_after_midnight)
    async with whole_gateway(limited(upstream.url, tmp_path, "Europe/Berlin", *limits), valkey.url) as whole:
        assert (await ask(whole)).status == 200
        assert {key.rpartition(b":")[2] for key in held} == {str(midnight - 86_400_000).encode()}
        assert [(level[b"spent"], level[b"held"]) for _, level in sorted(held.items())] == [(b"1", b"0"), (b"0", b"23")]
        assert {key: client.hgetall(key) for key in client.keys("*-per-day-*")} == ({} if is_gone else held)
        assert [limit["left"] for limit in await me(whole)] == [2, 60, 70, 1]
        assert (await ask(whole)).status == 200
        assert [limit["left"] for limit in await me(whole)] == [1, 40, 50, 1]
