"""How the upstreams of one worker are doing: what is under way, how fast they are, which are avoided for now.

This outlasts the configuration: a reload brings other rules, and what was seen stays. One event loop uses it. Which
deployment a request goes to is decided in `policies.routing`, and what follows a failure in `policies.retries`; here
is only known what those have to go by.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Self

from policies.breakers import Breaker, BreakerRules, BreakerState
from policies.retries import MAX_SAVED_RETRIES, can_spend, earn
from policies.routing import Latency, Standing
from proxy.upstreams.client import ClientBounds
from proxy.upstreams.connections import way_to
from proxy.upstreams.dispatch import Dispatcher
from proxy.upstreams.gates import Gate, share_of
from proxy.upstreams.health import HealthChecks
from proxy.upstreams.targets import Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from policies.breakers import Begun
    from policies.catalog import BreakerSettings, Deployment, Model
    from proxy.config import Configuration
    from proxy.config_upstreams import Upstream
    from proxy.metrics import Metrics
    from proxy.upstreams.client import UpstreamClient

    Name = tuple[str, str, str]
    """Model, upstream, and what that calls the model."""

_STATES: Final = tuple(BreakerState)
_SHOW_SECONDS: Final = 1.0


class Place:
    """One deployment as it is doing. Ask `begin` for each attempt, which tells what became of itself."""

    __slots__ = ("_is_told", "_labels", "_metrics", "_shown", "breaker", "latency", "outstanding")

    def __init__(self, name: Name, rules: BreakerRules, metrics: Metrics, *, is_told: bool) -> None:
        self.breaker = Breaker(rules)
        self.latency = Latency()
        self.outstanding = 0
        self._metrics = metrics
        self._labels = name
        self._shown: BreakerState | None = None
        self._is_told = is_told
        self.show(time.monotonic())

    def begin(self, gate: Gate) -> Running:
        """Begin an attempt from within the gate, which is left at its end."""
        now = time.monotonic()
        self.outstanding += 1
        self.latency.begin(now)
        running = Running(self, gate, now, self.breaker.begin(now))
        self.show(now)
        return running

    def show(self, now: float) -> None:
        """Tell the operator of the state of the breaker, where it is another than before."""
        state = self.breaker.state(now)
        if state is not self._shown and self._is_told:
            for each in _STATES:
                self._metrics.upstream_breaker_state.labels(*self._labels, each.name.lower()).set(float(each is state))
            self._shown = state

    def hide(self) -> None:
        """Tell the operator of this breaker no longer."""
        self._is_told = False
        for each in _STATES:
            self._metrics.upstream_breaker_state.remove(*self._labels, each.name.lower())


class Running:
    """One attempt under way at a deployment: it ends with `end`, once; before that one of the others may tell how."""

    __slots__ = ("_begun", "_gate", "_place", "began")

    def __init__(self, place: Place, gate: Gate, began: float, begun: Begun) -> None:
        self.began = began
        self._place = place
        self._gate = gate
        self._begun = begun

    def answered(self, *, is_failure: bool, is_refusal: bool, cool_down_seconds: float | None) -> None:
        """Note the head of an answer. How soon a refusal comes tells nothing of how fast answers do."""
        now, place = time.monotonic(), self._place
        if cool_down_seconds is not None:
            place.breaker.cool_down(now + cool_down_seconds)
        if is_failure:
            place.breaker.failed(now, self._begun)
        else:
            if not is_refusal:
                place.latency.note(now - self.began, now)
            place.breaker.succeeded(now, self._begun)
        place.show(now)

    def failed(self) -> None:
        """Note that no answer came, or that what came broke or was of no use."""
        now = time.monotonic()
        self._place.breaker.failed(now, self._begun)
        self._place.show(now)

    def end(self) -> None:
        """End the attempt; one of which nothing was told says nothing about the deployment."""
        self._gate.leave()
        self._place.outstanding -= 1
        self._place.breaker.ended(self._begun)


class Upstreams:
    """All upstreams of one worker; opened with `async with`.

    `refuses_usage` holds upstreams, and what they call a model, that take no request for the usage of a stream.
    """

    def __init__(self, client: UpstreamClient, *, metrics: Metrics, worker: int, workers: int) -> None:
        """Know nothing yet: `dispatcher` tells of a configuration."""
        self.client = client
        self.metrics = metrics
        self.health = HealthChecks(client, metrics)
        self._worker = worker
        self._workers = workers
        self._gates: dict[str, Gate] = {}
        self._places: dict[Name, Place] = {}
        self._served: frozenset[Name] = frozenset()
        self.refuses_usage: set[tuple[str, str]] = set()
        self._saved_retries = MAX_SAVED_RETRIES
        self._showing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin to tell the operator how breakers stand."""
        self._showing = asyncio.create_task(self._show(), name="breakers")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End that, and the health checks."""
        if self._showing is not None:
            self._showing.cancel()
            await asyncio.wait([self._showing])
        await self.health.close()

    def dispatcher(self, configuration: Configuration, targets: Mapping[str, Target]) -> Dispatcher:
        """Return what sends requests under a configuration, which has to be adopted before the first one."""
        timeouts = configuration.timeouts
        key = configuration.pseudonym_key
        return Dispatcher(
            self,
            targets,
            bounds=ClientBounds(timeouts.connect_seconds, timeouts.first_byte_seconds, timeouts.silence_seconds),
            pseudonym_key=b"" if key is None else key.get_secret_value().encode(),
        )

    def adopt(self, configuration: Configuration, targets: Mapping[str, Target]) -> None:
        """Let the rules of a configuration hold from now on; what was seen of deployments that it still has stays.

        Requests under an earlier one go on under what that said.
        """
        for name, settings in configuration.upstreams.items():
            self._adopt_gate(name, settings)
        self._served = frozenset(_names(configuration))
        for known, place in list(self._places.items()):
            if known in self._served:
                place.breaker.adopt(rules_of(configuration.models[known[0]].breaker))
            else:
                place.hide()
                del self._places[known]
        self.health.adopt(targets)

    def gate(self, upstream: str) -> Gate:
        """Return the gate of a configured upstream."""
        return self._gates[upstream]

    def place(self, model: Model, deployment: Deployment) -> Place:
        """Return how a deployment of a model is doing."""
        name = (model.name, deployment.upstream, deployment.name_of(model.name))
        place = self._places.get(name)
        if place is None:
            rules = rules_of(model.settings.breaker)
            place = self._places[name] = Place(name, rules, self.metrics, is_told=name in self._served)
        return place

    def standing(self, model: Model, deployment: Deployment, now: float) -> Standing:
        """Return what choosing among deployments has to go by."""
        place = self.place(model, deployment)
        return Standing(
            outstanding=place.outstanding,
            latency_seconds=place.latency.estimate(now),
            is_available=place.breaker.is_available(now) and self.health.is_healthy(deployment.upstream),
            has_room=self._gates[deployment.upstream].has_room,
        )

    def earn_retries(self) -> None:
        """Count one more request: each allows a tenth of a repetition."""
        self._saved_retries = earn(self._saved_retries)

    def spend_retry(self) -> bool:
        """Take the right to one repetition, and tell whether there was any."""
        if not can_spend(self._saved_retries):
            return False
        self._saved_retries -= 1
        return True

    async def _show(self) -> None:
        """Tell the operator of breakers that time alone has changed."""
        while True:
            now = time.monotonic()
            for place in self._places.values():
                place.show(now)
            await asyncio.sleep(_SHOW_SECONDS)

    def _adopt_gate(self, name: str, settings: Upstream) -> None:
        room = None if settings.concurrency is None else share_of(settings.concurrency, self._worker, self._workers)
        bounds = room, settings.queue.length, settings.queue.max_wait / 1000
        if name in self._gates:
            self._gates[name].adopt(*bounds)
        else:
            self._gates[name] = Gate(*bounds, upstream=name, metrics=self.metrics)


def targets_of(configuration: Configuration, environment: Mapping[str, str]) -> dict[str, Target]:
    """Return all upstreams of a configuration, ready to be asked; `environment` is where proxies are named.

    Reads files, so that it has no place on an event loop. Raises UnusableWay.
    """
    return {
        name: Target(name, settings, way_to(settings, environment))
        for name, settings in configuration.upstreams.items()
    }


def _names(configuration: Configuration) -> Iterator[Name]:
    for model, settings in configuration.models.items():
        shadows = () if settings.shadow is None else (settings.shadow.deployment,)
        for each in (*settings.deployments, *shadows):
            yield model, each.upstream, each.name_of(model)


def rules_of(settings: BreakerSettings) -> BreakerRules:
    """Return a breaker's rules in seconds."""
    return BreakerRules(
        failures=settings.failures,
        share=settings.share,
        window_seconds=settings.window / 1000,
        open_seconds=settings.open_for / 1000,
        longest_open_seconds=settings.longest_open / 1000,
    )
