from __future__ import annotations

from typing import Any

import pytest

from policies.limits import BoundLimit, NamedLimit
from policies.policy import Limit
from policies.room import Room
from policies.windows import Level, Span
from proxy.wire.limit_fields import duration, limit_headers

NOW = 1_800_000_000_000


def room(name: str, spent: int = 0, held: int = 0, span: Span | None = None, **settings: Any) -> Room:  # noqa: ANN401
    limit = Limit(**{"of": "requests", "limit": 5, "per": "minute", "by": ["user"], **settings})
    named = NamedLimit("p", limit)
    bound = BoundLimit(name, "p", limit, ("alice",), 1, named.name, named, 1)
    return Room(bound, Level(spent, 0, held, NOW), named.tank, span)


ROOMS = [
    room("rpm", spent=2),
    room("rph", spent=1, per="hour", limit=100),
    room("tpd", spent=40, held=9, of="tokens", limit=1_000, per="day", span=Span(NOW - 1_000, NOW + 86_399_000)),
    room("at once", held=1, of="concurrency", per=None, limit=8),
]


POLICIES = (
    '"rpm";q=5;w=60',
    '"rph";q=100;w=3600',
    '"tpd";q=1000;qu="tidegate-tokens";w=86400',
    '"at once";q=8;qu="concurrent-requests"',
)


def test_the_tightest_limits_are_told_as_openai_does_and_all_as_the_ietf_does() -> None:
    assert limit_headers(ROOMS) == [
        ("x-ratelimit-limit-requests", "5"),
        ("x-ratelimit-remaining-requests", "3"),
        ("x-ratelimit-reset-requests", "24s"),
        ("x-ratelimit-limit-tokens", "1000"),
        ("x-ratelimit-remaining-tokens", "951"),
        ("x-ratelimit-reset-tokens", "23h59m59s"),
        ("RateLimit-Policy", ", ".join(POLICIES)),
        ("RateLimit", '"rpm";r=3;t=12, "rph";r=99;t=36, "tpd";r=951;t=86399, "at once";r=7'),
    ]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        pytest.param({}, '"x";q=5;w=60', id="requests are the draft's default"),
        pytest.param({"of": "tokens"}, '"x";q=5;qu="tidegate-tokens";w=60', id="tokens"),
        pytest.param({"of": "input_tokens"}, '"x";q=5;qu="tidegate-input-tokens";w=60', id="input tokens"),
        pytest.param({"of": "output_tokens"}, '"x";q=5;qu="tidegate-output-tokens";w=60', id="output tokens"),
        pytest.param({"of": "completions"}, '"x";q=5;qu="tidegate-completions";w=60', id="completions"),
        pytest.param({"of": "usd", "limit": 0.1}, '"x";q=100000;qu="tidegate-microdollars";w=60', id="micro-dollars"),
        pytest.param({"of": "concurrency", "per": None}, '"x";q=5;qu="concurrent-requests"', id="concurrency"),
    ],
)
def test_every_quantity_has_its_unit(settings: dict[str, Any], said: str) -> None:
    assert dict(limit_headers([room("x", **settings)]))["RateLimit-Policy"] == said


def test_tokens_of_one_direction_and_money_have_no_fields_of_openai_s() -> None:
    rooms = [room("i", of="input_tokens"), room("o", of="output_tokens"), room("d", of="usd")]
    assert [name for name, _ in limit_headers(rooms)] == ["RateLimit-Policy", "RateLimit"]


@pytest.mark.parametrize(
    ("burst", "told"),
    [
        pytest.param(9, ("9", "7", "24s"), id="above the limit"),
        pytest.param(3, ("3", "1", "24s"), id="below it"),
    ],
)
def test_where_there_is_a_burst_as_much_is_the_limit_and_never_more_left(burst: int, told: tuple[str, ...]) -> None:
    headers = dict(limit_headers([room("rpm", spent=2, burst=burst)]))
    assert tuple(headers[f"x-ratelimit-{part}-requests"] for part in ("limit", "remaining", "reset")) == told
    assert headers["RateLimit-Policy"] == '"rpm";q=5;w=60'


@pytest.mark.parametrize(
    ("at", "reset", "more"),
    [
        pytest.param(room("x", held=2, per="day", span=Span(NOW - 9_000, NOW + 500)), "500ms", "t=1", id="a window"),
        pytest.param(room("x", held=2), "24s", "t=12", id="a bucket"),
        pytest.param(room("x", spent=1, held=2), "36s", "t=12", id="beside what is spent"),
        pytest.param(room("x", held=2, of="concurrency", per=None), None, "r=3", id="concurrency never resets"),
    ],
)
def test_what_is_held_resets_as_if_it_were_spent(at: Room, reset: str | None, more: str) -> None:
    headers = dict(limit_headers([at]))
    assert (headers.get("x-ratelimit-reset-requests"), headers["RateLimit"].rpartition(";")[2]) == (reset, more)


def test_limits_that_are_observed_are_not_told() -> None:
    observed = [room("quiet", spent=9, mode="observe"), room("hushed", of="tokens", mode="observe")]
    assert limit_headers(observed) == []
    assert limit_headers([*observed, *ROOMS]) == limit_headers(ROOMS)


def test_on_a_refusal_no_reset_is_shorter_than_the_wait() -> None:
    headers = dict(limit_headers(ROOMS, retry_after_seconds=90))
    assert headers["x-ratelimit-reset-requests"] == "1m30s"
    assert headers["x-ratelimit-reset-tokens"] == "23h59m59s"


def test_without_limits_there_is_nothing_to_tell() -> None:
    assert limit_headers([]) == []


def test_only_what_is_limited_is_told() -> None:
    assert [name for name, _ in limit_headers(ROOMS[3:])] == ["RateLimit-Policy", "RateLimit"]


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0s"), (17, "17ms"), (999, "999ms"), (1_000, "1s"), (1_001, "2s"), (360_000, "6m0s"), (3_661_000, "1h1m1s")],
)
def test_durations(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text
