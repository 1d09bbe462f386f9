"""The path of a request, end to end in one process: the order of its stations, and what each leaves behind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from sending import fake_upstream, up
from whole import configuration, whole_gateway

if TYPE_CHECKING:
    from pathlib import Path

    from fake_upstream import FakeUpstream
    from stores import StoreServer

    from proxy.config import Configuration

__all__ = ["fake_upstream", "up"]

ASKED = {"model": "m", "prompt": "hello", "temperature": 0, "max_tokens": 4}


def records(valkey: StoreServer) -> list[dict[str, Any]]:
    """Return the usage records that wait in the outbox."""
    with valkey.client() as client:
        found = []
        for key in client.scan_iter(_type="stream"):
            found += [json.loads(value) for _, entry in client.xrange(key) for value in entry.values()]
        return found


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("/v1/completions", ASKED),
        ("/v1/completions", {**ASKED, "model": "davinci"}),
        ("/v1/engines/m/completions", {"prompt": "hello", "temperature": 0, "max_tokens": 4}),
        ("/openai/deployments/m/completions?api-version=2024-10-21", {**ASKED, "model": "ignored"}),
    ],
    ids=["today's path", "an alias", "the engines path", "Azure's deployments"],
)
async def test_the_dialects_are_one_request_and_share_an_entry(
    target: str, body: dict[str, object], up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    async with whole_gateway(configuration(up.url, tmp_path), valkey.url) as whole:
        first, _ = await whole.ask("POST", "/v1/completions", ASKED)
        again, _ = await whole.ask("POST", target, body)
    assert (first.status, again.status) == (200, 200)
    assert again.header("cache-status").startswith("tidegate;hit")
    assert again.body == first.body
    assert [request.json()["model"] for request in up.served] == ["m"]


async def test_a_hit_says_no_longer_life_than_its_entry_has(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    def caching(ttl: str) -> Configuration:
        return configuration(up.url, tmp_path / ttl, policies={"default": {"cache": {"ttl": ttl}}})

    async with whole_gateway(caching("5m"), valkey.url) as whole:
        await whole.ask("POST", "/v1/completions", ASKED)
    async with whole_gateway(caching("7d"), valkey.url) as whole:
        hit, _ = await whole.ask("POST", "/v1/completions", ASKED)
    assert 0 < int(hit.header("cache-status").removeprefix("tidegate;hit;ttl=")) <= 300


async def test_who_asks_is_known_before_the_body_is_read(valkey: StoreServer, tmp_path: Path) -> None:
    async with whole_gateway(configuration("http://127.0.0.1:9", tmp_path), valkey.url) as whole:
        answer, sent = await whole.ask("POST", "/v1/completions", ASKED, Authorization="Bearer nobody")
    assert answer.status == 401
    assert not sent.is_read


async def test_permission_comes_before_the_cache(up: FakeUpstream, valkey: StoreServer, tmp_path: Path) -> None:
    everybody = configuration(up.url, tmp_path / "a", projects=[{"id": "proj", "policy": "default"}])
    async with whole_gateway(everybody, valkey.url) as whole:
        stored, _ = await whole.ask("POST", "/v1/completions", {**ASKED, "model": "hidden"})
    async with whole_gateway(configuration(up.url, tmp_path / "b"), valkey.url) as whole:
        answer, _ = await whole.ask("POST", "/v1/completions", {**ASKED, "model": "hidden"})
    assert stored.header("cache-status") == "tidegate;fwd=miss;stored"
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (403, "model_not_allowed")


async def test_only_if_cached_goes_nowhere_and_holds_nothing(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    limits = [{"of": "tokens", "limit": 100, "per": "hour", "by": ["user"]}]
    limited = configuration(up.url, tmp_path, policies={"default": {"limits": limits}})
    async with whole_gateway(limited, valkey.url) as whole:
        absent, _ = await whole.ask("POST", "/v1/completions", ASKED, Cache_Control="only-if-cached")
        served, _ = await whole.ask("POST", "/v1/completions", ASKED)
        present, _ = await whole.ask("POST", "/v1/completions", ASKED, Cache_Control="only-if-cached")
    assert (absent.status, absent.header("x-should-retry")) == (504, "false")
    assert (served.status, present.status) == (200, 200)
    assert len(up.served) == 1
    assert served.header("x-ratelimit-remaining-tokens") == "80"  # the scripted upstream reports 20


async def test_a_refused_look_up_takes_nothing_and_says_so(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    limits = [
        {"of": "requests", "limit": 10, "per": "day", "by": ["user"]},
        {"of": "tokens", "limit": 50, "per": "day", "by": ["user"]},
    ]
    limited = configuration(up.url, tmp_path, policies={"default": {"limits": limits}})
    async with whole_gateway(limited, valkey.url) as whole:
        served, _ = await whole.ask("POST", "/v1/completions", ASKED)
        refused = [(await whole.ask("POST", "/v1/completions", {**ASKED, "prompt": "other"}))[0] for _ in range(2)]
        hit, _ = await whole.ask("POST", "/v1/completions", ASKED)
    assert [answer.status for answer in (served, *refused, hit)] == [200, 429, 429, 200]
    left = [answer.header("x-ratelimit-remaining-requests") for answer in (served, *refused, hit)]
    assert left == ["9", "9", "9", "8"]


async def test_what_policy_changed_is_what_is_sent_and_told(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    rules = {"n": {"max": 2, "on_violation": "clamp"}, "user": {"force": "pseudonym"}}
    ruled = configuration(up.url, tmp_path, policies={"default": {"parameters": rules}})
    async with whole_gateway(ruled, valkey.url) as whole:
        answer, _ = await whole.ask("POST", "/v1/completions", {**ASKED, "n": 5})
    sent = up.served[0].json()
    assert (sent["n"], sent["user"]) == (2, "pseudonym")
    assert "n;from=5;to=2;rule=clamp" in answer.header("x-tidegate-adjusted")


@pytest.mark.parametrize(
    ("body", "status", "outcome"),
    [
        pytest.param(ASKED, 200, "completed", id="a completion"),
        pytest.param({**ASKED, "n": 0}, 400, "rejected", id="a parameter out of range"),
        pytest.param(b"{", 400, "rejected", id="no JSON"),
        pytest.param({**ASKED, "model": "none"}, 404, "rejected", id="no such model"),
        pytest.param({**ASKED, "model": "hidden"}, 403, "rejected", id="a model of others"),
    ],
)
async def test_every_finished_request_of_a_known_key_leaves_one_record(
    body: dict[str, object] | bytes, status: int, outcome: str, up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    async with whole_gateway(configuration(up.url, tmp_path), valkey.url) as whole:
        answer, _ = await whole.ask("POST", "/v1/completions", body)
    [record] = records(valkey)
    assert record["configuration_version"] == whole.gateway.snapshot.version != ""
    assert answer.status == status
    assert (record["owner"], record["status"], record["outcome"]) == ("alice", status, outcome)
    assert record["request_id"] == answer.header("x-request-id")
    assert "hello" not in json.dumps(record)


@pytest.mark.parametrize("target", ["/v1/models", "/healthz", "/nowhere"])
async def test_what_generates_nothing_leaves_no_record(target: str, valkey: StoreServer, tmp_path: Path) -> None:
    async with whole_gateway(configuration("http://127.0.0.1:9", tmp_path), valkey.url) as whole:
        await whole.ask("GET", target)
    assert records(valkey) == []
