"""Looking into the store that a configuration names, as commands do; `test_limits` looks into an embedded one."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from stores import StoreCluster, StoreServer
from whole import configuration

from policies.freshness import Fit
from proxy.cached_entries import plan_of
from proxy.commands.live import entries_live, look_live, purge_live, report_live, reset_live
from proxy.errors import StoreUnavailable
from proxy.explanation import Question, explain
from proxy.standings import standings_of
from proxy.store.audit import Actor, Event
from proxy.store.entries import StoredAnswer
from proxy.store.keys import stored
from proxy.store.purges import Scope

if TYPE_CHECKING:
    from pathlib import Path

LIMITED = {"default": {"limits": [{"of": "requests", "limit": 5, "per": "month", "by": ["user"]}]}}


@pytest.fixture(autouse=True)
def logs_of_the_tests() -> object:
    """Keep the log as the other tests have it."""
    with patch("proxy.logs.silence") as silence:
        yield silence


async def test_a_store_that_is_named_is_asked(valkey: StoreServer, tmp_path: Path) -> None:
    settings = configuration("http://127.0.0.1:9", tmp_path, policies=LIMITED, state=valkey.url)
    [principal] = settings.principals().values()
    rooms = await look_live(settings, standings_of(principal, settings.rulebook()).limits)
    assert [room.left for room in rooms] == [5]


async def test_limits_are_reset_in_the_store_that_is_named(valkey: StoreServer, tmp_path: Path) -> None:
    settings = configuration("http://127.0.0.1:9", tmp_path, policies=LIMITED, state=valkey.url)
    [principal] = settings.principals().values()
    limits = standings_of(principal, settings.rulebook()).limits
    done = await reset_live(settings, limits, Event("limits.reset", Actor("session", "root"), "proj", {}))
    assert [room.left for room in done.after] == [5]
    with valkey.client() as client:
        assert client.xlen(f"tidegate:{{{settings.organization.id}}}:audit") == 1


async def test_cached_answers_are_purged_found_and_reported_in_the_stores_that_are_named(
    valkey: StoreServer, tmp_path: Path
) -> None:
    with StoreServer() as other:
        settings = configuration("http://127.0.0.1:9", tmp_path, state=valkey.url, cache_state=other.url)
        plan = plan_of(explain(settings, Question(b'{"model": "m", "prompt": "Hi", "temperature": 0}')))
        assert plan is not None
        answer = StoredAnswer(is_stream=False, content_type="a/b", body=b"{}", created_milliseconds=2**52)
        with other.client() as client:
            client.set(stored(plan.key), answer.pack(plan.key))
        [found] = await entries_live(settings, plan)
        done = await purge_live(settings, [Scope("model", "m")], Event("cache.purged", Actor("session", "x"), "", {}))
        [stale] = await entries_live(settings, plan)
        report = await report_live(settings)
    assert (found.answer, found.fit) == (answer, Fit.GOOD)
    assert (stale.is_purged, report.state.epoch) == (True, done.generation)
    assert (report.occupancy and report.occupancy.keys, report.is_shared) == (1, False)


async def test_one_server_may_be_both_stores(valkey: StoreServer, tmp_path: Path) -> None:
    settings = configuration("http://127.0.0.1:9", tmp_path, state=valkey.url)
    assert (await report_live(settings)).is_shared


async def test_a_cluster_of_cached_answers_is_asked(valkey: StoreServer, tmp_path: Path) -> None:
    with StoreCluster() as cluster:
        settings = configuration("http://127.0.0.1:9", tmp_path, state=valkey.url, cache_state=cluster.url)
        many = b'{"model": "m", "prompt": ["a", "b", "c", "d"], "temperature": 0}'
        plan = plan_of(explain(settings, Question(many)))
        assert plan is not None
        assert [each.stored_bytes for each in await entries_live(settings, plan)] == [0, 0, 0, 0]
        assert (await report_live(settings)).occupancy is None


async def test_a_cache_store_that_cannot_be_asked_is_named(valkey: StoreServer, tmp_path: Path) -> None:
    for cache, said in (
        ("embedded", "no gateway runs on data_dir"),
        ("redis://127.0.0.1:1/0?colour=red", "`cache_state`"),
    ):
        settings = configuration("http://127.0.0.1:9", tmp_path, state=valkey.url, cache_state=cache)
        with pytest.raises(StoreUnavailable) as caught:
            await report_live(settings)
        assert said in caught.value.message


async def test_a_cluster_that_is_named_is_asked(tmp_path: Path) -> None:
    with StoreCluster() as cluster:
        settings = configuration("http://127.0.0.1:9", tmp_path, policies=LIMITED, state=cluster.url)
        [principal] = settings.principals().values()
        rooms = await look_live(settings, standings_of(principal, settings.rulebook()).limits)
        assert [room.left for room in rooms] == [5]
        assert cluster.errors().keys().isdisjoint({"CROSSSLOT", "MOVED"})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        pytest.param({}, "no gateway runs on data_dir", id="an embedded store that does not run"),
        pytest.param({"state": "unix:///nowhere/store.sock"}, "store", id="one that cannot be reached"),
        pytest.param({"state": "redis://127.0.0.1:1/0?colour=red"}, "`state`: the address", id="no address"),
    ],
)
async def test_a_store_that_cannot_be_asked(more: dict[str, str], said: str, tmp_path: Path) -> None:
    settings = configuration("http://127.0.0.1:9", tmp_path, policies=LIMITED, **more)
    [principal] = settings.principals().values()
    with pytest.raises(StoreUnavailable) as caught:
        await look_live(settings, standings_of(principal, settings.rulebook()).limits)
    assert said in caught.value.message
