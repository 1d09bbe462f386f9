"""What stands in the cache for a request, in a real store; workers put it there as `AnswerCache` does."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from policies.usage import Provider, Usage
from proxy.cached_entries import describe_entries, plan_of, read_cached
from proxy.config import Configuration
from proxy.errors import StoreUnavailable
from proxy.explanation import Question, explain
from proxy.metrics import Metrics
from proxy.store import keys as store_keys
from proxy.store.audit import Actor, Event
from proxy.store.connection import Store
from proxy.store.entries import StoredAnswer
from proxy.store.keys import Keys
from proxy.store.purges import Scope, purge
from proxy.store.reservations import store_now
from proxy.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stores import StoreServer

    from proxy.explanation import Explained

ORGANIZATION = "org_acme"
CONFIGURATION = Configuration.model_validate(
    {
        "organization": {"id": ORGANIZATION},
        "upstreams": {"u": {"kind": "openai", "base_url": "http://u"}},
        "models": {"m": {"deployments": [{"upstream": "u"}]}},
        "policies": {
            "default": {"cache": {"ttl": "1h"}},
            "off": {"cache": {"mode": "off"}},
            "loose": {"cache": {"fingerprint": "ignore"}},
        },
        "projects": [
            {"id": "proj", "policy": "default"},
            {"id": "uncached", "policy": "off"},
            {"id": "loose", "policy": "loose"},
        ],
        "keys": [{"id": "key_a", "project": "proj", "user": "alice", "sha256": sha256(b"sk-alice").hexdigest()}],
    }
)
REQUEST: dict[str, Any] = {"model": "m", "prompt": "Hi", "temperature": 0}
BODY = b'{"object":"text_completion","choices":[{"index":0,"text":"!","logprobs":null,"finish_reason":"stop"}]}'
MANY_PROMPTS = {**REQUEST, "prompt": ["one", "two", "one"]}


def explained(request: dict[str, Any] = REQUEST, *, project: str = "proj", **asked: Any) -> Explained:  # noqa: ANN401
    return explain(CONFIGURATION, Question(json.dumps(request).encode(), project=project, **asked))


def keys_of(one: Explained) -> tuple[str, ...]:
    plan = plan_of(one)
    assert plan is not None
    return plan.items or (plan.key,)


@asynccontextmanager
async def opened(server: StoreServer) -> AsyncIterator[Store]:
    store = Store(server.url, name="state", metrics=Metrics())
    await store.start()
    try:
        yield store
    finally:
        await store.close()


async def put(store: Store, key: str, **changes: Any) -> StoredAnswer:  # noqa: ANN401  members of the answer
    """Store an answer that was fetched 90 s ago and lives for an hour, in the epoch of now."""
    epoch = await store.command("HGET", Keys(ORGANIZATION).cache, "epoch")
    answer = StoredAnswer(
        is_stream=False,
        content_type="application/json",
        body=BODY,
        created_milliseconds=store_now(store) - 90_000,
        usage=Usage(3, 5),
        fingerprint="fp_1",
        model="m-2026",
        ttl_seconds=3_600,
        generation=int(epoch or 0),
        deployment="u/m",
        asked_model="m",
        provider=Provider("proj", "alice", is_service_account=False, key="key_a"),
        request_id="req_1",
    )
    answer = replace(answer, **changes)
    await store.command("SET", store_keys.stored(key), answer.pack(key))
    return answer


async def told_of(store: Store, one: Explained, *, with_body: bool = False) -> dict[str, Any]:
    plan = plan_of(one)
    entries = () if plan is None else await read_cached(store, store, ORGANIZATION, plan)
    told = describe_entries(one, entries, with_body=with_body)
    assert json.loads(json.dumps(told)) == told
    return told


async def show(store: Store, fingerprint: str, at: int) -> None:
    """Have the deployment answer with a fingerprint at a time, where another one is retired after half a second."""
    keys = Keys(ORGANIZATION)
    arguments = ["u/m", "m", fingerprint, at, 500, 32]
    await store.run(Script("see_fingerprint"), [keys.cache, keys.fingerprints], arguments)


async def purge_model(store: Store) -> None:
    await purge(store, ORGANIZATION, [Scope("model", "m")], Event("cache.purged", Actor("session", "root"), "", {}))


async def test_an_entry_is_told_with_all_that_is_known_of_it(valkey: StoreServer) -> None:
    one = explained()
    async with opened(valkey) as store:
        await put(store, *keys_of(one))
        told = await told_of(store, one, with_body=True)
    assert (told["verdict"], told["reason"], told["is_array"]) == ("hit", None, False)
    assert told["cache"]["key"] == keys_of(one)[0]
    [entry] = told["entries"]
    assert 90 <= entry.pop("age_seconds") <= 95
    assert 3_505 <= entry.pop("left_seconds") <= 3_510
    del entry["created_milliseconds"]
    assert entry.pop("stored_bytes") > len(BODY)
    assert entry == {
        "key": keys_of(one)[0],
        "verdict": "hit",
        "form": "whole",
        "content_type": "application/json",
        "body_bytes": len(BODY),
        "model": "m-2026",
        "asked_model": "m",
        "deployment": "u/m",
        "fingerprint": "fp_1",
        "fingerprint_retired_milliseconds": None,
        "generation": 0,
        "is_purged": False,
        "provider": {"project": "proj", "owner": "alice", "is_service_account": False, "key": "key_a"},
        "request_id": "req_1",
        "usage": {"input_tokens": 3, "output_tokens": 5, "cached_input_tokens": 0, "reasoning_tokens": 0},
        "body": BODY.decode(),
    }


@pytest.mark.parametrize(
    ("request_", "changes", "asked", "verdict", "reason"),
    [
        pytest.param(REQUEST, {}, {}, "hit", None, id="fresh"),
        pytest.param({**REQUEST, "stream": True}, {}, {}, "hit", None, id="asked for as a stream, which it can be"),
        pytest.param(
            {**REQUEST, "stream": True}, {"body": b"{"}, {}, "miss", "not-convertible", id="which it cannot be"
        ),
        pytest.param(REQUEST, {"created_milliseconds": 0}, {}, "miss", "stale", id="older than the policy's ttl"),
        pytest.param(REQUEST, {}, {"cache_control": "max-age=60"}, "miss", "max-age", id="older than asked for"),
        pytest.param(REQUEST, {}, {"cache_control": "no-cache"}, "miss", "no-cache", id="not to be looked up"),
        pytest.param(REQUEST, {"generation": 10**14}, {}, "miss", "purged", id="of an epoch that is not known"),
    ],
)
async def test_whether_it_would_be_served(
    valkey: StoreServer,
    request_: dict[str, Any],
    changes: dict[str, Any],
    asked: dict[str, Any],
    verdict: str,
    reason: str | None,
) -> None:
    one = explained(request_, **asked)
    async with opened(valkey) as store:
        await put(store, *keys_of(one), **changes)
        told = await told_of(store, one)
    assert (told["verdict"], told["reason"]) == (verdict, reason)
    assert "body" not in told["entries"][0]


async def test_a_purge_makes_it_stale_and_what_is_fetched_after_it_is_not(valkey: StoreServer) -> None:
    one = explained()
    async with opened(valkey) as store:
        await put(store, *keys_of(one))
        await purge_model(store)
        told = await told_of(store, one)
        await put(store, *keys_of(one))
        again = await told_of(store, one)
    assert (told["verdict"], told["reason"], told["entries"][0]["is_purged"]) == ("miss", "purged", True)
    assert (again["verdict"], again["entries"][0]["is_purged"]) == ("hit", False)


async def test_a_retired_fingerprint_makes_it_stale_unless_the_policy_ignores_that(valkey: StoreServer) -> None:
    one, other = explained(), explained(project="loose")
    assert keys_of(one) == keys_of(other)
    async with opened(valkey) as store:
        for fingerprint, at in (("fp_1", 1_000), ("fp_2", 2_000), ("fp_2", 2_500)):
            await show(store, fingerprint, at)
        await put(store, *keys_of(one))
        told, ignored = await told_of(store, one), await told_of(store, other)
    assert (told["verdict"], told["reason"]) == ("miss", "fingerprint")
    assert ignored["verdict"] == "hit"
    assert [each["entries"][0]["fingerprint_retired_milliseconds"] for each in (told, ignored)] == [2_500, 2_500]


async def test_nothing_and_what_cannot_be_read_are_misses(valkey: StoreServer) -> None:
    one = explained()
    async with opened(valkey) as store:
        nothing = await told_of(store, one)
        await store.command("SET", store_keys.stored(*keys_of(one)), b"tidegate-entry-1\nx")
        unreadable = await told_of(store, one)
    assert (nothing["verdict"], nothing["reason"]) == ("miss", None)
    assert nothing["entries"] == [{"key": keys_of(one)[0], "verdict": "miss", "stored_bytes": 0}]
    assert (unreadable["verdict"], unreadable["reason"]) == ("miss", "unreadable")
    assert unreadable["entries"][0]["stored_bytes"] == 18


async def test_an_array_is_told_item_by_item_in_its_order(valkey: StoreServer) -> None:
    one = explained(MANY_PROMPTS)
    first, second, third = keys_of(one)
    assert first == third != second
    async with opened(valkey) as store:
        await put(store, first)
        partial = await told_of(store, one)
        await put(store, second)
        hit = await told_of(store, one)
    assert (partial["verdict"], partial["reason"], partial["is_array"]) == ("partial", None, True)
    assert [(each["key"], each["verdict"]) for each in partial["entries"]] == [
        (first, "hit"),
        (second, "miss"),
        (first, "hit"),
    ]
    assert hit["verdict"] == "hit"


async def test_an_array_may_have_more_items_than_are_asked_for_at_once(valkey: StoreServer) -> None:
    one = explained({**REQUEST, "prompt": [str(number) for number in range(100)]})
    keys = keys_of(one)
    async with opened(valkey) as store:
        for key in keys[1::2]:
            await put(store, key)
        told = await told_of(store, one)
    assert [each["key"] for each in told["entries"]] == list(keys)
    assert [each["verdict"] for each in told["entries"]] == ["miss", "hit"] * 50


async def test_what_is_not_cacheable_and_what_is_refused_say_why() -> None:
    off, warm, refused = (
        explained(project="uncached"),
        explained({**REQUEST, "temperature": 1}),
        explained({"model": "x"}),
    )
    for one, verdict, reason in (
        (off, "bypass", "off"),
        (warm, "bypass", "not-deterministic"),
        (refused, "refused", None),
    ):
        assert plan_of(one) is None
        told = describe_entries(one)
        assert (told["verdict"], told["reason"], told["entries"]) == (verdict, reason, [])
    assert describe_entries(refused)["status"] == 404


async def test_a_store_that_is_away_cannot_be_asked() -> None:
    store = Store("unix:///nowhere/store.sock", name="state", metrics=Metrics())
    await store.start()
    plan = plan_of(explained())
    assert plan is not None
    with pytest.raises(StoreUnavailable):
        await read_cached(store, store, ORGANIZATION, plan)
    await store.close()
