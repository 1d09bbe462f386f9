"""An upstream gets no more requests at once than it may have; the others wait in line, go elsewhere, or are told so."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from ailing_upstream import well
from failover import Asked, Clients
from fake_upstream import FakeUpstream
from gateway import Gateway, eventually, settings
from harness import call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fake_upstream import Ops, Req
    from gateway import Settings

LONG = "60s"


class Holding:
    """An upstream that answers when it is let: `prompts` in the order in which they came."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.prompts: list[str] = []
        self.most = 0
        self._inside = 0
        self._lock = threading.Lock()
        self._may_end: set[int] = set()
        self._all_may = False

    def __call__(self, req: Req) -> Ops:
        with self._lock:
            number = len(self.prompts)
            self.prompts.append(req.json()["prompt"])
            self._inside += 1
            self.most = max(self.most, self._inside)
        answer = well(req, name=self.name)
        first, rest = answer[:1], answer[1:]
        may_end: list[Any] = [("until", lambda: self._all_may or number in self._may_end), ("do", self._leave)]
        return [*first, *may_end, *rest] if rest else [*may_end, *first]

    def end(self, number: int) -> None:
        """Let one request end; a stream has begun before."""
        self._may_end.add(number)

    def end_all(self) -> None:
        """Let all end, those to come, too."""
        self._all_may = True

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1


class World:
    """Two upstreams that hold what they are asked, behind a gateway where others may be at work as well."""

    def __init__(self, gateway: Gateway, name: str, a: Holding, b: Holding) -> None:
        self.gateway = gateway
        self.name = name
        self.a = a
        self.b = b
        self.clients = self.more_clients()

    def more_clients(self) -> Clients:
        """Return others who ask for the same model."""
        return Clients(self.gateway.base_url, model=self.name, user="alice")

    async def ask(self, *, is_stream: bool = False, prompt: str | None = None) -> Asked:
        """Ask, and wait until the request is where it is going: at an upstream, in line, or back."""
        before = self._placed()
        self.clients.begin(is_stream=is_stream, prompt=prompt)
        asked = self.clients.asked[-1]
        await until(lambda: self._placed() > before)
        return asked

    @property
    def waiting(self) -> float:
        """How many wait in line."""
        return self.told("upstream_waiting")

    @property
    def outstanding(self) -> float:
        """How many are under way."""
        return self.told("upstream_outstanding")

    def told(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's series that are about these upstreams and have these labels."""
        page = call(self.gateway.admin_url, "GET", "/metrics").body.decode()
        found = re.findall(rf"^tidegate_{name}\{{(.*)\}} (\S+)$", page, re.MULTILINE)
        told = [(dict(re.findall(r'(\w+)="([^"]*)"', said)), float(value)) for said, value in found]
        ours = {self.a.name, self.b.name}
        return sum(value for said, value in told if said["upstream"] in ours and labels.items() <= said.items())

    def _placed(self) -> float:
        return sum(not each.is_open for each in self.clients.asked) + self.outstanding + self.waiting


async def until(condition: Callable[[], Any]) -> None:
    assert await asyncio.to_thread(eventually, condition)


class Town:
    """Models with two upstreams each, of which the first one has a cap, all at one address."""

    def __init__(self, **capped: Settings) -> None:
        self._upstream = FakeUpstream()
        self._holding = {name: Holding(name) for model in capped for name in (model, f"{model}-other")}
        self._upstream.default = lambda req: self._holding[req.path.split("/")[1]](req)
        self._upstream.start()
        self._capped = capped

    def settings(self, **more: Any) -> Settings:  # noqa: ANN401  any member of the file
        """Write the gateway's settings."""
        base_urls = {name: f"{self._upstream.url}/{name}/v1" for name in self._holding}
        models = {
            model: {"deployments": [{"upstream": model}, *([{"upstream": f"{model}-other"}] * (model in PAIRS))]}
            for model in self._capped
        }
        upstreams = {
            name: {"kind": "openai", "base_url": url, **self._capped.get(name, {})} for name, url in base_urls.items()
        }
        return settings("", users={"alice": {}}, models=models, upstreams=upstreams, **more)

    @contextmanager
    def world(self, gateway: Gateway, model: str) -> Iterator[World]:
        """Let the upstreams of one model hold requests inside, and let them go afterwards."""
        a, b = self._holding[model], self._holding[f"{model}-other"]
        try:
            yield World(gateway, model, a, b)
        finally:
            a.end_all()
            b.end_all()


PAIRS = {"pair"}
"""Models with two deployments."""


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Town, Gateway]]:
    town = Town(
        short={"concurrency": 2, "queue": {"length": 1, "max_wait": LONG}},
        none={"concurrency": 1, "queue": {"length": 0}},
        order={"concurrency": 1, "queue": {"length": 10, "max_wait": LONG}},
        stream={"concurrency": 1, "queue": {"length": 10, "max_wait": LONG}},
        pair={"concurrency": 1, "queue": {"length": 10, "max_wait": LONG}},
        hasty={"concurrency": 1, "queue": {"length": 10, "max_wait": "50ms"}},
        leaving={"concurrency": 1, "queue": {"length": 1, "max_wait": LONG}},
    )
    with Gateway(tmp_path_factory.mktemp("queue"), town.settings()) as gateway:
        yield town, gateway


@pytest.fixture
def at(_shared: tuple[Town, Gateway], request: pytest.FixtureRequest) -> Iterator[World]:
    """Return the world of the model that a test names."""
    town, gateway = _shared
    with town.world(gateway, request.param) as world:
        yield world


@pytest.fixture
def own(start_gateway: Callable[[Settings], Gateway]) -> Iterator[Callable[..., World]]:
    """Return a function that starts a gateway of the test's own, whose upstream has the given settings."""
    with ExitStack() as running:

        def start(capped: Settings, **more: Any) -> World:  # noqa: ANN401  any member of the file
            town = Town(m=capped)
            return running.enter_context(town.world(start_gateway(town.settings(**more)), "m"))

        yield start


def with_model(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("at", [name], indirect=True)


def records_of(at: World) -> list[dict[str, Any]]:
    return [each for each in at.gateway.records() if each["model"] == at.name]


@with_model("short")
async def test_who_finds_no_room_waits_and_who_finds_no_line_is_told_so(at: World) -> None:
    first, second, third, fourth = [await at.ask() for _ in range(4)]
    await until(lambda: not fourth.is_open)
    assert (fourth.error, fourth.headers["retry-after"]) == ("503 upstream_busy", "1")
    assert "x-should-retry" not in fourth.headers
    assert (len(at.a.prompts), at.waiting, at.outstanding) == (2, 1, 2)
    at.a.end_all()
    await at.clients.all_have_ended()
    assert [each.error for each in (first, second, third)] == [None] * 3
    assert (at.a.most, len(at.a.prompts)) == (2, 3)
    assert (at.waiting, at.outstanding) == (0, 0)
    assert at.told("upstream_queue_seconds_count") == 1


@with_model("none")
async def test_a_refused_request_costs_nothing_and_is_no_fault_of_the_upstream(at: World) -> None:
    await at.ask()
    refused = [await at.ask() for _ in range(8)]
    at.a.end_all()
    await at.clients.all_have_ended()
    assert {each.error for each in refused} == {"503 upstream_busy"}
    assert eventually(lambda: len(records_of(at)) == 9)
    records = records_of(at)
    told = [(each["status"], each["attempts"], each["cost_microdollars"], each["output_tokens"]) for each in records]
    assert sorted(told) == [(200, 1, 0, 2), *[(503, 0, 0, 0)] * 8]
    assert at.told("upstream_errors_total") == 0
    assert at.told("upstream_breaker_state", state="closed") == 1


@with_model("order")
async def test_places_are_given_in_the_order_of_arrival(at: World) -> None:
    for number in range(5):
        await at.ask(prompt=f"prompt {number}")
    assert at.a.prompts == ["prompt 0"]
    for number in range(4):
        at.a.end(number)
        await until(lambda count=number + 2: len(at.a.prompts) == count)
    at.a.end_all()
    await at.clients.all_have_ended()
    assert at.a.prompts == [f"prompt {number}" for number in range(5)]
    assert at.a.most == 1


@with_model("stream")
async def test_a_stream_keeps_its_place_until_its_end(at: World) -> None:
    streamed = await at.ask(is_stream=True)
    await until(lambda: streamed.status == 200)
    whole = await at.ask()
    assert len(at.a.prompts) == 1
    at.a.end(0)
    await until(lambda: len(at.a.prompts) == 2)
    at.a.end_all()
    await at.clients.all_have_ended()
    assert (streamed.error, whole.error) == (None, None)


@with_model("pair")
async def test_where_another_deployment_has_room_nobody_waits(at: World) -> None:
    for _ in range(8):
        await at.ask()
    assert (len(at.a.prompts) <= 1, len(at.a.prompts) + len(at.b.prompts)) == (True, 8)
    at.a.end_all()
    at.b.end_all()
    await at.clients.all_have_ended()
    assert {each.error for each in at.clients.asked} == {None}
    assert at.told("upstream_queue_seconds_count") == 0


@with_model("hasty")
async def test_a_wait_ends_when_it_has_lasted_long_enough(at: World) -> None:
    await at.ask()
    late = await at.ask()
    await until(lambda: not late.is_open)
    assert late.error == "503 upstream_busy"
    assert (len(at.a.prompts), at.waiting) == (1, 0)
    at.a.end_all()
    await at.clients.all_have_ended()


@with_model("leaving")
async def test_a_client_that_leaves_the_line_makes_room_there(at: World) -> None:
    await at.ask()
    leaving = at.more_clients()
    leaving.begin(is_stream=False)
    await until(lambda: at.waiting == 1)
    await leaving.leave()
    await until(lambda: at.waiting == 0)
    next_one = await at.ask()
    at.a.end_all()
    await at.clients.all_have_ended()
    assert next_one.error is None
    assert len(at.a.prompts) == 2, "nothing was sent for who left"


async def test_the_workers_together_keep_to_the_cap(own: Callable[..., World]) -> None:
    at = own({"concurrency": 3, "queue": {"length": 30, "max_wait": LONG}}, workers=2)
    for number in range(24):
        at.clients.begin(is_stream=number % 2 == 0)
    await until(lambda: at.outstanding + at.waiting == 24)
    at.a.end_all()
    await at.clients.all_have_ended()
    assert {each.error for each in at.clients.asked} == {None}
    assert at.a.most <= 3


async def test_more_room_after_a_reload_lets_in_who_waits(own: Callable[..., World]) -> None:
    at = own({"concurrency": 1, "queue": {"length": 10, "max_wait": LONG}})
    for _ in range(3):
        await at.ask()
    assert len(at.a.prompts) == 1
    changed = json.loads(at.gateway.config_path.read_text())
    changed["upstreams"][at.name]["concurrency"] = 3
    at.gateway.config_path.write_text(json.dumps(changed))
    at.gateway.process.send_signal(signal.SIGHUP)
    await until(lambda: len(at.a.prompts) == 3)
    at.a.end_all()
    await at.clients.all_have_ended()
    assert {each.error for each in at.clients.asked} == {None}
