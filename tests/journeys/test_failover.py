"""No client notices an upstream that fails while another one is well, as long as nothing of an answer has left.

Each fault has a model of its own, so that no breaker knows of the one before; nearly all requests go to the ailing
upstream first.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from ailing_upstream import FAULTS, Ailing, UpstreamProcess
from failover import Asked, Clients
from fake_upstream import FakeUpstream
from gateway import Gateway, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest import TempPathFactory  # noqa: PT013  a type

SLOW = "slow"
WRONG = [fault for fault in FAULTS if fault != SLOW]
EACH = 8
"""Requests of each form."""
ONE_ONLY = {"max_attempts": 1}
SOON_OPEN = {"failures": 2, "share": 0.1}


class World:
    """A gateway before an upstream that is well, one that is not, and one in a process of its own."""

    def __init__(self, gateway: Gateway, ailing: Ailing, well: Ailing, process: UpstreamProcess) -> None:
        self.gateway = gateway
        self.ailing = ailing
        self.well = well
        self.process = process
        ailing.calls = well.calls = 0
        ailing.fault = None

    def clients(self, model: str) -> Clients:
        return Clients(self.gateway.base_url, model=model, user="alice")

    async def ask(self, model: str, *, times: int = EACH) -> list[Asked]:
        """Ask so often at once for whole answers, and for streams."""
        clients = self.clients(model)
        for is_stream in (False, True):
            for _ in range(times):
                clients.begin(is_stream=is_stream)
        await clients.all_have_ended()
        return clients.asked

    async def ask_in_turn(self, model: str, *, times: int) -> list[Asked]:
        """Ask so often for whole answers, one after the other."""
        return [each for _ in range(times) for each in (await self.ask_one(model))]

    async def ask_one(self, model: str) -> list[Asked]:
        clients = self.clients(model)
        clients.begin(is_stream=False)
        await clients.all_have_ended()
        return clients.asked


def deployments(*upstreams: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401  any of a model's settings
    """Return a model's settings: nearly all go to the first of some upstreams as long as it is no worse."""
    weights = [10_000, *[1] * len(upstreams[1:])]
    return {
        "deployments": [
            {"upstream": upstream, "weight": weight} for upstream, weight in zip(upstreams, weights, strict=True)
        ],
        **more,
    }


@pytest.fixture(scope="module")
def _world(tmp_path_factory: TempPathFactory) -> Iterator[tuple[Gateway, Ailing, Ailing, UpstreamProcess]]:
    ailing, well = FakeUpstream(), FakeUpstream()
    ailing.default, well.default = Ailing("ailing"), Ailing("well")
    ailing.start()
    well.start()
    folder = tmp_path_factory.mktemp("failover")
    with UpstreamProcess(folder / "process", "process") as process:
        models = {
            **{f"before {fault}": deployments("ailing", "well") for fault in FAULTS},
            **{f"alone {fault}": deployments("ailing", breaker=SOON_OPEN, **ONE_ONLY) for fault in WRONG},
            **{
                f"fast {fault}": deployments("ailing", breaker={**SOON_OPEN, "fail_fast": True}, **ONE_ONLY)
                for fault in WRONG
            },
            "all ail": {
                "deployments": [{"upstream": "ailing", "name": name} for name in ("one", "other")],
                "breaker": SOON_OPEN,
            },
            **{name: deployments("process", "well") for name in ("killed", "gone", "frozen")},
        }
        urls = {"ailing": ailing.url, "well": well.url, "process": process.url}
        upstreams = {name: {"kind": "openai", "base_url": f"{url}/v1"} for name, url in urls.items()}
        made = settings("", users={"alice": {}}, models=models, upstreams=upstreams)
        with Gateway(folder / "gateway", made) as gateway:
            yield gateway, ailing.default, well.default, process


@pytest.fixture
def world(_world: tuple[Gateway, Ailing, Ailing, UpstreamProcess]) -> World:
    return World(*_world)


def faults_of(asked: list[Asked]) -> list[str]:
    return [each.error for each in asked if each.error is not None]


@pytest.mark.parametrize("fault", WRONG)
async def test_an_answer_comes_from_the_upstream_that_is_well(world: World, fault: str) -> None:
    world.ailing.fault = fault
    asked = await world.ask(f"before {fault}")
    failed = [each for each in asked if each.has_failed and not each.has_begun]
    assert faults_of(failed) == []
    assert all(b"well" in each.body for each in asked if not each.has_failed)
    assert world.ailing.calls > 0
    assert {each.error for each in asked if each.has_begun} <= {None, "an error event"}


async def test_who_is_slow_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ailing_upstream.SLOW_SECONDS", 1.0)
    world.ailing.fault = SLOW
    asked = await world.ask("before slow")
    assert faults_of(asked) == []
    assert world.ailing.calls + world.well.calls == len(asked), "nothing is sent, and paid, twice"


async def test_requests_under_way_at_an_upstream_that_is_killed_are_answered_by_the_other(world: World) -> None:
    process = world.process
    process.fall_ill(SLOW)
    before = process.calls
    asking = asyncio.create_task(world.ask("killed"))
    try:
        await asyncio.to_thread(process.wait_for_calls, before + 2 * EACH - 2)
        await asyncio.to_thread(process.kill)
        asked = await asking
        assert faults_of(asked) == []
        assert all(b"well" in each.body for each in asked)
        assert faults_of(await world.ask("gone")) == [], "and those that come when it is gone"
    finally:
        process.fall_ill(None)
        await asyncio.to_thread(process.start)


async def test_requests_to_an_upstream_that_is_frozen_are_answered_once_it_goes_on(world: World) -> None:
    process, before = world.process, world.process.calls
    process.freeze()
    try:
        asking = asyncio.create_task(world.ask("frozen"))
        await asyncio.sleep(0.5)  # in which whoever gave up would have
    finally:
        process.thaw()
    asked = await asking
    assert faults_of(asked) == []
    assert process.calls - before + world.well.calls == len(asked), "nothing is sent, and paid, twice"


@pytest.mark.parametrize("fault", WRONG)
async def test_nothing_is_withheld_from_the_only_deployment_because_its_breaker_is_open(
    world: World, fault: str
) -> None:
    world.ailing.fault = fault
    asked = await world.ask_in_turn(f"alone {fault}", times=6)
    assert all(each.has_failed for each in asked)
    assert world.ailing.calls == 6
    world.ailing.fault = None
    assert faults_of(await world.ask(f"alone {fault}", times=2)) == []


async def test_nor_from_any_of_several_whose_breakers_are_all_open(world: World) -> None:
    world.ailing.fault = "HTML"
    asked = await world.ask_in_turn("all ail", times=6)
    assert {each.error for each in asked} == {"502 upstream_unusable"}
    assert world.ailing.calls == 2 * 6, "each request is sent to both"


@pytest.mark.parametrize("fault", WRONG)
async def test_with_fail_fast_the_only_deployment_is_left_alone_and_clients_are_told_for_how_long(
    world: World, fault: str
) -> None:
    world.ailing.fault = fault
    asked = await world.ask_in_turn(f"fast {fault}", times=6)
    calls = world.ailing.calls
    assert calls == (1 if fault.startswith("429") else 2), "a cool-down begins at once, a breaker opens after two"
    refused = asked[calls:]
    assert {(each.status, each.error) for each in refused} == {(503, "503 no_upstream_left")}
    assert all(int(each.headers["retry-after"]) >= 1 for each in refused)
