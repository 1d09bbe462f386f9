"""Every quantity that can be limited, through a whole gateway: so much passes and no more, and the refusal says it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from admitting import ORGANIZATION, held, records, spent
from whole import configuration, whole_gateway

if TYPE_CHECKING:
    from pathlib import Path

    from fake_upstream import FakeUpstream
    from stores import StoreServer

    from proxy.config import Configuration

ASKED = {"model": "m", "prompt": [1, 2, 3, 4, 5, 6, 7], "max_tokens": 10, "n": 2}
"""Holds 7 + 2 × 10 tokens; the scripted upstream reports 7 + 13. A token costs 1,000 micro-dollars."""
PRICE = {"input": 1_000.0, "output": 1_000.0}
REFUSED = "has no room for this request: it asks for"


def limited(url: str, data_dir: Path, price: dict[str, float] | None = PRICE, **limit: Any) -> Configuration:  # noqa: ANN401
    """One model with this price, and one limit, of which nothing refills while a test runs."""
    limits = [{"per": "365d", "by": ["user"], **limit}]
    models = {"m": {"deployments": [{"upstream": "only"}], "price": price}}
    policies = {"default": {"limits": limits}}
    return configuration(url, data_dir, organization={"id": ORGANIZATION}, policies=policies, models=models)


@pytest.mark.parametrize(
    ("limit", "code", "said", "left"),
    [
        pytest.param({"of": "tokens", "limit": 60}, "rate_limit_exceeded", "27, 20 left", 20, id="tokens"),
        pytest.param({"of": "input_tokens", "limit": 20}, "rate_limit_exceeded", "7, 6 left", 6, id="input tokens"),
        pytest.param(
            {"of": "output_tokens", "limit": 45}, "rate_limit_exceeded", "20, 19 left", 19, id="output tokens"
        ),
        pytest.param({"of": "completions", "limit": 5}, "rate_limit_exceeded", "2, 1 left", 1, id="completions"),
        pytest.param({"of": "usd", "limit": 0.06}, "insufficient_quota", "0.027 USD, 0.02 USD left", 20_000, id="usd"),
    ],
)
async def test_two_pass_and_the_third_is_told_why_not(
    upstream: FakeUpstream,
    valkey: StoreServer,
    tmp_path: Path,
    limit: dict[str, Any],
    code: str,
    said: str,
    left: int,
) -> None:
    async with whole_gateway(limited(upstream.url, tmp_path, **limit), valkey.url) as whole:
        *passed, refused = [(await whole.ask("POST", "/v1/completions", ASKED))[0] for _ in range(3)]
    assert [answer.status for answer in (*passed, refused)] == [200, 200, 429]
    assert len(upstream.served) == 2
    error = json.loads(refused.body)["error"]
    assert (error["code"], error["type"]) == (code, code)
    assert f"{REFUSED} {said}" in error["message"]
    assert f";r={left};" in refused.header("ratelimit")
    assert refused.header("x-should-retry") == "false"  # its Retry-After is far above a minute
    assert int(refused.header("retry-after")) > 60


async def test_what_can_never_fit_has_no_retry_after(
    upstream: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    async with whole_gateway(limited(upstream.url, tmp_path, of="usd", limit=0.026999), valkey.url) as whole:
        refused, _ = await whole.ask("POST", "/v1/completions", ASKED)
    assert refused.header("retry-after") is None
    assert "asks for 0.027 USD, 0.026999 USD left; it can never fit" in json.loads(refused.body)["error"]["message"]
    assert upstream.served == []


async def test_a_model_without_a_price_is_refused_where_usd_is_limited(
    upstream: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    async with whole_gateway(limited(upstream.url, tmp_path, None, of="usd", limit=5), valkey.url) as whole:
        refused, _ = await whole.ask("POST", "/v1/completions", ASKED)
    error = json.loads(refused.body)["error"]
    assert (refused.status, error["code"], error["param"]) == (400, "price_missing", "model")
    assert "models.m.price" in error["message"]
    assert refused.header("x-should-retry") == "false"
    assert upstream.served == []


async def test_who_has_spent_all_is_still_served_from_the_cache(
    upstream: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    known = {**ASKED, "temperature": 0}
    async with whole_gateway(limited(upstream.url, tmp_path, of="usd", limit=0.03), valkey.url) as whole:
        answers = [
            (await whole.ask("POST", "/v1/completions", body))[0]
            for body in (known, ASKED, known, {**known, "prompt": [8]})
        ]
    assert [answer.status for answer in answers] == [200, 429, 200, 429]
    assert len(upstream.served) == 1


@pytest.mark.parametrize(
    ("limit", "asked", "left"),
    [
        pytest.param({"of": "tokens", "limit": 60}, 27, 20, id="tokens"),
        pytest.param({"of": "input_tokens", "limit": 20}, 7, 6, id="input tokens"),
        pytest.param({"of": "output_tokens", "limit": 45}, 20, 19, id="output tokens"),
        pytest.param({"of": "completions", "limit": 5}, 2, 1, id="completions"),
        pytest.param({"of": "usd", "limit": 0.06}, 27_000, 20_000, id="usd, in micro-dollars"),
        pytest.param({"of": "requests", "limit": 2}, 1, 0, id="requests"),
    ],
)
async def test_an_observed_limit_lets_the_third_pass_and_tells_only_the_operator(
    upstream: FakeUpstream, valkey: StoreServer, tmp_path: Path, limit: dict[str, Any], asked: int, left: int
) -> None:
    settings = limited(upstream.url, tmp_path, **limit, name="trial", mode="observe")
    async with whole_gateway(settings, valkey.url) as whole:
        answers = [(await whole.ask("POST", "/v1/completions", ASKED))[0] for _ in range(3)]
        assert whole.metrics.observed_refusals_total.series() == [(["default", "trial"], 1)]
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert [answer.header("ratelimit") for answer in answers] == [None] * 3
    with valkey.client() as client:
        [*before, third] = [json.loads(record)["observed"] for record in records(client)]
    assert before == [[], []]
    assert third == [{"parameter": "trial", "rule": "reject", "policy": "default", "before": asked, "after": left}]


@pytest.mark.parametrize(
    ("limit", "code", "said", "after"),
    [
        pytest.param({"of": "tokens", "limit": 39}, "rate_limit_exceeded", "0 left", 40, id="tokens"),
        pytest.param({"of": "input_tokens", "limit": 8}, "rate_limit_exceeded", "0 left", 14, id="input tokens"),
        pytest.param({"of": "output_tokens", "limit": 14}, "rate_limit_exceeded", "0 left", 26, id="output tokens"),
        pytest.param({"of": "completions", "limit": 3}, "rate_limit_exceeded", "0 left", 4, id="completions"),
        pytest.param({"of": "usd", "limit": 0.020001}, "insufficient_quota", "0 USD left", 40_000, id="usd"),
    ],
)
async def test_what_is_settled_after_passes_while_a_unit_is_left(
    upstream: FakeUpstream,
    valkey: StoreServer,
    tmp_path: Path,
    limit: dict[str, Any],
    code: str,
    said: str,
    after: int,
) -> None:
    """Nothing is held, so the second passes with one unit left, or a few, and what it takes beyond is counted."""
    async with whole_gateway(limited(upstream.url, tmp_path, **limit, hold="none"), valkey.url) as whole:
        *passed, refused = [(await whole.ask("POST", "/v1/completions", ASKED))[0] for _ in range(3)]
    assert [answer.status for answer in (*passed, refused)] == [200, 200, 429]
    error = json.loads(refused.body)["error"]
    assert error["code"] == code
    assert f"has no room for this request: {said}; it fits in" in error["message"]
    assert int(refused.header("retry-after")) > 60
    with valkey.client() as client:
        assert (held(client), spent(client, limit["of"])) == (0, after)


@pytest.mark.parametrize("settings", [{"hold": "none"}, {"mode": "observe"}], ids=["settled after", "observed"])
async def test_where_nothing_has_to_be_held_no_ceiling_is_written(
    upstream: FakeUpstream, valkey: StoreServer, tmp_path: Path, settings: dict[str, str]
) -> None:
    made = limited(upstream.url, tmp_path, of="tokens", limit=1_000, **settings)
    async with whole_gateway(made, valkey.url) as whole:
        answer, _ = await whole.ask("POST", "/v1/completions", {"model": "m", "prompt": [1, 2]})
    assert answer.status == 200
    assert "max_tokens" not in upstream.served[0].json()
