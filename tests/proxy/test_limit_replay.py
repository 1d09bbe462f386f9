"""Limits over requests that have been: what was held then, settled since, and refused for want of room."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import pytest

from policies.catalog import Deployment, Model, ModelSettings
from policies.charges import NOTHING, Charged, WorstCase
from policies.limits import BoundLimit, NamedLimit, bind_limits
from policies.policy import Limit
from policies.principals import Principal
from proxy.limit_replay import LimitReplay
from proxy.store.reservations import Hits

MODEL = Model("m", ModelSettings(deployments=(Deployment(upstream="a"),)))
BERLIN = ZoneInfo("Europe/Berlin")
NOON = 1_767_265_200_000  # 2026-01-01T12:00 in Berlin
SECOND, HOUR = 1_000, 3_600_000
REQUESTS = {"of": "requests", "limit": 2, "per": "day"}
TOKENS = {"of": "tokens", "limit": 100, "per": "day"}
MINUTE = {"of": "tokens", "limit": 60, "per": "minute"}
CONCURRENCY = {"of": "concurrency", "limit": 1}


def bound(*limits: dict[str, Any], user: str = "alice", tokens: int = 50) -> tuple[BoundLimit, ...]:
    named = [NamedLimit("p", Limit(**{"by": ("user",), **limit})) for limit in limits]
    return bind_limits(named, Principal("org", "proj", user, "key"), MODEL, None, WorstCase(0, tokens, 0))


def replayed(
    *steps: tuple[float, float, int], limits: tuple[dict[str, Any], ...], held: int = 50, hits: Hits = Hits.NO
) -> list[str | None]:
    """Admit requests by their start and end (seconds after noon) and tokens; tell the limits that refuse them."""
    replay, told = LimitReplay("org", BERLIN), []
    for start, end, tokens in steps:
        refusal, _ = replay.admit(
            bound(*limits, tokens=held),
            Charged(output_tokens=tokens),
            started=NOON + round(start * SECOND),
            ended=NOON + round(end * SECOND),
            hits=hits,
        )
        told.append(None if refusal is None else refusal.room.bound.limit.of)
    return told


@pytest.mark.parametrize(
    ("limits", "steps", "expected"),
    [
        pytest.param((REQUESTS,), [(0, 1, 5)] * 3, [None, None, "requests"], id="requests are counted at their start"),
        pytest.param(
            (REQUESTS,),
            [(0, 1, 5), (1, 2, 5), (12 * 3600, 12 * 3600 + 1, 5)],
            [None, None, None],
            id="a day ends at midnight of the zone",
        ),
        pytest.param(
            (TOKENS,),
            [(0, 9, 10), (1, 9, 10), (2, 9, 10), (10, 11, 10)],
            [None, None, "tokens", None],
            id="the worst case is held until the end",  # 50 + 50, then 10 + 10 + 50
        ),
        pytest.param(
            (TOKENS,),
            [(0, 1, 30), (2, 3, 30), (4, 5, 30)],
            [None, None, "tokens"],
            id="and what was charged after it",  # 60 + 50 > 100
        ),
        pytest.param(
            (MINUTE,),
            [(0, 1, 40), (2, 3, 40), (32, 33, 40)],
            [None, "tokens", None],
            id="a bucket refills meanwhile",  # 39 left to refill at 2 s, 9 at 32 s
        ),
        pytest.param(
            (CONCURRENCY,), [(0, 5, 1), (1, 2, 1), (5, 6, 1)], [None, "concurrency", None], id="one at a time"
        ),
        pytest.param(
            (TOKENS, CONCURRENCY),
            [(0, 5, 10), (1, 2, 10), (5, 6, 10)],
            [None, "concurrency", None],
            id="who is refused takes from none",
        ),
        pytest.param(
            ({**TOKENS, "mode": "observe"},), [(0, 9, 90)] * 3, [None] * 3, id="an observed one refuses nobody"
        ),
        pytest.param(
            ({**TOKENS, "mode": "observe"}, REQUESTS),
            [(0, 9, 90)] * 3,
            [None, None, "requests"],
            id="and is not what refused",
        ),
        pytest.param(
            ({**TOKENS, "hold": "none"},),
            [(0, 9, 99), (1, 9, 99), (9, 10, 1)],
            [None, None, "tokens"],
            id="one that is settled after holds nothing",
        ),
        pytest.param(
            (TOKENS,), [(0, -1, 100), (1, 2, 1)], [None, "tokens"], id="what ended before it began ended at once"
        ),
    ],
)
def test_room_is_taken_and_given_back(
    limits: tuple[dict[str, Any], ...], steps: list[tuple[float, float, int]], expected: list[str | None]
) -> None:
    assert replayed(*steps, limits=limits) == expected


@pytest.mark.parametrize(
    ("hits", "limits", "expected"),
    [
        pytest.param(Hits.MAYBE, (TOKENS,), [None, None, None], id="a hit needs no tokens"),
        pytest.param(Hits.MAYBE, (REQUESTS,), [None, None, "requests"], id="but requests"),
        pytest.param(
            Hits.MAYBE, ({**TOKENS, "charge_hits": "full"},), [None, "tokens", "tokens"], id="and tokens where said so"
        ),
        pytest.param(Hits.ONLY, (TOKENS,), [None, None, None], id="who wants a hit only needs no tokens"),
        pytest.param(Hits.ONLY, (REQUESTS,), [None, None, "requests"], id="but requests"),
    ],
)
def test_answers_from_the_cache(hits: Hits, limits: tuple[dict[str, Any], ...], expected: list[str | None]) -> None:
    steps = [(0, 1, 60), (2, 3, 60), (4, 5, 60)]
    assert replayed(*steps, limits=limits, hits=hits) == expected


def test_each_user_has_a_count() -> None:
    replay = LimitReplay("org", BERLIN)

    def refused(user: str) -> bool:
        limits = bound({**REQUESTS, "limit": 1}, user=user)
        return replay.admit(limits, NOTHING, started=NOON, ended=NOON, hits=Hits.NO).refusal is not None

    assert [refused(user) for user in ("alice", "bob", "alice")] == [False, False, True]


def test_a_refusal_says_what_was_asked() -> None:
    replay = LimitReplay("org", BERLIN)
    refusal = replay.admit(bound(TOKENS, tokens=101), NOTHING, started=NOON, ended=NOON, hits=Hits.NO).refusal
    assert refusal is not None
    assert (refusal.room.bound.name, refusal.room.bound.ask, refusal.retry_after_seconds) == (
        "tokens-per-day-by-user",
        101,
        None,
    )


OBSERVED = {**TOKENS, "mode": "observe"}


@pytest.mark.parametrize(
    ("limits", "hits", "expected"),
    [
        pytest.param((OBSERVED,), Hits.NO, [[], ["tokens"], ["tokens"]], id="it counts on though it is full"),
        pytest.param((OBSERVED, TOKENS), Hits.NO, [[], [], []], id="who is refused is refused by what refuses alone"),
        pytest.param(
            (OBSERVED, {**REQUESTS, "mode": "observe"}),
            Hits.NO,
            [[], ["tokens"], ["tokens", "requests"]],
            id="two of them, each by its own count",
        ),
        pytest.param((OBSERVED,), Hits.MAYBE, [[], [], []], id="an answer from the cache takes no tokens"),
        pytest.param(
            ({**OBSERVED, "charge_hits": "full"},), Hits.MAYBE, [[], ["tokens"], ["tokens"]], id="but where said so"
        ),
        pytest.param((OBSERVED,), Hits.ONLY, [[], [], []], id="who wants a hit only takes no tokens"),
    ],
)
def test_what_observed_limits_would_have_refused(
    limits: tuple[dict[str, Any], ...], hits: Hits, expected: list[list[str]]
) -> None:
    replay, told = LimitReplay("org", BERLIN), []
    for second in (0, 2, 4):  # each takes 60 of 100 tokens, and is over before the next one comes
        moment = NOON + second * SECOND
        replayed = replay.admit(
            bound(*limits), Charged(output_tokens=60), started=moment, ended=moment + SECOND, hits=hits
        )
        told.append([each.limit.of for each in replayed.observed])
    assert told == expected
