"""Looking into the store that a configuration names, as commands do; `test_limits` looks into an embedded one."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from stores import StoreCluster
from whole import configuration

from proxy.commands.live import look_live, reset_live
from proxy.errors import StoreUnavailable
from proxy.standings import standings_of
from proxy.store.audit import Actor, Event

if TYPE_CHECKING:
    from pathlib import Path

    from stores import StoreServer

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
