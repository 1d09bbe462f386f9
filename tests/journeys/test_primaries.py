"""Gateways whose store is a cluster, or watched by sentinels, follow whoever is primary, and count on where it was."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from fake_upstream import App
from gateway import ADMIN_KEY, Gateway, Settings, bearer, eventually, settings
from harness import Resp, call, uniq
from stores import SentinelGroup, StoreCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fake_upstream import FakeUpstream
    from stores import StoreServer

    StartGateway = Callable[[Settings], Gateway]
    Followed = StoreCluster | SentinelGroup

ORGANIZATION = "org_acme"
TAG = f"{{{ORGANIZATION}}}"
LIMIT = 100_000
TOKENS_EACH = 20
"""What the upstream reports, whatever it was asked."""

MANY = {"limit": LIMIT, "per": "month", "by": ["user"], "on_store_failure": "deny"}
EVERY_QUANTITY = [
    {"of": "requests", **MANY},
    {"of": "tokens", **MANY},
    {"of": "usd", **MANY},
    {"of": "requests", "limit": LIMIT, "per": "hour", "by": ["organization"]},
    {"of": "concurrency", "limit": 1, "by": ["user"], "on_exceed": "wait"},
]
PRICED = {"price": {"input": 1.0, "output": 2.0}}


@pytest.fixture(params=["cluster", "sentinels"])
def followed(request: pytest.FixtureRequest) -> Iterator[Followed]:
    """Run a primary that has a replica, and somebody who replaces it."""
    with StoreCluster(replicas=1) if request.param == "cluster" else SentinelGroup() as running:
        yield running


def primary_of(followed: Followed) -> StoreServer:
    return followed.primary if isinstance(followed, SentinelGroup) else followed.owner(TAG)


def replaced(followed: Followed, primary: StoreServer) -> StoreServer:
    """Wait until another has taken the place of a primary that was killed."""
    return asyncio.run(followed.promote() if isinstance(followed, SentinelGroup) else followed.promote(primary))


@contextmanager
def served(start: StartGateway, upstream: FakeUpstream, url: str) -> Iterator[Gateway]:
    upstream.default = App(total_tokens=TOKENS_EACH)
    yield start(
        settings(
            f"{upstream.url}/v1",
            users={"alice": {"limits": EVERY_QUANTITY, "cache": {"mode": "deterministic"}}},
            models={"m": PRICED},
            organization={"id": ORGANIZATION},
            state=url,
            workers=2,
        )
    )


def ask(gateway: Gateway, **fields: object) -> Resp:
    body = {"model": "m", "prompt": uniq(), "temperature": 1, "max_tokens": 8, **fields}
    return call(gateway.base_url, "POST", "/v1/completions", bearer("alice"), json.dumps(body).encode())


def used_tokens(gateway: Gateway) -> int:
    """Return what alice has used of her tokens, and holds; -1 while the store cannot be asked."""
    answer = call(gateway.base_url, "GET", "/v1/tidegate/me", bearer("alice"))
    if answer.status != 200:
        return -1
    [tokens] = [limit for limit in answer.json()["limits"] if limit["of"] == "tokens"]
    return LIMIT - int(tokens["left"])


def serves_again(gateway: Gateway) -> bool:
    return ask(gateway).status == 200


def test_all_that_a_gateway_does_stays_within_one_slot(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    with StoreCluster() as cluster, served(start_gateway, upstream, cluster.url) as gateway:
        assert [ask(gateway, stream=stream).status for stream in (False, True)] == [200, 200]
        same = {"prompt": uniq(), "temperature": 0, "seed": 1}
        told = [ask(gateway, **same).header("cache-status") for _ in range(2)]
        assert [";hit" in each for each in told] == [False, True]
        assert len(gateway.wait_for_records(4)) == 4
        order = json.dumps({"project": "proj_tests", "user": "alice", "reason": "a test"}).encode()
        admin = [("Authorization", f"Bearer {ADMIN_KEY}"), ("Content-Type", "application/json")]
        reset = call(gateway.admin_url, "POST", "/v1/tidegate/limits/reset", admin, order)
        assert reset.status == 200, reset.body
        assert used_tokens(gateway) == 0
        assert gateway.terminate() == 0
        assert cluster.errors().keys().isdisjoint({"CROSSSLOT", "MOVED"})


def test_a_primary_that_comes_back_with_its_file_has_every_count(
    start_gateway: StartGateway, upstream: FakeUpstream
) -> None:
    with StoreCluster() as cluster, served(start_gateway, upstream, cluster.url) as gateway:
        assert [ask(gateway).status for _ in range(5)] == [200] * 5
        primary = cluster.owner(TAG)
        primary.kill()
        assert ask(gateway).status == 503
        primary.start()
        assert eventually(lambda: serves_again(gateway), seconds=20)
        served_now = 5 + 1
        assert eventually(lambda: used_tokens(gateway) == served_now * TOKENS_EACH)


def test_a_replica_that_takes_over_goes_on_with_the_counts(
    start_gateway: StartGateway, upstream: FakeUpstream, followed: Followed
) -> None:
    with served(start_gateway, upstream, followed.url) as gateway:
        assert [ask(gateway).status for _ in range(5)] == [200] * 5
        primary = primary_of(followed)
        with primary.client() as client:
            client.set(f"{TAG}:mark", 1)
            assert client.wait(1, 5_000) == 1  # the replica has all that was written before, so nothing may be lost
        primary.kill()
        assert ask(gateway).status == 503
        new = replaced(followed, primary)
        assert eventually(lambda: serves_again(gateway), seconds=20)
        assert eventually(lambda: used_tokens(gateway) == (5 + 1) * TOKENS_EACH)
        assert new is primary_of(followed)


def test_a_slot_that_moves_takes_the_counts_along(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    with StoreCluster() as cluster, served(start_gateway, upstream, cluster.url) as gateway:
        assert [ask(gateway).status for _ in range(3)] == [200] * 3
        source = cluster.owner(TAG)
        other = next(node for node in cluster.primaries if node is not source)
        asyncio.run(cluster.migrate(TAG, other))
        assert [ask(gateway).status for _ in range(3)] == [200] * 3
        assert used_tokens(gateway) == 6 * TOKENS_EACH
        assert "CROSSSLOT" not in cluster.errors()
