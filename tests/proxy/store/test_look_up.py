"""The scripts of look-ups and of leases; how a worker uses them is in `test_answer_cache`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from proxy.store import keys as store_keys
from proxy.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis
    from stores import StoreServer

KEY = "k" * 64
ENTRY, LEASE = store_keys.stored(KEY), store_keys.flight(KEY)
LIFE = 60_000
"""Milliseconds that a lease lasts here; no test takes so long."""


def run(client: redis.Redis, name: str, keys: Sequence[str], *arguments: object) -> Any:  # noqa: ANN401  a reply
    return client.eval(Script(name).source, len(keys), *keys, *arguments)


def look_up(client: redis.Redis, owner: str) -> Any:  # noqa: ANN401  a reply
    return run(client, "look_up", [ENTRY, LEASE], owner, LIFE)


def test_a_look_up_that_finds_nothing_takes_the_lease_for_the_first_who_asks(any_store: StoreServer) -> None:
    with any_store.client() as client:
        assert [look_up(client, owner) for owner in ("one", "other", "one", "other")] == [1, 0, 1, 0]
        assert client.get(LEASE) == b"one"
        assert 0 < client.pttl(LEASE) <= LIFE


def test_asking_again_prolongs_the_owners_lease_and_nobody_elses(any_store: StoreServer) -> None:
    with any_store.client() as client:
        for script, keys in (("look_up", [ENTRY, LEASE]), ("hold_lease", [LEASE])):
            client.set(LEASE, "one", px=LIFE)
            assert run(client, script, keys, "other", 2 * LIFE) == 0
            assert client.pttl(LEASE) <= LIFE
            assert run(client, script, keys, "one", 2 * LIFE) == 1
            assert client.pttl(LEASE) > LIFE


def test_a_look_up_that_finds_an_answer_leaves_the_lease_alone(any_store: StoreServer) -> None:
    with any_store.client() as client:
        client.set(ENTRY, b"answer")
        assert look_up(client, "one") == b"answer"
        assert not client.exists(LEASE)
        client.set(LEASE, "other")
        assert look_up(client, "one") == b"answer"
        assert (client.get(LEASE), client.ttl(LEASE)) == (b"other", -1)


def test_a_lease_is_given_back_by_its_owner_only_and_once(any_store: StoreServer) -> None:
    with any_store.client() as client:
        assert run(client, "hold_lease", [LEASE], "one", LIFE) == 1
        assert [run(client, "drop_lease", [LEASE], owner) for owner in ("other", "one", "one")] == [0, 1, 0]
        assert not client.exists(LEASE)
