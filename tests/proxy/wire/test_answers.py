from __future__ import annotations

from typing import Any

import pytest
from exchanges import STARTED_AT, make_exchange

from policies.policy import CacheSettings, Rule
from policies.requests.asked import Action, Adjustment
from proxy.exchange import CacheResult, Exchange
from proxy.store.entries import StoredAnswer
from proxy.wire.answers import adjusted, answer_headers, cache_status

KEYED = {"temperature": 0}
HOUR = CacheSettings(ttl="1h")


def stored(age_seconds: float, ttl_seconds: int | None = None) -> StoredAnswer:
    created = int((STARTED_AT - age_seconds) * 1000)
    return StoredAnswer(
        is_stream=False,
        content_type="application/json",
        body=b"{}",
        created_milliseconds=created,
        ttl_seconds=ttl_seconds,
    )


@pytest.mark.parametrize(
    ("fields", "cache_control", "facts", "expected"),
    [
        pytest.param(KEYED, None, {"cache": CacheResult.MISS}, "tidegate;fwd=miss", id="a miss"),
        pytest.param(
            KEYED, None, {"cache": CacheResult.MISS, "is_stored": True}, "tidegate;fwd=miss;stored", id="a miss, stored"
        ),
        pytest.param(
            {**KEYED, "stream": True},
            None,
            {"cache": CacheResult.MISS, "is_stored": True},
            "tidegate;fwd=miss",
            id="a stream's head leaves before it is known",
        ),
        pytest.param(
            KEYED,
            None,
            {"cache": CacheResult.STALE, "is_stored": True},
            "tidegate;fwd=stale;stored",
            id="a stale entry, replaced",
        ),
        pytest.param(
            KEYED,
            "max-age=5",
            {"cache": CacheResult.MISS, "cache_reason": "max-age"},
            "tidegate;fwd=request;detail=max-age",
            id="fresh, and older than the client takes",
        ),
        pytest.param(
            {}, None, {}, "tidegate;fwd=bypass;detail=not-deterministic", id="a bypass says why, though nobody noted it"
        ),
        pytest.param(
            {},
            None,
            {"cache_reason": "not-deterministic"},
            "tidegate;fwd=bypass;detail=not-deterministic",
            id="a bypass says why",
        ),
        pytest.param(KEYED, "no-cache", {"cache": CacheResult.MISS}, "tidegate;fwd=request", id="no-cache"),
        pytest.param(
            KEYED,
            "no-cache",
            {"cache": CacheResult.MISS, "is_stored": True},
            "tidegate;fwd=request;stored",
            id="no-cache refreshes",
        ),
        pytest.param(KEYED, "no-store", {"cache": CacheResult.MISS}, "tidegate;fwd=miss", id="no-store is a miss"),
    ],
)
def test_cache_status_of_what_was_fetched(
    fields: dict[str, Any], cache_control: str | None, facts: dict[str, Any], expected: str
) -> None:
    exchange = make_exchange(fields, cache_control=cache_control)
    for name, value in facts.items():
        setattr(exchange, name, value)
    assert cache_status(exchange) == expected


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        pytest.param(stored(0), [("Cache-Status", "tidegate;hit;ttl=3600"), ("Age", "0")], id="just stored"),
        pytest.param(stored(1.5), [("Cache-Status", "tidegate;hit;ttl=3599"), ("Age", "1")], id="a second and a half"),
        pytest.param(stored(-5), [("Cache-Status", "tidegate;hit;ttl=3600"), ("Age", "0")], id="a clock behind"),
        pytest.param(stored(1.5, 10), [("Cache-Status", "tidegate;hit;ttl=9"), ("Age", "1")], id="stored for less"),
        pytest.param(stored(1.5, 9999), [("Cache-Status", "tidegate;hit;ttl=3599"), ("Age", "1")], id="and for more"),
    ],
)
def test_a_hit_says_its_age_and_what_is_left(entry: StoredAnswer, expected: list[tuple[str, str]]) -> None:
    exchange = make_exchange(KEYED, cache=HOUR)
    exchange.cache = CacheResult.HIT
    assert answer_headers(exchange, entry) == expected


def test_adjustments_go_out_with_the_answer() -> None:
    exchange = make_exchange({"n": 8}, rules={"n": Rule(max=4, on_violation="clamp")})
    assert dict(answer_headers(exchange))["x-tidegate-adjusted"] == "n;from=8;to=4;rule=clamp"


def test_an_untouched_request_has_no_word_of_adjustments() -> None:
    assert [name for name, _ in answer_headers(make_exchange({"n": 2}))] == ["Cache-Status"]


def test_nothing_goes_out_without_a_decision() -> None:
    assert answer_headers(Exchange("req_1", STARTED_AT, 0.0)) == []


@pytest.mark.parametrize(
    ("adjustment", "expected"),
    [
        pytest.param(
            Adjustment("max_tokens", None, 16, Action.DEFAULT), "max_tokens;to=16;rule=default", id="nothing before"
        ),
        pytest.param(
            Adjustment("temperature", 1.5, 0.5, Action.CLAMP), "temperature;from=1.5;to=0.5;rule=clamp", id="decimals"
        ),
        pytest.param(
            Adjustment("temperature", 1e-7, 0, Action.FORCE),
            'temperature;from="1e-07";to=0;rule=force',
            id="a number that decimals cannot say",
        ),
        pytest.param(
            Adjustment("seed", 2**62, None, Action.DROP),
            'seed;from="4611686018427387904";rule=drop',
            id="an integer that the syntax has no room for",
        ),
        pytest.param(
            Adjustment("echo", [True], after=True, action=Action.NORMALISE),
            'echo;from="1 items";to;rule=normalise',
            id="true stands alone",
        ),
        pytest.param(
            Adjustment("echo", before=True, after=False, action=Action.FORCE),
            "echo;from;to=?0;rule=force",
            id="false is ?0",
        ),
        pytest.param(
            Adjustment("suffix", 'a"\r\nSet-Cookie: x=é', None, Action.DROP),
            'suffix;from="a\\"??Set-Cookie: x=?";rule=drop',
            id="text cannot begin a header of its own",
        ),
        pytest.param(
            Adjustment("stop", "x" * 1000, None, Action.DROP),
            f"stop;from={'x' * 61}...;rule=drop",
            id="long text is cut",
        ),
        pytest.param(
            Adjustment("bad name", 1, None, Action.DROP), '"bad name";from=1;rule=drop', id="a name that is no token"
        ),
        pytest.param(Adjustment("", 1, None, Action.DROP), '"";from=1;rule=drop', id="an empty name"),
    ],
)
def test_adjustments_are_written_as_structured_fields(adjustment: Adjustment, expected: str) -> None:
    assert adjusted([adjustment]) == expected


def test_adjustments_keep_their_order() -> None:
    made = [Adjustment("n", 8, 4, Action.CLAMP), Adjustment("echo", before=True, after=None, action=Action.DROP)]
    assert adjusted(made) == "n;from=8;to=4;rule=clamp, echo;from;rule=drop"
