"""What active checks say of an upstream, and that they end when nobody wants them any more."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import UPSTREAM_KEY, body_reply
from gateway import free_port
from sending import fake_upstream, up

from proxy.config_upstreams import Upstream
from proxy.metrics import Metrics
from proxy.upstreams.client import UpstreamClient
from proxy.upstreams.connections import DIRECT, Way
from proxy.upstreams.health import HealthChecks
from proxy.upstreams.proxies import Proxy
from proxy.upstreams.targets import Target

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from fake_upstream import FakeUpstream

__all__ = ["fake_upstream", "up"]

OFTEN: dict[str, Any] = {"every": "10ms", "timeout": "60s"}
SILENT = [("hold", 60)]


class World:
    """Checks of one worker, and the upstream they ask."""

    def __init__(self, checks: HealthChecks, metrics: Metrics, up: FakeUpstream) -> None:
        self.checks = checks
        self.metrics = metrics
        self.up = up

    def adopt(self, base: str = "/v1", **health: Any) -> None:  # noqa: ANN401  any of its settings
        """Check the upstream from now on."""
        self.checks.adopt({"a": target(self.up.url + base, {**OFTEN, **health})})

    async def answers(self, *answers: Sequence[Any] | int, **health: Any) -> None:  # noqa: ANN401  likewise
        """Have the upstream answer checks so, one after the other; wait until it is asked once more."""
        asked, loop = asyncio.Event(), asyncio.get_running_loop()
        until = [("do", lambda: loop.call_soon_threadsafe(asked.set)), *SILENT]
        self.up.script(*(body_reply(b"{}", each) if isinstance(each, int) else each for each in answers), until)
        self.adopt(**health)
        async with asyncio.timeout(10):
            await asked.wait()

    def told(self) -> list[tuple[str, float]]:
        """Return the upstreams and their health as the metric tells it."""
        return [(labels[0], float(str(value))) for labels, value in self.metrics.upstream_healthy.series()]


def target(base_url: str, health: dict[str, Any] | None, *, way: Way = DIRECT) -> Target:
    settings = {"kind": "openai", "base_url": base_url, "api_key": UPSTREAM_KEY, "health": health}
    return Target("a", Upstream.model_validate(settings), way)


@pytest.fixture
async def world(up: FakeUpstream) -> AsyncIterator[World]:
    metrics = Metrics()
    async with UpstreamClient() as client:
        checks = HealthChecks(client, metrics)
        yield World(checks, metrics, up)
        await checks.close()


@pytest.mark.parametrize(
    ("answers", "health", "expected"),
    [
        pytest.param([], {}, True, id="of which nothing is known yet"),
        pytest.param([200], {}, True, id="that answers"),
        pytest.param([500], {}, True, id="that has failed once"),
        pytest.param([500, 500], {}, False, id="that has failed twice"),
        pytest.param([500, 200, 500], {}, True, id="that has failed twice, but not in a row"),
        pytest.param([500], {"failures": 1}, False, id="that has failed once, where once is enough"),
        pytest.param([500, 500, 200], {}, True, id="that is back"),
        pytest.param([500, 500, 200], {"successes": 2}, False, id="that is back, but not for long"),
        pytest.param([500, 500, 200, 500, 200], {"successes": 2}, False, id="that comes and goes"),
        pytest.param([500, 500, 200, 200], {"successes": 2}, True, id="that is back to stay"),
        pytest.param([204, 429, 429], {"failures": 1}, True, id="that is busy"),
        pytest.param([401], {"failures": 1}, False, id="that refuses our key"),
        pytest.param([404], {"failures": 1}, False, id="that does not know the path"),
        pytest.param([302], {"failures": 1}, False, id="that redirects"),
        pytest.param([[("rst",)]] * 2, {"failures": 1}, False, id="that resets the connection"),
        pytest.param([[("send", b"garbage\r\n\r\n"), ("close",)]], {"failures": 1}, False, id="that speaks no HTTP"),
    ],
)
async def test_an_upstream_is_healthy(
    world: World,
    answers: list[Any],
    health: dict[str, Any],
    expected: bool,  # noqa: FBT001  a column
) -> None:
    await world.answers(*answers, **health)
    assert world.checks.is_healthy("a") is expected
    assert world.told() == [("a", float(expected))]


@pytest.mark.parametrize(
    "is_there",
    [
        pytest.param(True, id="it does not answer in time"),
        pytest.param(False, id="nobody is there"),
    ],
)
async def test_an_upstream_that_gives_no_answer_is_unhealthy(
    world: World,
    caplog: pytest.LogCaptureFixture,
    is_there: bool,  # noqa: FBT001  a row
) -> None:
    world.up.default = SILENT
    address = world.up.url if is_there else f"http://127.0.0.1:{free_port()}"
    with caplog.at_level(logging.INFO, "tidegate.upstreams"):
        world.checks.adopt({"a": target(address, {"every": "10ms", "timeout": "50ms", "failures": 3})})
        while world.checks.is_healthy("a"):  # noqa: ASYNC110  a verdict is for whoever asks
            await asyncio.sleep(0.01)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "upstream a is unhealthy, others are tried first"
    ]


async def test_every_change_is_told_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tidegate.upstreams"):
        await world.answers(200, 200, 503, 503, 503, 503, 200, 200)
    assert [record.getMessage() for record in caplog.records] == [
        "upstream a is unhealthy, others are tried first: it answered 503",
        "upstream a is healthy again",
    ]


@pytest.mark.parametrize("base", ["/v1", "/v1/"])
async def test_a_check_is_a_get_below_the_base_address_with_the_upstreams_own_key(world: World, base: str) -> None:
    await world.answers(200, base=base, path="/health?deep=1")
    asked = world.up.log[0]
    assert (asked.method, asked.target, asked.body) == ("GET", "/v1/health?deep=1", b"")
    assert asked.header("Authorization") == f"Bearer {UPSTREAM_KEY}"


async def test_an_upstream_without_settings_is_not_asked_and_counts_as_healthy(world: World) -> None:
    world.checks.adopt({"a": target(world.up.url, None)})
    assert world.checks.is_healthy("a")
    assert world.checks.is_healthy("never heard of")
    assert world.told() == []
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("health")]


async def test_after_a_reload_an_unchanged_upstream_is_asked_on(world: World) -> None:
    await world.answers(500, 500)
    asked = len(world.up.log)
    world.adopt()
    await asyncio.sleep(0.05)
    assert not world.checks.is_healthy("a")
    assert len(world.up.log) == asked, "the check under way goes on"


async def test_after_a_reload_an_unchanged_upstream_is_asked_by_the_new_way(world: World) -> None:
    world.adopt()
    gone = Way(proxy=Proxy(f"http://127.0.0.1:{free_port()}", None))
    world.checks.adopt({"a": target(world.up.url + "/v1", OFTEN, way=gone)})
    while world.checks.is_healthy("a"):  # noqa: ASYNC110  a verdict is for whoever asks
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        pytest.param({"failures": 7}, False, id="with other bounds it is what it was"),
        pytest.param({"path": "/other"}, True, id="at another address nothing is known of it"),
    ],
)
async def test_after_a_reload_a_changed_upstream_is_asked_anew(
    world: World,
    changed: dict[str, Any],
    expected: bool,  # noqa: FBT001  a column
) -> None:
    await world.answers(500, 500)
    asked, loop = asyncio.Event(), asyncio.get_running_loop()
    world.up.script([("do", lambda: loop.call_soon_threadsafe(asked.set)), *SILENT])
    base = "/v2" if "path" in changed else "/v1"
    health = {**OFTEN, **({} if "path" in changed else changed)}
    world.checks.adopt({"a": target(world.up.url + base, health)})
    assert world.checks.is_healthy("a") is expected
    assert world.told() == [("a", float(expected))]
    async with asyncio.timeout(10):
        await asked.wait()


@pytest.mark.parametrize(
    "after",
    [
        pytest.param({}, id="it is gone"),
        pytest.param({"health": None}, id="it is there, and not to be checked"),
    ],
)
async def test_after_a_reload_nobody_asks_an_upstream_that_is_not_to_be_checked(
    world: World, after: dict[str, Any]
) -> None:
    await world.answers(500, 500)
    asked = len(world.up.log)
    world.checks.adopt({"a": target(world.up.url, **after)} if after else {})
    assert world.checks.is_healthy("a")
    assert world.told() == []
    await asyncio.sleep(0.05)
    assert len(world.up.log) == asked


async def test_a_fault_of_ours_is_counted_and_the_next_check_is_made(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, faults = world.checks._client.get, iter([RuntimeError("planted")])  # noqa: SLF001

    async def fail_once(*arguments: Any, **named: Any) -> int:  # noqa: ANN401  as it is called
        for fault in faults:
            raise fault
        return await get(*arguments, **named)

    monkeypatch.setattr(world.checks._client, "get", fail_once)  # noqa: SLF001
    await world.answers(500, 500)
    assert not world.checks.is_healthy("a")
    assert world.metrics.unhandled_errors_total.labels("health").value == 1
    assert "planted" in caplog.text


async def test_closed_checks_leave_no_task_behind(world: World) -> None:
    await world.answers(200)
    world.adopt("/v2")
    await world.checks.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("health")]
