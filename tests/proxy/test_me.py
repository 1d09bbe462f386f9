"""`GET /v1/tidegate/me` on a whole gateway: what a key's owner is told, and who is told nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import json_reply
from sending import fake_upstream, up
from whole import KEY, configuration, whole_gateway

if TYPE_CHECKING:
    from pathlib import Path

    from fake_upstream import FakeUpstream
    from stores import StoreServer
    from whole import Whole

__all__ = ["fake_upstream", "up"]

ME = "/v1/tidegate/me"
# Within so long a window next to nothing refills while a test runs.
POLICIES = {
    "default": {
        "limits": [
            {"of": "requests", "limit": 5, "per": "365d", "by": ["user"]},
            {"of": "tokens", "limit": 1_000, "per": "365d", "by": ["end_user", "model"]},
        ]
    }
}
REQUEST = {"model": "m", "prompt": "x", "max_tokens": 10, "user": "eve"}
ANSWER = {
    "object": "text_completion",
    "choices": [{"index": 0, "text": "!", "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
}


async def limits(whole: Whole, target: str = ME) -> list[dict[str, Any]]:
    answer, _ = await whole.ask("GET", target)
    assert answer.status == 200
    found: list[dict[str, Any]] = json.loads(answer.body)["limits"]
    return found


async def test_the_owner_of_a_key_is_told_who_that_is_and_nobody_elses_models(
    valkey: StoreServer, tmp_path: Path
) -> None:
    async with whole_gateway(configuration("http://127.0.0.1:9", tmp_path), valkey.url) as whole:
        answer, _ = await whole.ask("GET", ME)
    told = json.loads(answer.body)
    assert (told["principal"]["key"], told["principal"]["owner"]) == ("key_alice", "alice")
    assert (told["models"], told["limits"]) == (["davinci", "m"], [])
    assert KEY.encode() not in answer.body
    headers = {name.lower(): value for name, value in answer.fields}
    assert (headers["content-type"], headers["cache-control"]) == ("application/json", "no-store")
    assert headers["x-request-id"].startswith("req_")


async def test_what_was_used_is_told_and_asking_takes_nothing(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    up.script(json_reply(ANSWER))
    async with whole_gateway(configuration(up.url, tmp_path, policies=POLICIES), valkey.url) as whole:
        assert [each["left"] for each in await limits(whole)] == [5, 1_000]
        answer, _ = await whole.ask("POST", "/v1/completions", REQUEST)
        assert answer.status == 200
        for _ in range(2):
            requests, tokens = await limits(whole, ME + "?user=eve")
            assert [requests[name] for name in ("used", "held", "left")] == [1, 0, 4]
            assert [tokens[name] for name in ("used", "held", "left")] == [8, 0, 992]
            assert tokens["scope"] == {"end_user": "eve", "model": "m"}
        assert [each["used"] for each in await limits(whole)] == [1, 0]
        assert [each["used"] for each in await limits(whole, ME + "?user=")] == [1, 0]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        pytest.param("user=a&user=b", "more than once", id="two end users"),
        pytest.param("user=%ff", "text in UTF-8", id="one that is no text"),
        pytest.param("user=%ed%a0%80", "text in UTF-8", id="half a character"),
    ],
)
async def test_an_end_user_that_is_none_is_a_400(query: str, said: str, valkey: StoreServer, tmp_path: Path) -> None:
    async with whole_gateway(configuration("http://127.0.0.1:9", tmp_path), valkey.url) as whole:
        answer, _ = await whole.ask("GET", f"{ME}?{query}")
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["param"]) == (400, "user")
    assert said in error["message"]


async def test_nobody_is_told_without_a_key(valkey: StoreServer, tmp_path: Path) -> None:
    async with whole_gateway(configuration("http://127.0.0.1:9", tmp_path), valkey.url) as whole:
        for credential in ("", "Bearer nobody"):
            answer, _ = await whole.ask("GET", ME, Authorization=credential)
            assert answer.status == 401


async def test_a_store_that_is_away_is_a_503_that_says_when_to_ask_again(tmp_path: Path) -> None:
    settings = configuration("http://127.0.0.1:9", tmp_path, policies=POLICIES)
    async with whole_gateway(settings, f"unix://{tmp_path}/none.sock") as whole:
        answer, _ = await whole.ask("GET", ME)
    headers = {name.lower(): value for name, value in answer.fields}
    assert (answer.status, headers["retry-after"]) == (503, "1")
    assert json.loads(answer.body)["error"]["code"] == "store_unavailable"
